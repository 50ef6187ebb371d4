package control

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/testkit/steptest"
)

// recorder notes when runs begin and end.
type recorder struct {
	mu      sync.Mutex
	running map[string]int
	most    int
	now     int
	runs    map[string][]time.Duration
	start   time.Time
}

func newRecorder() *recorder {
	return &recorder{running: map[string]int{}, runs: map[string][]time.Duration{}, start: time.Now()}
}

func (r *recorder) run(t *testing.T, key string, took time.Duration) {
	r.mu.Lock()
	r.running[key]++
	r.now++
	if r.running[key] > 1 {
		t.Errorf("%s runs twice at once", key)
	}
	r.most = max(r.most, r.now)
	r.runs[key] = append(r.runs[key], time.Since(r.start))
	r.mu.Unlock()
	timer := time.NewTimer(took)
	<-timer.C
	r.mu.Lock()
	r.running[key]--
	r.now--
	r.mu.Unlock()
}

// within runs the runner in virtual time, does what the test says, and stops after a minute.
func within(t *testing.T, workers int, took time.Duration, again func(key string, n int) time.Duration, do func(*runner)) *recorder {
	var rec *recorder
	synctest.Test(t, func(t *testing.T) {
		rec = newRecorder()
		count := map[string]int{}
		var mu sync.Mutex
		r := newRunner(workers, func(_ context.Context, key string) time.Duration {
			rec.run(t, key, took)
			mu.Lock()
			defer mu.Unlock()
			count[key]++
			return again(key, count[key])
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		go do(r)
		r.loop(ctx)
	})
	return rec
}

func never(string, int) time.Duration { return 0 }

func TestOneKeyNeverRunsTwiceAtOnceAndRunsOnceMoreAfter(t *testing.T) {
	rec := within(t, 4, time.Second, never, func(r *runner) {
		r.add("a")
		<-time.After(100 * time.Millisecond)
		r.add("a")
		r.add("a")
	})
	if got := rec.runs["a"]; len(got) != 2 || got[1] != time.Second {
		t.Errorf("runs at %v", got)
	}
}

func TestAtMostWorkersRunAndAWaitingKeyHoldsNobodyBack(t *testing.T) {
	rec := within(t, 2, time.Second, never, func(r *runner) {
		r.add("a")
		r.add("b")
		r.add("c")
		r.addAt("late", time.Now().Add(10*time.Second))
		r.add("d")
	})
	if rec.most != 2 {
		t.Errorf("%d ran at once", rec.most)
	}
	second := 0
	for _, key := range []string{"a", "b", "c", "d"} {
		if got := rec.runs[key]; len(got) != 1 || got[0] > time.Second {
			t.Errorf("%s ran at %v", key, got)
		} else if got[0] == time.Second {
			second++
		}
	}
	if late := rec.runs["late"]; second != 2 || len(late) != 1 || late[0] != 10*time.Second {
		t.Errorf("%d of 4 waited for a worker, late ran at %v", second, late)
	}
}

func TestTheEarliestOfSeveralTimesWins(t *testing.T) {
	rec := within(t, 1, time.Millisecond, never, func(r *runner) {
		r.addAt("a", time.Now().Add(20*time.Second))
		r.addAt("a", time.Now().Add(5*time.Second))
		r.addAt("a", time.Now().Add(30*time.Second))
	})
	if got := rec.runs["a"]; len(got) != 1 || got[0] != 5*time.Second {
		t.Errorf("runs at %v", got)
	}
}

// A run that is due in a while is due after that while: a clock that is put back meanwhile puts it off by nothing.
func TestClockThatIsPutBackPutsOffNoRun(t *testing.T) {
	r := newRunner(1, func(context.Context, string) time.Duration { return 0 })
	now := time.Now()
	r.addAt("key", now.Add(15*time.Second).Round(0)) // as one that was stored
	if later := steptest.Clocks(now.Add(16*time.Second), -time.Hour); r.entries["key"].at.After(later) {
		t.Errorf("after 16 s it is due in %v", r.entries["key"].at.Sub(later))
	}
}

func TestAFailedKeyRunsAgainAfterItsPause(t *testing.T) {
	rec := within(t, 1, 0, func(_ string, n int) time.Duration {
		if n < 3 {
			return time.Duration(n) * time.Second
		}
		return 0
	}, func(r *runner) { r.add("a") })
	if got := rec.runs["a"]; len(got) != 3 || got[1] != time.Second || got[2] != 3*time.Second {
		t.Errorf("runs at %v", got)
	}
}

func TestThousandsOfKeysThatQueueThemselvesDrainOnStop(t *testing.T) {
	rec := within(t, 8, 10*time.Millisecond, func(string, int) time.Duration { return 100 * time.Millisecond }, func(r *runner) {
		for i := range 3000 {
			r.add(string(rune('a'+i%26)) + time.Duration(i).String())
		}
	})
	if rec.now != 0 || rec.most != 8 || len(rec.runs) != 3000 {
		t.Errorf("%d still run, at most %d at once, %d keys", rec.now, rec.most, len(rec.runs))
	}
}

// What is asked for while it runs follows that run, unless it says itself when it is to be tried again.
func TestRunnerAsks(t *testing.T) {
	for again, want := range map[time.Duration][]time.Duration{
		0:                {0, 2 * time.Second},
		20 * time.Second: {0, 22 * time.Second},
	} {
		rec := within(t, 1, 2*time.Second, func(_ string, n int) time.Duration {
			if n > 1 {
				return 0
			}
			return again
		}, func(r *runner) {
			r.ask("a")
			<-time.NewTimer(time.Second).C
			r.ask("a")
			<-time.NewTimer(5 * time.Second).C
			if again > 0 {
				r.ask("a") // it is due later
			}
		})
		if !slices.Equal(rec.runs["a"], want) {
			t.Errorf("again %v: runs at %v, want %v", again, rec.runs["a"], want)
		}
	}
}
