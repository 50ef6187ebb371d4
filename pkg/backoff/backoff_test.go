package backoff_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/backoff"
)

func TestGrowsToTheMaximumAndResets(t *testing.T) {
	b := backoff.New(backoff.Policy{Min: time.Second, Max: 5 * time.Second, Jitter: -1}, rand.Float64)
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
		if got := b.Next(); got != want {
			t.Errorf("wait %d is %v, want %v", i, got, want)
		}
	}
	b.Reset()
	if got := b.Next(); got != time.Second {
		t.Errorf("after a reset it waits %v", got)
	}
}

func TestJitterOnlyShortens(t *testing.T) {
	p := backoff.Policy{Min: time.Second, Max: time.Minute, Jitter: 0.25}
	if _, wait := p.Next(0, 0); wait != time.Second {
		t.Errorf("without luck it waits %v", wait)
	}
	if _, wait := p.Next(0, 0.999999); wait < 750*time.Millisecond || wait > 751*time.Millisecond {
		t.Errorf("with most luck it waits %v", wait)
	}
}

func TestWaitsStayWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := backoff.Policy{
			Min:    time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "min")),
			Max:    time.Duration(rapid.Int64Range(0, int64(10*time.Hour)).Draw(t, "max")),
			Factor: rapid.Float64Range(0, 1e9).Draw(t, "factor"),
			Jitter: rapid.Float64Range(-1, 2).Draw(t, "jitter"),
		}
		var base, last time.Duration
		for range 40 {
			var wait time.Duration
			base, wait = p.Next(base, rapid.Float64Range(0, 0.999).Draw(t, "random"))
			top := p.Max
			if top <= 0 {
				top = 30 * time.Second
			}
			top = max(top, p.Min)
			if base < p.Min || base > top || base < last || wait < 0 || wait > base {
				t.Fatalf("base %v after %v, wait %v, bounds %v to %v", base, last, wait, p.Min, top)
			}
			last = base
		}
	})
}
