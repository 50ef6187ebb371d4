package control

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
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
	if !record.StoppedRemoval(d) {
		return false // before the placement is read, which few need
	}
	if p.exit == nil {
		exit := record.ExitInForce(p.r, p.ref)
		p.exit = &exit
	}
	rec, _, _ := store.Get[*storev1.ClusterRecord](p.r, store.ClusterKey(name))
	return p.exit.PlacesAgain(rec, d)
}
