package api

import (
	"testing"
	"time"
)

// A change now and then is shown at once; one watch takes a tenth of a core at most, and all together a fifth.
func TestPace(t *testing.T) {
	for name, tc := range map[string]struct {
		watches    int64
		look, idle time.Duration // cost of a look, and how long nothing changes after it
		share      float64       // of a core, at most
		prompt     bool          // no look is held up
	}{
		"seldom":                   {1, time.Millisecond, 50 * time.Millisecond, 0.1, true},
		"all the time":             {1, time.Millisecond, 0, 0.1, false},
		"many, all the time":       {100, time.Millisecond, 0, 0.2 / 100, false},
		"large ones":               {1, 500 * time.Millisecond, 0, 0.34, false}, // rests a second at most
		"a burst of changes fits":  {1, 200 * time.Microsecond, 2 * time.Millisecond, 0.1, true},
		"few watches of one thing": {3, time.Millisecond, 100 * time.Millisecond, 0.1, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &watchers{}
			p := w.join()
			now := p.last
			start := now
			var spent time.Duration
			held := false
			for range 1000 {
				began := now
				now = now.Add(tc.look)
				spent += tc.look
				p.spend(began, now, tc.watches)
				now = now.Add(tc.idle)
				if p.next.After(now) {
					held, now = true, p.next
				}
			}
			if got := float64(spent-maxSaved) / float64(now.Sub(start)); got > tc.share*1.02 {
				t.Errorf("%.4f of a core, at most %.4f", got, tc.share)
			}
			if tc.prompt && held {
				t.Error("a look was held up")
			}
		})
	}
}
