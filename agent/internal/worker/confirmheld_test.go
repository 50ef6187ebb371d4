package worker

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// A confirm is of the list that was shown. What is held by itself at that moment is on no list, and the end of its hold is no confirm, also if
// the hub has not taken the confirm back by then, and over a restart.
func TestConfirmIsNoneOfWhatWasHeld(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			var objects []string
			var held []fleet.ObjectID
			for i := range 40 {
				objects = append(objects, configMap(fmt.Sprintf("cm-%02d", i), "k: v"))
				if i < 15 {
					held = append(held, fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: fmt.Sprintf("cm-%02d", i)})
				}
			}
			s := r.bundle("shop", nil, objects...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			next := r.bundle("shop", nil, objects[30:]...)
			next.Held = assemble.HeldKeys(held)
			r.set([]fleet.Sync{next})
			waits := func(n, left int) {
				t.Helper()
				r.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
					return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && (x.Waiting() == n && x.Extra() == left || x.Extra() < left)
				})
				if got := r.configMaps(); got != 10+left {
					t.Fatalf("%d objects are there, of %d", got, 10+left)
				}
			}
			waits(15, 30)
			if restart {
				r.stop()
				r.start()
			}
			next = r.again(next)
			next.PruneConfirmed = true
			r.set([]fleet.Sync{next})
			r.eventually("what was confirmed is gone", func() bool { return r.configMaps() == 25 })
			waits(0, 15)
			next = r.again(next)
			next.Held = nil
			r.set([]fleet.Sync{next})
			waits(15, 15)
			next = r.again(next)
			next.PruneConfirmed = false
			r.set([]fleet.Sync{next})
			waits(15, 15)
			next = r.again(next)
			next.PruneConfirmed = true
			r.set([]fleet.Sync{next})
			r.eventually("what was confirmed then is gone", func() bool { return r.configMaps() == 10 })
		})
	}
}
