package worker

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// dropping is a module that drops 30 of its 40 objects, of which the first 15 are held by themselves and the agent waits with the others.
type dropping struct {
	*rig
	next fleet.Sync
	ids  []fleet.ObjectID
}

func newDropping(t *testing.T) *dropping {
	d := &dropping{rig: newRig(t)}
	var objects []string
	for i := range 40 {
		name := fmt.Sprintf("cm-%02d", i)
		objects = append(objects, configMap(name, "k: v"))
		d.ids = append(d.ids, fleet.ObjectID{Kind: "ConfigMap", Namespace: d.ns, Name: name})
	}
	s := d.bundle("shop", nil, objects...)
	d.set([]fleet.Sync{s})
	d.ready(s)
	d.next = d.bundle("shop", nil, objects[30:]...)
	d.next.Held = assemble.HeldKeys(d.ids[:15])
	d.set([]fleet.Sync{d.next})
	d.waits(15, 30)
	return d
}

// tell changes what the hub says of the module.
func (d *dropping) tell(change func(*fleet.Sync)) {
	d.next = d.again(d.next)
	change(&d.next)
	d.set([]fleet.Sync{d.next})
}

// waits is for the agent to wait with n of those that the module lists no more, of which left are there.
func (d *dropping) waits(n, left int) {
	d.t.Helper()
	d.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
		return x.Generation == d.next.Generation && x.Phase == fleet.PhaseApplied && (x.Waiting() == n && x.Extra() == left || x.Extra() < left)
	})
	if got := d.configMaps(); got != 10+left {
		d.t.Fatalf("%d objects are there, of %d", got, 10+left)
	}
}

// A confirm is of the list that was shown. What is held by itself at that moment is on no list, and the end of its hold is no confirm, also if
// the hub has not taken the confirm back by then, and over a restart.
func TestConfirmIsNoneOfWhatWasHeld(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			d := newDropping(t)
			if restart {
				d.stop()
				d.start()
			}
			d.tell(func(s *fleet.Sync) { s.PruneConfirmed = true })
			d.eventually("what was confirmed is gone", func() bool { return d.configMaps() == 25 })
			d.waits(0, 15)
			d.tell(func(s *fleet.Sync) { s.Held = nil })
			d.waits(15, 15)
			d.tell(func(s *fleet.Sync) { s.PruneConfirmed = false })
			d.waits(15, 15)
			d.tell(func(s *fleet.Sync) { s.PruneConfirmed = true })
			d.eventually("what was confirmed then is gone", func() bool { return d.configMaps() == 10 })
		})
	}
}
