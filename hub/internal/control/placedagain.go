package control

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// placedAgain tells in which clusters a removal that was stopped is not to go on, since the placement that is in force has the module there again. It
// is given back as soon as the cluster may be given something, which a cordon, say, keeps from being at once.
type placedAgain struct {
	r   store.Reader // no commit depends on it
	ref fleet.ModuleRef

	exit *record.Exit // nil: not read yet
}

func newPlacedAgain(r store.Reader, ref fleet.ModuleRef) *placedAgain {
	return &placedAgain{r: store.Untracked(r), ref: ref}
}

func (p *placedAgain) in(name fleet.ClusterName, d *storev1.DesiredRecord) bool {
	if !d.GetTombstone().GetHold() || d.GetFinal() {
		return false
	}
	if p.exit == nil {
		p.exit = p.read()
	}
	rec, _, ok := store.Get[*storev1.ClusterRecord](p.r, store.ClusterKey(name))
	return ok && rec.GetRemoving() == "" && p.exit.Places(record.Cluster(rec))
}

// read is the way out of the clusters; one that places it nowhere where the module is being deleted, has no rollout, or another program says where
// it is.
func (p *placedAgain) read() *record.Exit {
	m, _, ok := store.Get[*storev1.ModuleRecord](p.r, store.ModuleKey(p.ref))
	by := rollouts.Driven(p.r, p.ref).GetRollout().GetNumber()
	if !ok || by == 0 || m.GetDeleting() != "" || rollouts.External(p.r, p.ref, m) {
		return &record.Exit{}
	}
	exit := record.ExitOf(p.r, p.ref, by)
	return &exit
}
