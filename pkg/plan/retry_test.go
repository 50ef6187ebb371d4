package plan

import (
	"testing"
	"time"
)

// TestWaitOfARetry: what may go away by itself is tried again soon, what does not seldom, and what is forbidden never so
// seldom that whoever gives the right has to wait for minutes.
func TestWaitOfARetry(t *testing.T) {
	for name, tc := range map[string]struct {
		of   Retry
		want time.Duration
	}{
		"may go away":             {Retry{Transient: true}, 200 * time.Millisecond},
		"a few times":             {Retry{Transient: true, Tries: 3}, 1600 * time.Millisecond},
		"for long":                {Retry{Transient: true, Tries: 1000}, 30 * time.Second},
		"does not":                {Retry{}, 5 * time.Second},
		"does not, for long":      {Retry{Tries: 1000}, 5 * time.Minute},
		"forbidden":               {Retry{Denied: true}, time.Second},
		"forbidden, for long":     {Retry{Denied: true, Tries: 1000, Objects: 10}, 20 * time.Second},
		"forbidden, very many":    {Retry{Denied: true, Tries: 1000, Objects: 10_000}, 100 * time.Second},
		"taken":                   {Retry{Taken: true}, 5 * time.Second},
		"taken, for long":         {Retry{Taken: true, Tries: 1000, Objects: 100}, 20 * time.Second},
		"taken, many":             {Retry{Taken: true, Tries: 1000, Objects: 500}, 100 * time.Second},
		"taken, very many":        {Retry{Taken: true, Tries: 1000, Objects: 10_000}, 5 * time.Minute},
		"forbidden, far too many": {Retry{Denied: true, Tries: 1000, Objects: 1_000_000}, 5 * time.Minute},
	} {
		if got := tc.of.Wait(0.5); got != tc.want {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		if least, most := tc.of.Wait(0), tc.of.Wait(0.999); least != tc.want*3/4 || most > tc.want*5/4 {
			t.Errorf("%s: from %v to %v", name, least, most)
		}
	}
}
