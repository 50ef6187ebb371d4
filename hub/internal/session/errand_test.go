package session

import (
	"errors"
	"sync"
	"testing"

	"towline.dev/towline/pkg/guard"
)

// Every call is followed by a round, however many come at once; no two rounds are done at a time.
func TestErrandMissesNoCall(t *testing.T) {
	const callers, calls = 8, 500
	var parts, callersDone sync.WaitGroup
	var e errand
	var mu sync.Mutex
	asked, seen, at := 0, 0, false
	e.begin(&parts, func() error {
		mu.Lock()
		if at {
			t.Error("two rounds at a time")
		}
		at, seen = true, asked
		mu.Unlock()
		mu.Lock()
		at = false
		mu.Unlock()
		return nil
	}, func(err error) { t.Error(err) })
	for range callers {
		callersDone.Go(func() {
			for range calls {
				mu.Lock()
				asked++
				mu.Unlock()
				e.call()
			}
		})
	}
	callersDone.Wait()
	parts.Wait()
	if seen != callers*calls {
		t.Errorf("the last round saw %d of %d calls", seen, callers*calls)
	}
}

// A call before the beginning is not lost, and nothing is done after the end, an error or a panic, which is told once.
func TestErrandEnds(t *testing.T) {
	bad := errors.New("bad")
	for name, tc := range map[string]struct {
		round func() error
		panic bool
	}{
		"an error": {func() error { return bad }, false},
		"a panic":  {func() error { panic("boom") }, true},
	} {
		var parts sync.WaitGroup
		var e errand
		rounds, told := 0, []error{}
		e.call()
		e.begin(&parts, func() error { rounds++; return tc.round() }, func(err error) { told = append(told, err) })
		parts.Wait()
		e.call()
		parts.Wait()
		if rounds != 1 || len(told) != 1 || errors.Is(told[0], bad) == tc.panic || (guard.Stack(told[0]) != "") != tc.panic {
			t.Errorf("%s: %d rounds, and it told %v", name, rounds, told)
		}
	}
	var parts sync.WaitGroup
	var e errand
	e.begin(&parts, func() error { t.Error("a round after the end"); return nil }, func(error) {})
	e.end()
	e.call()
	parts.Wait()
}
