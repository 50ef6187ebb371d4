package record

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// Exit says whom a rollout may take its module from, in the transaction that does. A decision rests on an older look: this asks
// the store once more.
type Exit struct {
	ref       fleet.ModuleRef
	placement *fleet.Placement
	others    *neighbours
	// keepers are modules that stay in clusters which this one leaves unasked.
	keepers map[fleet.ModuleRef]bool
}

// maxKeepers is how many such modules a commit compares by themselves; more are compared as all modules that there are.
const maxKeepers = 16

// ExitBy goes by the placement that is in force under a rollout.
func ExitBy(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord, placedBy int64) Exit {
	x := Exit{ref: ref, others: &neighbours{}, keepers: map[fleet.ModuleRef]bool{}}
	if m, err := InForce(r, ref, ro, placedBy); err == nil {
		x.placement = &m.Placement
	}
	return x
}

// ExitOf goes by the rollout as it is stored.
func ExitOf(r store.Reader, ref fleet.ModuleRef, number int64) Exit {
	ro, _, _ := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(ref, number))
	return ExitBy(r, ref, ro, rollouts.OutlookOf(ro).Places)
}

// ExitInForce goes by what moves the module now; it is one that places it nowhere where the module is being deleted, has no rollout, or another program
// says where it is.
func ExitInForce(r store.Reader, ref fleet.ModuleRef) Exit {
	m, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	by := rollouts.Driven(r, ref).GetRollout().GetNumber()
	if !ok || by == 0 || m.GetDeleting() != "" || rollouts.External(r, ref, m) {
		return Exit{}
	}
	return ExitOf(r, ref, by)
}

// Open reports that the module may be taken from a cluster, or is not there to be taken. The commit depends on the cluster's record, unless the
// reader is store.Untracked; whether the module is there whoever takes it compares.
func (x Exit) Open(r store.Reader, name fleet.ClusterName) bool {
	if !Has(store.Untracked(r), name, x.ref) {
		return true
	}
	if store.DamageOf(r, store.ClusterKey(name)) != nil {
		return false
	}
	rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name))
	if !ok {
		return false
	}
	c := Cluster(rec)
	return assemble.MayLeave(x.placement, &c)
}

// PlacesAgain reports that the removal of the module from a cluster was stopped, and that the placement has it there again.
func (x Exit) PlacesAgain(rec *storev1.ClusterRecord, d *storev1.DesiredRecord) bool {
	return StoppedRemoval(d) && rec != nil && rec.GetRemoving() == "" && x.placement != nil && Placed(*x.placement, Cluster(rec), d)
}

// StoppedRemoval reports that the module was to go from a cluster, but not for good, and that this was stopped.
func StoppedRemoval(d *storev1.DesiredRecord) bool {
	return d.GetTombstone().GetHold() && !d.GetFinal()
}

// Shut reports that the module may not be brought to a cluster: it has nothing of it, and the placement does not have it there. What is not known
// keeps it from none. No commit depends on what it reads.
func (x Exit) Shut(r store.Reader, rec *storev1.ClusterRecord) bool {
	if rec == nil || x.placement == nil {
		return false
	}
	c := Cluster(rec)
	d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(r), store.DesiredKey(c.Name, x.ref))
	return !hasModule(d) && !Placed(*x.placement, c, d)
}

// AsksToLeave reports that a put of the module makes a rollout that waits for a person who confirms that clusters lose it.
func AsksToLeave(r store.Reader, m *wire.Module) bool {
	return !m.External && rollout.AsksToLeave(Candidates(store.Untracked(r), m))
}

// AsksToPart reports that a module leaves a cluster only when a person has confirmed that, if the cluster is as c: the same rule, and others
// that are to leave wait for a person already. What has left before under the same rollout does not count here, but does there.
func AsksToPart(r store.Reader, m *wire.Module, c fleet.Cluster) bool {
	r = store.Untracked(r)
	if run, _ := rollouts.Load(r, m.Ref, rollouts.Driven(r, m.Ref).GetRollout().GetNumber()); run != nil && run.State.HoldSince != 0 {
		return true
	}
	all := Candidates(r, m)
	for i := range all {
		if all[i].Cluster.Name == c.Name {
			all[i].Cluster, all[i].Selected = c, false
			all[i].Last, _ = new(neighbours).none(r, m.Ref, c)
		}
	}
	return rollout.AsksToLeave(all)
}

// Empties reports that a cluster has nothing any more when the module has left it, or perhaps nothing. No commit depends on it before Rests.
func (x Exit) Empties(r store.Reader, name fleet.ClusterName) bool {
	r = store.Untracked(r)
	rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name))
	if !ok || !Has(r, name, x.ref) {
		return false
	}
	stays, _ := x.others.keeper(r, x.ref, Cluster(rec))
	if stays == (fleet.ModuleRef{}) {
		return true
	}
	x.keepers[stays] = true
	return false
}

// Rests makes the commit depend on it that the modules stay of which Empties found that they do.
func (x Exit) Rests(w store.Writer) {
	if len(x.keepers) > maxKeepers {
		w.Unchanged(store.ModulePrefix)
		return
	}
	for stays := range x.keepers {
		w.Get(store.ModuleKey(stays))
	}
}
