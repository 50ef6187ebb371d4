package worker

import (
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// TestDeniedIsTriedAgainSoon: no event tells the agent that it was given a right, so it has to ask, and whoever gave the
// right looks at what comes of it. So it is with an object of somebody else, and with a field of one: nothing tells, or nothing that is
// not told all the time, that whoever has it lets it go. What only another revision can mend has time.
func TestDeniedIsTriedAgainSoon(t *testing.T) {
	now := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		fail    apply.Failure
		objects int
		most    time.Duration // between two tries, however many there were
		least   time.Duration // once there were many
	}{
		"forbidden":                {apply.Failure{Reason: apply.ReasonForbidden, Denied: true}, 1, 25 * time.Second, 15 * time.Second},
		"of a thousand":            {apply.Failure{Reason: apply.ReasonForbidden, Denied: true}, 1000, 25 * time.Second, 15 * time.Second},
		"of ten thousand":          {apply.Failure{Reason: apply.ReasonForbidden, Denied: true}, 10_000, 125 * time.Second, 75 * time.Second},
		"of a million":             {apply.Failure{Reason: apply.ReasonForbidden, Denied: true}, 1_000_000, 375 * time.Second, 225 * time.Second},
		"somebody else's":          {apply.Failure{Reason: apply.ReasonConflict, Kind: fleet.ErrExists}, 100, 25 * time.Second, 15 * time.Second},
		"a field of somebody else": {apply.Failure{Reason: apply.ReasonConflict, Kind: fleet.ErrConflict, By: "ana"}, 1, 25 * time.Second, 15 * time.Second},
		"very many of others":      {apply.Failure{Reason: apply.ReasonConflict, Kind: fleet.ErrExists}, 10_000, 375 * time.Second, 225 * time.Second},
		"another module's":         {apply.Failure{Reason: apply.ReasonConflict, Owner: fleet.ModuleRef{Name: "other"}}, 1, 375 * time.Second, 225 * time.Second}, // which tells when it lets go
		"invalid":                  {apply.Failure{Reason: apply.ReasonInvalid}, 1, 375 * time.Second, 225 * time.Second},
		"an API that is not ready": {apply.Failure{Reason: apply.ReasonUnavailable, Transient: true}, 1, 375 * time.Second / 10, 225 * time.Second / 10},
	} {
		w, it := &worker{items: make([]*item, tc.objects)}, &item{}
		for try := range 40 {
			w.failed(it, &tc.fail, now)
			wait := it.next.Sub(now)
			if wait > tc.most || try > 20 && wait < tc.least || wait <= 0 {
				t.Fatalf("%s: try %d comes after %s, not between %s and %s", name, try, wait, tc.least, tc.most)
			}
			now = it.next
		}
	}
}
