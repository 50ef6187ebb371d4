package worker

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// TestConfirmOfTheShorterList: what the agent waits with grows while a person answers what he was shown. What came to the list is in no answer to
// the shorter one, and is asked for anew, also by an agent that starts meanwhile.
func TestConfirmOfTheShorterList(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			var objects []string
			var ids []fleet.ObjectID
			for i := range 40 {
				objects = append(objects, configMap(fmt.Sprintf("cm-%02d", i), "k: v"))
				ids = append(ids, fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: fmt.Sprintf("cm-%02d", i)})
			}
			s := r.bundle("shop", nil, objects...)
			r.set([]fleet.Sync{s})
			r.ready(s)
			next := r.bundle("shop", nil, objects[30:]...)
			next.Held = assemble.HeldKeys(ids[:15])
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
			next = r.again(next)
			next.Held = nil // the list grows
			r.set([]fleet.Sync{next})
			waits(30, 30)
			if restart {
				r.stop()
				r.start()
			}
			next = r.again(next)
			next.PruneConfirmed, next.PruneShown = true, assemble.HeldKeys(ids[15:30]) // which answers the list of before
			r.set([]fleet.Sync{next})
			waits(15, 15)
			if restart {
				r.stop()
				r.start()
				r.set(r.current.Syncs)
				waits(15, 15)
			}
			next = r.again(next)
			next.PruneConfirmed, next.PruneShown = false, nil // the hub asks for the rest
			r.set([]fleet.Sync{next})
			waits(15, 15)
			next = r.again(next)
			next.PruneConfirmed, next.PruneShown = true, assemble.HeldKeys(ids[:15])
			r.set([]fleet.Sync{next})
			r.eventually("what was confirmed then is gone", func() bool { return r.configMaps() == 10 })
		})
	}
}
