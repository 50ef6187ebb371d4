package worker

import (
	"log/slog"
	"slices"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestClaimsAreABarrier: who is to delete waits until every module has claimed what its newest target lists, and is woken then.
func TestClaimsAreABarrier(t *testing.T) {
	a, b := fleet.ModuleRef{Project: "default", Name: "a"}, fleet.ModuleRef{Project: "default", Name: "b"}
	m := &Manager{o: Options{Log: slog.New(slog.DiscardHandler)}}
	w := newWorker(m, a)
	woken := func() bool {
		select {
		case <-w.signal:
			return true
		default:
			return false
		}
	}
	c := &m.claims
	waits := func(what string, want ...string) {
		t.Helper()
		if by, owed := c.await(w); !owed || !slices.Equal(by, want) {
			t.Errorf("%s: owed %v by %v, want by %v", what, owed, by, want)
		}
	}
	if by, owed := c.await(w); owed {
		t.Errorf("before there is any target, claims are owed by %v", by)
	}
	handed := c.hand()
	waits("before any module has its target")
	first := c.owe(a)
	c.made(a, first)
	waits("before the other one has its target")
	other := c.owe(b)
	handed()
	waits("the other one has its target", "b")
	newer := c.owe(b)
	c.made(b, other)
	waits("of a target that is not the newest any more", "b")
	if woken() {
		t.Error("woken while claims are owed")
	}
	c.made(b, newer)
	if !woken() {
		t.Error("not woken when all claims are made")
	}
	if by, owed := c.await(w); owed {
		t.Errorf("all claims are made, and %v owe some", by)
	}
	c.made(a, c.owe(a))
	if woken() {
		t.Error("woken, though it does not wait")
	}
}
