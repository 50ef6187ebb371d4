package record

import (
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// neighbours are the modules of the fleet as far as they say where each is to be, each read once under one view of the store. A
// record that is damaged stops no other.
type neighbours struct {
	read  bool // all of them
	known map[fleet.ModuleRef]neighbour
}

// neighbour is a module, by where it has to be.
type neighbour struct {
	// leaves says that it leaves every cluster: it is being deleted, or is none.
	leaves bool
	// placement is the one in force. Nil: it stays where it is, and comes nowhere, for another program assigns it, or nobody
	// moves it.
	placement *fleet.Placement
	// put is that of a put whose source is being fetched; nil: there is none. It may yet fail.
	put *fleet.Placement
	// run is the rollout that decides; nil: not read yet, or it has no members.
	run   *rollouts.Run
	older olderPlacements
	read  bool
}

// stays reports that the module is in a cluster, or comes there, whatever becomes of a put that is being made.
func (n neighbour) stays(c fleet.Cluster, has bool) bool {
	switch {
	case n.leaves, n.put != nil && !assemble.Places(*n.put, c, has):
		return false
	case n.placement == nil:
		return has
	}
	return assemble.Places(*n.placement, c, has)
}

// mayCome reports that the module comes to a cluster if the put that is being made succeeds.
func (n neighbour) mayCome(c fleet.Cluster, has bool) bool {
	return !n.leaves && n.put != nil && assemble.Places(*n.put, c, has)
}

// none reports that a cluster has nothing any more when a module has left it: no other one stays there, or is to come. maybe: one
// comes if its source can be fetched.
func (x *neighbours) none(r store.Reader, ref fleet.ModuleRef, c fleet.Cluster) (none, maybe bool) {
	stays, maybe := x.keeper(r, ref, c)
	if stays != (fleet.ModuleRef{}) {
		return false, false
	}
	return !maybe, maybe
}

// keeper is a module that stays in a cluster when another one has left it, or is to come; zero: there is none.
func (x *neighbours) keeper(r store.Reader, ref fleet.ModuleRef, c fleet.Cluster) (stays fleet.ModuleRef, maybe bool) {
	r = store.Untracked(r)
	there := map[fleet.ModuleRef]bool{}
	for _, in := range ModulesOf(r, c.Name) { // few, and mostly one of them stays
		if there[in] = stands(r, c.Name, in); in != ref && x.keeps(r, in, x.of(r, in), c, there[in]) {
			return in, false
		}
	}
	x.readAll(r)
	for in, n := range x.known {
		if in != ref && x.keeps(r, in, n, c, there[in]) {
			return in, false
		}
		maybe = maybe || in != ref && n.mayCome(c, there[in])
	}
	return fleet.ModuleRef{}, maybe
}

// stands reports that a module is in a cluster, or comes as soon as a removal is carried out: not that it could not be assigned.
func stands(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef) bool {
	d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(c, ref))
	return hasModule(d) && (d.GetTombstone() == nil || d.GetProblem() == "")
}

// keeps reports that a module stays in a cluster, or comes there without a person's word.
func (x *neighbours) keeps(r store.Reader, ref fleet.ModuleRef, n neighbour, c fleet.Cluster, has bool) bool {
	return n.stays(c, has) && (has || x.brings(r, ref, c))
}

// brings reports that a module which a cluster does not have may come there without a person's word, as far as its rollout tells: it is
// not over without the cluster, nobody left that out, and it does not wait for an approval, say, before it comes there.
func (x *neighbours) brings(r store.Reader, ref fleet.ModuleRef, c fleet.Cluster) bool {
	n := x.known[ref]
	if !n.read {
		n.run, _ = rollouts.Load(r, ref, rollouts.Driven(r, ref).GetRollout().GetNumber())
		n.read, n.older = true, olderPlacements{}
		x.known[ref] = n
	}
	return n.run == nil || bringsTo(r, ref, n.run, n.older, c)
}

// bringsTo reports that a rollout may bring the module to a cluster, that does not have it, without a person's word.
func bringsTo(r store.Reader, ref fleet.ModuleRef, run *rollouts.Run, older olderPlacements, c fleet.Cluster) bool {
	places := func(revision int64) bool {
		if revision == run.Plan.Revision {
			return true // by which it is asked
		}
		p := older.of(r, ref, revision)
		return p != nil && assemble.Places(*p, c, false)
	}
	if i := run.Index(c.Name); i >= 0 {
		return run.State.Brings(run.Plan, i, places)
	}
	return run.State.BringsNew(run.Plan, c, places)
}

// olderPlacements are those of older revisions of a module, each read once. Nil: it cannot be read, and has the module nowhere.
type olderPlacements map[int64]*fleet.Placement

func (o olderPlacements) of(r store.Reader, ref fleet.ModuleRef, revision int64) *fleet.Placement {
	p, ok := o[revision]
	if !ok {
		if m, err := ModuleAt(r, ref, revision); err == nil {
			p = &m.Placement
		}
		o[revision] = p
	}
	return p
}

func (x *neighbours) of(r store.Reader, ref fleet.ModuleRef) neighbour {
	n, ok := x.known[ref]
	if !ok {
		rec, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		n = x.note(r, ref, rec)
	}
	return n
}

func (x *neighbours) note(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) neighbour {
	n := neighbour{leaves: true}
	if m, err := wire.ModuleFromProto(rec.GetModule()); err == nil && rec.GetDeleting() == "" {
		n = neighbour{}
		if !rollouts.External(r, ref, rec) {
			n.placement = placementInForce(r, ref)
		}
		if ro, queued := comes(r, ref); ro != nil && !queued && !m.External {
			n.put = &m.Placement
		}
	}
	if x.known == nil {
		x.known = map[fleet.ModuleRef]neighbour{}
	}
	x.known[ref] = n
	return n
}

func (x *neighbours) readAll(r store.Reader) {
	if x.read {
		return
	}
	x.read = true
	store.Scan(r, store.ModulePrefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
		if ref, ok := store.SplitModule(e.Key); ok {
			x.note(r, ref, rec)
		}
		return true
	})
}

// PlacementOf is where a module is to be: by what was put last while its revision is being made, else by the placement that is in
// force. Nil: nobody brings it anywhere, nor does a put that failed, or a rollout that failed before it moved anybody; it is
// being deleted; or another program assigns it.
func PlacementOf(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) *fleet.Placement {
	m, err := wire.ModuleFromProto(rec.GetModule())
	if rec == nil || err != nil || rec.GetDeleting() != "" || rollouts.External(r, ref, rec) {
		return nil
	}
	if put := placementOfPut(r, m, rec); put != nil {
		return put
	}
	return placementInForce(r, ref)
}

// placementOfPut is where a put is going to have a module of which the revision is being made; nil: none is.
func placementOfPut(r store.Reader, m *wire.Module, rec *storev1.ModuleRecord) *fleet.Placement {
	if m.External || rollouts.Unresolved(r, m.Ref) == nil {
		return nil
	}
	return &m.Placement
}

// placementInForce is where the rollout that decides has a module; nil: it moves nobody, or nobody knows.
func placementInForce(r store.Reader, ref fleet.ModuleRef) *fleet.Placement {
	ro := rollouts.Driven(r, ref)
	to := rollouts.OutlookOf(ro)
	if ro.GetRollout().GetStrategy().GetExternal() != nil || to.Places == 0 {
		return nil
	}
	now, err := InForce(r, ref, ro, to.Places)
	if err != nil {
		return nil
	}
	return &now.Placement
}

// Placements are those by which the hub has a module come to clusters and leave them: the one that is in force, and that of a put
// whose revision is being made. None: another program assigns it, or nobody moves it.
func Placements(r store.Reader, m *wire.Module, rec *storev1.ModuleRecord) (out []fleet.Placement) {
	r = store.Untracked(r)
	if rollouts.External(r, m.Ref, rec) {
		return nil
	}
	for _, p := range []*fleet.Placement{placementInForce(r, m.Ref), placementOfPut(r, m, rec)} {
		if p != nil {
			out = append(out, *p)
		}
	}
	return out
}
