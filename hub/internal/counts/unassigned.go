package counts

import (
	"maps"
	"reflect"
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Unassigned are the clusters that the placement of a module takes and that have nothing of it.
type Unassigned struct {
	// Seen are those whose agent is there and sees its cluster, Away the others.
	Seen, Away int
}

// placing is what of a module says where it is to be.
type placing struct {
	placement  fleet.Placement
	unassigned Unassigned
}

// land is what of a cluster placements ask for, and the modules that it is to have and has nothing of.
type land struct {
	cluster    fleet.Cluster
	seen       bool
	unassigned map[fleet.ModuleRef]bool
}

// Unassigned are the clusters that are to have the module and have nothing of it (see record.PlacementOf). A module that is being
// deleted, or that another program assigns, waits for none.
func (v *View) Unassigned(ref fleet.ModuleRef) Unassigned {
	if p := v.x.placings[ref]; p != nil {
		return p.unassigned
	}
	return Unassigned{}
}

func (u *Unassigned) count(seen bool, n int) {
	if seen {
		u.Seen += n
		return
	}
	u.Away += n
}

// updateUnassigned looks again at what is dirty, after the cells.
func (x *Index) updateUnassigned(r store.Reader, d *dirt) {
	for ref := range d.modules {
		if x.readPlacing(r, ref) {
			for c := range x.lands {
				x.pair(c, ref)
			}
		}
	}
	for c := range d.clusters {
		if x.readLand(r, c) {
			for ref := range x.placings {
				x.pair(c, ref)
			}
		}
	}
	for c := range d.places {
		x.see(r, c)
	}
	for c, refs := range d.cells {
		x.see(r, c)
		for ref := range refs {
			x.pair(c, ref)
		}
	}
}

// readPlacing reads where a module is to be, and reports whether that has changed.
func (x *Index) readPlacing(r store.Reader, ref fleet.ModuleRef) (changed bool) {
	rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	now := record.PlacementOf(r, ref, rec)
	old, had := x.placings[ref]
	if now == nil {
		for c := range x.lands {
			x.assign(c, ref)
		}
		delete(x.placings, ref)
		return false
	}
	if had && reflect.DeepEqual(old.placement, *now) {
		return false
	}
	if !had {
		old = &placing{}
		x.placings[ref] = old
	}
	old.placement = *now
	return true
}

// readLand reads what placements ask of a cluster, and reports whether that has changed.
func (x *Index) readLand(r store.Reader, c fleet.ClusterName) (changed bool) {
	rec, _, ok := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(c))
	old, had := x.lands[c]
	if !ok || rec.GetRemoving() != "" {
		if had {
			for ref := range maps.Clone(old.unassigned) {
				x.assign(c, ref)
			}
			delete(x.lands, c)
		}
		return false
	}
	now := record.Cluster(rec)
	if had && maps.Equal(old.cluster.Labels, now.Labels) && slices.Equal(old.cluster.Taints, now.Taints) {
		return false
	}
	if !had {
		old = &land{unassigned: map[fleet.ModuleRef]bool{}, seen: record.Seen(r, c, x.connected(c))}
		x.lands[c] = old
	}
	old.cluster = now
	return true
}

// see looks whether a cluster is seen.
func (x *Index) see(r store.Reader, c fleet.ClusterName) {
	l := x.lands[c]
	if l == nil {
		return
	}
	seen := record.Seen(r, c, x.connected(c))
	if seen == l.seen {
		return
	}
	for ref := range l.unassigned {
		x.placings[ref].unassigned.count(l.seen, -1)
		x.placings[ref].unassigned.count(seen, 1)
	}
	l.seen = seen
}

// pair decides whether a cluster waits for a module.
func (x *Index) pair(c fleet.ClusterName, ref fleet.ModuleRef) {
	l, p := x.lands[c], x.placings[ref]
	if l == nil || p == nil {
		return
	}
	has := false
	if k := x.clusters[c]; k != nil {
		_, has = k.cells[ref]
	}
	switch waits := !has && assemble.Places(p.placement, l.cluster, false); {
	case !waits:
		x.assign(c, ref)
	case !l.unassigned[ref]:
		l.unassigned[ref] = true
		p.unassigned.count(l.seen, 1)
	}
}

// assign ends that a cluster waits for a module.
func (x *Index) assign(c fleet.ClusterName, ref fleet.ModuleRef) {
	l := x.lands[c]
	if l == nil || !l.unassigned[ref] {
		return
	}
	delete(l.unassigned, ref)
	x.placings[ref].unassigned.count(l.seen, -1)
}
