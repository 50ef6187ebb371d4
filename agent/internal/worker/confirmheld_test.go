package worker

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// A confirm is of the list that was shown. What is held by itself at that moment is on no list, and the end of its hold is no confirm: the hub has
// taken the confirm back by then.
func TestConfirmThatIsTakenBackWhenOnlyHeldIsLeft(t *testing.T) {
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
	for _, confirmed := range []bool{false, true, false} {
		next = r.again(next)
		next.Held, next.PruneConfirmed = assemble.HeldKeys(held), confirmed
		r.set([]fleet.Sync{next})
		r.wait("shop", "taken", func(x fleet.SyncStatus) bool {
			return x.Generation == next.Generation && (x.Waiting() == 15) == (r.configMaps() == 40) && x.Phase == fleet.PhaseApplied && x.Extra() == r.configMaps()-10
		})
		if confirmed {
			r.eventually("what was confirmed is gone", func() bool { return r.configMaps() == 25 })
		}
	}
	next = r.again(next)
	next.Held = nil
	r.set([]fleet.Sync{next})
	r.wait("shop", "asked about those too", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() == 15 })
	if n := r.configMaps(); n != 25 {
		t.Errorf("%d of 25 are left", n)
	}
}
