package worker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// dropsSlowly has a module of 30 objects drop the first nine, of which one hangs when the others are gone: all wait for finalizers first.
func (r *rig) dropsSlowly() (objects []string) {
	r.t.Helper()
	objects = maps30(9)
	r.t.Cleanup(func() { r.unfinalize(9) })
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", nil, objects[9:]...)
	r.set([]fleet.Sync{next})
	left := func(n int) func(fleet.SyncStatus) bool {
		return func(x fleet.SyncStatus) bool {
			return x.Generation == next.Generation && x.Ready && len(x.Extras) == n && x.Extras[0].Reason == "Terminating"
		}
	}
	r.wait("shop", "all are on their way out", left(9))
	r.unfinalize(8)
	r.wait("shop", "all but one are gone", left(1))
	return objects
}

// TestGuardCountsWhatWentSlowly: what is gone long after its DELETE, when its finalizers are taken, counts with what the next revision drops.
func TestGuardCountsWhatWentSlowly(t *testing.T) {
	r := newRig(t)
	objects := r.dropsSlowly()
	if c := r.m.inventory.Losing(fleet.ModuleRef{Project: "default", Name: "shop"}); c.Owned != 30 || c.Gone != 8 {
		t.Errorf("when 8 of 30 are gone: %+v", c)
	}
	third := r.bundle("shop", nil, objects[18:]...)
	r.set([]fleet.Sync{third})
	status := r.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
		return x.Generation == third.Generation && x.Ready && (x.Waiting() > 0 || r.configMaps() < 22)
	})
	if n := r.configMaps(); n != 22 || status.Waiting() != 9 {
		t.Errorf("%d objects are left, %d wait for a confirm", n, status.Waiting())
	}
}

// TestChangeThatWasTakenBackIsOver: when a revision lists again what the one before dropped, and it is there again, a later one that drops less
// than half asks nobody.
func TestChangeThatWasTakenBackIsOver(t *testing.T) {
	r := newRig(t)
	objects := r.dropsSlowly()
	back := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{back})
	r.unfinalize(9)
	r.ready(back)
	next := r.bundle("shop", nil, objects[9:]...)
	r.set([]fleet.Sync{next})
	if status := r.wait("shop", "looked at", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && x.Extra() > 0 }); status.Waiting() != 0 {
		t.Fatalf("%d wait for a confirm", status.Waiting())
	}
	r.unfinalize(9)
	r.wait("shop", "dropped", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && x.Extra() == 0 })
}
