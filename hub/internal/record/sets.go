package record

import (
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// AwaitedSets are the sets of clusters in which modules are not ready now on which another one depends. Of modules that wait for each other
// in a circle, as revisions of different times may, none is waited for. No commit depends on what it reads.
func (v View) AwaitedSets(r store.Reader, of fleet.ModuleRef, sets []wire.SetDependency) []rollout.AwaitedSet {
	r = store.Untracked(r)
	var out []rollout.AwaitedSet
	for _, d := range sets {
		if assemble.Reaches(d.Module, of, func(ref fleet.ModuleRef) []fleet.ModuleRef { return drivenOn(r, ref) }) {
			continue
		}
		if set := v.awaited(r, d); set != nil {
			out = append(out, *set)
		}
	}
	return out
}

// drivenOn are the modules on which one depends by the revision to which its rollout leads.
func drivenOn(r store.Reader, ref fleet.ModuleRef) []fleet.ModuleRef {
	rev := Revision(r, ref, rollouts.OutlookOf(rollouts.Driven(r, ref)).Leads)
	return wire.DependenciesOf(ref, rev.GetRevision().GetSpec())
}

// awaited judges one module in one set of clusters.
func (v View) awaited(r store.Reader, d wire.SetDependency) *rollout.AwaitedSet {
	name, selector := d.Module.Name, d.Clusters.String()
	because := func(code string) *rollout.AwaitedSet {
		return &rollout.AwaitedSet{Module: name, Selector: selector, Code: code}
	}
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(d.Module))
	switch damaged, _ := rollouts.Damaged(r, d.Module); {
	case damaged != 0, !ok && store.DamageOf(r, store.ModuleKey(d.Module)) != nil:
		return because(rollout.SetDamaged)
	case !ok:
		return because(rollout.SetNoModule)
	case rec.GetDeleting() != "":
		return because(rollout.SetDeleting)
	}
	if ro, queued := comes(r, d.Module); ro != nil && !queued {
		return because(rollout.SetSource)
	}
	if driven := rollouts.Driven(r, d.Module); driven.GetRollout().GetRevision() != 0 && rollouts.StateOf(driven) == rollout.Failed {
		return because(rollout.SetFailed) // what it has is not what was put
	}
	at, err := wayOf(r, d.Module, rec)
	if err != nil {
		return because(rollout.SetDamaged)
	}
	var all []rollout.Standing
	for _, cl := range Clusters(r) {
		if c := Cluster(cl); cl.GetRemoving() == "" && d.Clusters.Matches(c.Labels) {
			all = append(all, v.standing(r, at, cl, c))
		}
	}
	for _, cluster := range Unreadable(r, d.Module) { // which may be one of the set
		all = append(all, rollout.Standing{Cluster: cluster, Placed: true, Reason: "Damaged", Detail: DamagedCluster(cluster)})
	}
	return rollout.AwaitSet(name, selector, len(all), all)
}

// way is where a module is going in all of its clusters, as far as others wait for that.
type way struct {
	ref fleet.ModuleRef
	rollout.Outlook
	run    *rollouts.Run    // nil: there is none, or it is not planned yet
	places *fleet.Placement // nil: it stays where it is
	older  olderPlacements
	pins   []rollout.Pin
}

func wayOf(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) (way, error) {
	at := way{ref: ref}
	if rollouts.External(r, ref, rec) {
		return at, nil // what another program has assigned is what it wants there
	}
	ro := rollouts.Driven(r, ref)
	if ro == nil || ro.GetRollout().GetStrategy().GetExternal() != nil {
		return at, nil
	}
	at.Outlook = rollouts.OutlookOf(ro)
	at.pins = rollouts.Pins(r, ref, ro.GetRollout().GetNumber()+1)
	run, err := rollouts.Load(r, ref, ro.GetRollout().GetNumber())
	if err != nil || at.Leads == 0 {
		return at, err
	}
	m, err := InForce(r, ref, ro, at.Places)
	if err != nil {
		return at, err
	}
	at.run, at.places, at.older = run, &m.Placement, olderPlacements{}
	return at, nil
}

// standing is how the module stands in a cluster.
func (v View) standing(r store.Reader, at way, rec *storev1.ClusterRecord, c fleet.Cluster) rollout.Standing {
	connected := Connected(rec, v.Connected(c.Name))
	place := At(r, c.Name, connected).of(rec)
	t, assigned := place.Track(at.ref)
	s := rollout.Standing{Cluster: c.Name, Wants: at.Leads}
	has := assigned && hasModule(t.Desired)
	if s.Placed = at.placed(r, c, t.Desired); !s.Placed {
		return s
	}
	if has {
		s.Revision = t.Revision()
	}
	if has && at.stays(c.Name, s.Revision) {
		s.Wants = 0
	}
	silent := connected && v.Live != nil && !v.Live(c.Name)
	s.Ready = has && t.Tracker.Ready && !silent
	switch {
	case s.Ready:
	case rec.GetLock() != nil:
		s.Reason, s.Since = rollout.ReasonLocked, rollout.At(rec.GetLock().GetSince().AsTime())
	case !connected:
		s.Reason, s.Since = rollout.ReasonDisconnected, rollout.At(LastWord(r, c.Name, place.sessionRecord()))
	case silent:
		s.Reason = rollout.ReasonNotHeard
	case place.blinding() != nil:
		s.Reason, s.Since = rollout.ReasonNotSeen, rollout.At(place.blinding().Since)
	case assigned:
		s.Reason, s.Detail = t.Tracker.Reason, t.Tracker.Message
		s.Since = rollout.At(t.Tracker.Since)
	}
	if connected && !silent && s.Wants != 0 && s.Revision != s.Wants { // why its turn does not come
		switch {
		case c.Cordoned:
			s.Reason, s.Since, s.Detail = rollout.ReasonCordoned, 0, ""
		case v.Holds.Stops(at.ref, c.Name) || place.frozen():
			s.Reason, s.Since, s.Detail = rollout.ReasonHeld, 0, ""
		}
	}
	return s
}

// placed reports that the module is in a cluster to stay, or is to come there by itself.
func (at *way) placed(r store.Reader, c fleet.Cluster, d *storev1.DesiredRecord) bool {
	has := hasModule(d)
	if at.places == nil {
		return has
	}
	if !Placed(*at.places, c, d) {
		return false
	}
	if has || at.run == nil {
		return true
	}
	i, s := at.run.Index(c.Name), &at.run.State
	switch {
	case s.State.Ended():
		return bringsTo(r, at.ref, at.run, at.older, c)
	case i < 0:
		return at.run.Plan.Strategy.LateJoiners != rollout.LateIgnore && at.run.Plan.JoinsIn(c.Labels) >= 0
	}
	return s.Record(i).State != rollout.ClusterSkipped
}

// stays reports that a cluster keeps the revision that it has: a person has pinned or skipped it, or it was not to go back with the others.
func (at *way) stays(c fleet.ClusterName, revision int64) bool {
	if at.Kept != 0 && revision == at.Kept || slices.ContainsFunc(at.pins, func(p rollout.Pin) bool { return p.Cluster == c }) {
		return true
	}
	if at.run == nil {
		return false
	}
	i := at.run.Index(c)
	return i >= 0 && at.run.State.Record(i).State == rollout.ClusterSkipped
}
