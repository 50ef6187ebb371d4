package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhoAsksTogether: nobody is told by lists that began before he asked, nor by what another one gave up; and a bug in them keeps nobody waiting.
func TestWhoAsksTogether(t *testing.T) {
	const precise = "15:04:05.000000000"
	synctest.Test(t, func(t *testing.T) {
		var all together
		here, times := around{space: "a"}, atomic.Int64{}
		find := func(context.Context) bindings {
			times.Add(1)
			began := time.Now()
			<-time.After(time.Second)
			return bindings{unclear: map[string]error{"a": errors.New(began.Format(precise))}}
		}
		ask := func(ctx context.Context, at around) {
			asked := time.Now()
			got := all.bindings(ctx, at, find)
			if ctx.Err() != nil {
				return
			}
			if said := got.unclear["a"].Error(); said < asked.Format(precise) {
				t.Errorf("who asked at %s is told what began at %s", asked, said)
			}
		}
		after := func(d time.Duration, ask func()) { go func() { <-time.After(d); ask() }() }
		for i := range 10 {
			after(time.Duration(i)*100*time.Millisecond, func() { ask(t.Context(), here) })
		}
		<-time.After(time.Minute)
		if n := times.Swap(0); n != 2 {
			t.Errorf("it was looked for %d times for ten who asked while the first was told", n)
		}
		go ask(t.Context(), around{space: "b"})
		short, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		go ask(t.Context(), here)
		after(100*time.Millisecond, func() { ask(short, here) }) // it begins after a second, and is given up half a second later
		for range 3 {
			after(200*time.Millisecond, func() { ask(t.Context(), here) })
		}
		<-time.After(time.Minute)
		if n := times.Load(); n != 1+1+1+3 {
			t.Errorf("it was looked for %d times", n)
		}
		go func() {
			defer func() { _ = recover() }()
			all.bindings(t.Context(), here, func(context.Context) bindings { <-time.After(time.Second); panic("a bug") })
		}()
		synctest.Wait()
		ask(t.Context(), here)
		if len(all.waiting)+len(all.running) > 0 {
			t.Errorf("%d and %d are left", len(all.waiting), len(all.running))
		}
	})
}
