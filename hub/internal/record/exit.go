package record

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// Exit says whom a rollout may take its module from, in the transaction that does. A decision rests on an older look: this asks
// the store once more.
type Exit struct{ placement *fleet.Placement }

// ExitBy goes by the placement of an older revision; 0: by that of the module as it is now. See rollout.State.PlacedBy.
func ExitBy(r store.Reader, ref fleet.ModuleRef, placedBy int64) Exit {
	var m *wire.Module
	var err error
	if placedBy == 0 {
		m, err = Module(r, ref)
	} else {
		m, err = moduleOf(r, ref, placedBy)
	}
	if err != nil || m == nil {
		return Exit{}
	}
	return Exit{&m.Placement}
}

// ExitOf goes by the placement that is in force under a rollout as it is stored.
func ExitOf(r store.Reader, ref fleet.ModuleRef, number int64) Exit {
	ro, _, ok := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(ref, number))
	if !ok {
		return Exit{}
	}
	return ExitBy(r, ref, rollout.PlacedByIn(ro.GetHead()))
}

// Open reports that the module may be taken from a cluster. It does not make the commit depend on the cluster's record, which
// changes for other reasons, too.
func (x Exit) Open(r store.Reader, name fleet.ClusterName) bool {
	rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name))
	if !ok {
		return false
	}
	c := Cluster(rec)
	return assemble.MayLeave(x.placement, &c)
}
