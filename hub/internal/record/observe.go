package record

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

// View is what observing the members of a rollout needs besides the store.
type View struct {
	Connected func(fleet.ClusterName) bool
	// Live says whose session is live. Others that are connected are only expected to come back. Nil: all that are connected.
	Live  func(fleet.ClusterName) bool
	Holds Holds
	// Module is the module as the revision of the run has it: its placement says who is selected, whatever was put since and
	// has no revision yet. Nil: that cannot be read.
	Module *wire.Module
	// Older is the module as the revision has it whose placement counts from a rollback on, and OlderRevision its number. Nil
	// and 0: nobody knows, or there is none.
	Older         *wire.Module
	OlderRevision int64

	neighbours *neighbours
	now        time.Time
	// asking is which revisions differ by what clusters can do, by their numbers, as far as that was looked at.
	asking map[int64]bool
}

// toldWithin is how long an agent has, once its session is live, to tell what its cluster can do, before it gets what Helm takes for one.
const toldWithin = time.Minute

// toldAtLeast is how long it has in a session, if others broke before or it was away for most of the time; but never longer than twice that in all.
const toldAtLeast = 5 * time.Second

// untoldAgain is after how long an agent has that time anew, whatever became of its sessions.
const untoldAgain = time.Hour

// UntoldSince is from when on the agent of a session that begins now has that time. Sessions that break again and again do not begin it
// anew: a cluster whose agent cannot tell would be waited for as long as they do.
func UntoldSince(before *storev1.SessionRecord, now time.Time) *timestamppb.Timestamp {
	since := before.GetUntold()
	within := func(t *timestamppb.Timestamp, most time.Duration) bool {
		ago := now.Sub(t.AsTime())
		return ago >= 0 && ago < most
	}
	switch {
	case since == nil, !within(since, untoldAgain), before.GetEnded() != nil && !within(before.GetEnded(), toldWithin):
	case before.GetVoidBefore() == before.GetEpoch(): // of another join
	case slices.Contains(before.GetFeatures(), wire.FeatureCapabilities):
		return since
	}
	return timestamppb.New(now)
}

// untold is until when the cluster waits for its agent to tell that; 0: it does not.
func (v View) untold(r store.Reader, run *rollouts.Run, name fleet.ClusterName, s *storev1.SessionRecord) rollout.Instant {
	if v.asking == nil || s.GetStarted() == nil || !slices.Contains(s.GetFeatures(), wire.FeatureCapabilities) || !capabilities(r, name).IsZero() {
		return 0
	}
	since := cmp.Or(s.GetUntold(), s.GetStarted()).AsTime()
	until := since.Add(toldWithin)
	if least := s.GetStarted().AsTime().Add(toldAtLeast); until.Before(least) && !least.After(since.Add(2*toldWithin)) {
		until = least
	}
	if left := until.Sub(v.now); left <= 0 || left > 2*toldWithin { // a clock was set back
		return 0
	}
	back := run.State.Back
	if !v.asks(r, run.Module, run.Plan.Revision) && !v.asks(r, run.Module, run.Plan.From) && (back == nil || !v.asks(r, run.Module, back.To)) {
		return 0
	}
	return rollout.At(until)
}

// asks reports that what a revision is differs by what clusters can do.
func (v View) asks(r store.Reader, ref fleet.ModuleRef, revision int64) bool {
	asks, known := v.asking[revision]
	if !known && revision != 0 {
		asks = Revision(store.Untracked(r), ref, revision).GetByCapabilities()
		v.asking[revision] = asks
	}
	return asks
}

// All looks at every member of a run and finds the newcomers.
func (v View) All(r store.Reader, run *rollouts.Run) {
	n := run.State.Len(run.Plan)
	run.Observed, run.Labels = make([]rollout.Observed, n), make([]map[string]string, n)
	for i := range n {
		v.member(r, run, i)
	}
	run.Newcomers, run.Matched, run.Older, run.Unplaced = nil, nil, v.OlderRevision, v.Module == nil
	if v.Module == nil {
		return
	}
	for _, rec := range Clusters(r) {
		v.newcomer(r, run, rec)
	}
	run.Matched = v.matched(run)
}

// matched finds which overrides of the plan that matched no selected cluster match one by now.
func (v View) matched(run *rollouts.Run) []string {
	if len(run.Plan.EmptyOverrides) == 0 || v.Module == nil {
		return nil
	}
	var selected []fleet.Cluster
	for i, o := range run.Observed {
		if !o.Gone && !o.Unselected {
			selected = append(selected, fleet.Cluster{Labels: run.Labels[i]})
		}
	}
	for _, n := range run.Newcomers {
		if !n.Observed.Unselected {
			selected = append(selected, n.Cluster)
		}
	}
	if len(selected) == 0 {
		return nil
	}
	still := assemble.Unmatched(v.Module.Overrides, selected)
	return slices.DeleteFunc(slices.Clone(run.Plan.EmptyOverrides), func(name string) bool { return slices.Contains(still, name) })
}

// Some looks again at some clusters only, or at all if other placements are known than when they were looked at.
func (v View) Some(r store.Reader, run *rollouts.Run, dirty map[fleet.ClusterName]struct{}) {
	if run.Older != v.OlderRevision || run.Unplaced != (v.Module == nil) {
		v.All(r, run)
		return
	}
	for len(run.Observed) < run.State.Len(run.Plan) {
		run.Observed, run.Labels = append(run.Observed, rollout.Observed{}), append(run.Labels, nil)
		v.member(r, run, len(run.Observed)-1)
	}
	dropNewcomers(run, dirty)
	for c := range dirty {
		if i := run.Index(c); i >= 0 {
			v.member(r, run, i)
			continue
		}
		if rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(c)); ok && v.Module != nil {
			v.newcomer(r, run, rec)
		}
	}
	run.Matched = v.matched(run)
}

// stepsOpen reports that clusters which the run has moved may still wait for what it gave them.
func stepsOpen(r store.Reader, run *rollouts.Run) (open bool) {
	steps := store.StepsOf(run.Module, run.Number)
	r.Scan(steps, func(store.Entry) bool {
		open = true
		return false
	})
	return open || len(r.Damaged(steps)) > 0
}

func dropNewcomers(run *rollouts.Run, dirty map[fleet.ClusterName]struct{}) {
	kept := run.Newcomers[:0]
	for _, n := range run.Newcomers {
		if _, again := dirty[n.Cluster.Name]; !again && run.Index(n.Cluster.Name) < 0 {
			kept = append(kept, n)
		}
	}
	run.Newcomers = kept
}

func (v View) newcomer(r store.Reader, run *rollouts.Run, rec *storev1.ClusterRecord) {
	c := Cluster(rec)
	if rec.GetRemoving() != "" || run.Index(c.Name) >= 0 || !assemble.Selects(v.Module.Placement, c) && (v.Older == nil || !assemble.Selects(v.Older.Placement, c)) {
		return
	}
	o, _ := v.observe(r, run, c.Name)
	if o.Unselected && (v.Older == nil || o.UnselectedOlder) {
		return
	}
	run.Newcomers = append(run.Newcomers, rollout.Newcomer{Cluster: c, Observed: o})
}

// unselected reports that a placement is known and does not have the module in a cluster, where d is what it was given of it.
func unselected(m *wire.Module, c fleet.Cluster, d *storev1.DesiredRecord) bool {
	return m != nil && !Placed(m.Placement, c, d)
}

func (v View) member(r store.Reader, run *rollouts.Run, i int) {
	name := run.State.Member(run.Plan, i).Cluster
	o, labels := v.observe(r, run, name)
	switch m := run.State.Record(i); {
	case o.Generation != 0 || m.Generation == 0:
	case m.Revision == 0:
		o.Removed = true // its tombstone was confirmed and forgotten, perhaps before the rollout saw the confirmation
	case !o.Gone && !o.Lost && store.DamageOf(r, store.ClusterKey(name)) == nil:
		o.Anew = !stepsOpen(r, run)
	}
	run.Observed[i], run.Labels[i] = o, labels
}

// observe is what is known of a cluster, and its labels.
func (v View) observe(r store.Reader, run *rollouts.Run, name fleet.ClusterName) (rollout.Observed, map[string]string) {
	rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name))
	switch {
	case !ok && store.DamageOf(r, store.ClusterKey(name)) != nil:
		return unreadableMember(r, run.Module, name), nil
	case !ok:
		return rollout.Observed{Gone: true}, nil
	}
	c := Cluster(rec)
	connected := Connected(rec, v.Connected(name))
	place := At(r, name, connected).of(rec)
	t, ok := place.Track(run.Module)
	seen, has := connected && place.blinding() == nil, hasModule(t.Desired)
	o := rollout.Observed{Connected: seen, NotSeen: connected && !seen, Locked: rec.GetLock() != nil, NotJoined: rec.GetJoined() == nil, Cordoned: c.Cordoned, Held: v.Holds.keepsBack(place, run.Module, t),
		Gone: rec.GetRemoving() != "", Taken: Taken(rec), Unselected: unselected(v.Module, c, t.Desired), UnselectedOlder: unselected(v.Older, c, t.Desired)}
	if s := run.Plan.StageFor(c.Labels); s >= 0 {
		o.Stage = int16(s + 1)
	}
	o.Silent = connected && v.Live != nil && !v.Live(name)
	if s := place.sessionRecord(); connected && !o.Silent && s.GetStarted() != nil {
		o.Session = rollout.At(s.GetStarted().AsTime())
	}
	if connected {
		o.Untold = v.untold(r, run, name, place.sessionRecord())
	}
	if !ok {
		return o, c.Labels
	}
	if o.Silent {
		t.Input.Unheard = true
		t.Tracker = tracker.Fold(t.Input)
	}
	o.Unheard = t.Input.Unheard && t.Tracker.Current
	o.Generation, o.Revision, o.Lost = t.Generation(), t.Revision(), Damaged(t.Desired)
	o.Without = t.Desired.GetSync() == nil
	if (o.Unselected || o.UnselectedOlder) && has {
		o.Last, o.MayBeLast = v.neighbours.none(r, run.Module, c)
	}
	o.Ready, o.Failed, o.Removed = t.Tracker.Proves(), t.Tracker.Failed && !t.losesValue(), t.Tracker.Removed || t.keptForItself()
	o.Well = t.Tracker.DoesWell()
	o.Reason, o.Message = t.Tracker.Reason, t.Tracker.Message
	if o.Silent {
		o.Reason, o.Message = rollout.ReasonNotHeard, ""
	}
	return o, c.Labels
}

// losesValue reports that the cluster has the revision, by values that it has no more: somebody has changed its labels since, which says
// nothing of the revision.
func (t *Tracked) losesValue() bool {
	n := t.Desired.GetProblemRevision()
	return t.Desired.GetProblem() != "" && n != 0 && n == t.Desired.GetSync().GetRevision()
}

// keptForItself reports that all that a removal has left is kept for what the module itself is about to list. That comes when the
// rollout that removes it has ended, so the rollout does not wait for it.
func (t *Tracked) keptForItself() bool {
	heirs := t.Desired.GetTombstone().GetHeirs()
	if t.Void || t.Input.Observed == nil || len(heirs) == 0 ||
		slices.ContainsFunc(heirs, func(h *agentv1.Heir) bool { return h.GetModule() != t.Module.String() }) {
		return false
	}
	left, all := answer(t.Observed, t.Desired)
	return all && len(left) > 0 && !slices.ContainsFunc(left, func(x fleet.ExtraObject) bool { return x.Reason != plan.ReasonAwaitingHeir })
}

// Has reports that the module is assigned to the cluster, and is not leaving it.
func Has(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef) bool {
	d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(c, ref))
	return hasModule(d)
}

// Places reports whether a module is to be in a cluster, as it stands there now (see assemble.Places). Where it is not selected nothing is read.
func Places(r store.Reader, p fleet.Placement, c fleet.Cluster, ref fleet.ModuleRef) bool {
	if !assemble.Selects(p, c) {
		return false
	}
	d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(c.Name, ref))
	return Placed(p, c, d)
}

// Placed reports whether a module is to be in a cluster, where d is what it was given of it; nil: nothing. A taint keeps no module away whose removal
// was stopped: its objects are there.
func Placed(p fleet.Placement, c fleet.Cluster, d *storev1.DesiredRecord) bool {
	return assemble.Places(p, c, hasModule(d) || StoppedRemoval(d))
}

// hasModule counts what comes after a removal, also where it cannot be assigned yet: it comes as soon as it can.
func hasModule(d *storev1.DesiredRecord) bool {
	return d != nil && (d.GetTombstone() == nil || d.GetNextRevision() != 0 || d.GetProblemRevision() != 0)
}

// unreadableMember is what is known of a cluster whose record is damaged: what it was given. It is away, and it leaves no
// placement, for nobody knows its labels.
func unreadableMember(r store.Reader, ref fleet.ModuleRef, name fleet.ClusterName) rollout.Observed {
	t, _ := Track(r, name, ref, false)
	return rollout.Observed{Generation: t.Generation(), Revision: t.Revision(), Reason: "Damaged", Message: DamagedCluster(name)}
}

// ModuleAt is a module as one of its revisions has it.
func ModuleAt(r store.Reader, ref fleet.ModuleRef, revision int64) (*wire.Module, error) {
	if err := DamagedRevision(r, ref, revision); err != nil {
		return nil, err
	}
	rev, _, ok := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(ref, revision))
	if !ok {
		return nil, fmt.Errorf("module %s: revision r%d: %w", ref.Display(), revision, fleet.ErrNotFound)
	}
	m, err := wire.ModuleFromProto(ModuleOfRevision(ref, rev))
	if err != nil {
		return nil, fmt.Errorf("module %s r%d: %w", ref.Display(), revision, err)
	}
	return m, nil
}

// ModuleOf is a module as its rollout has it: the rollout's revision says it, whatever was put since. Where that cannot be read
// the module itself does, as long as nothing was.
func ModuleOf(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord) (*wire.Module, error) {
	m, err := ModuleAt(r, ref, ro.GetRollout().GetRevision())
	if err == nil {
		return m, nil
	}
	rec, _, ok := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
	if !ok || rollouts.Newest(store.Untracked(r), ref) != ro.GetRollout().GetNumber() {
		return nil, err
	}
	if m, err = wire.ModuleFromProto(rec.GetModule()); err != nil {
		return nil, fmt.Errorf("module %s: %w", ref.Display(), err)
	}
	return m, nil
}

// InForce is the module as the revision has it whose placement counts under a rollout, that of its own or an older one (see
// rollout.State.PlacedBy).
func InForce(r store.Reader, ref fleet.ModuleRef, ro *storev1.RolloutRecord, revision int64) (*wire.Module, error) {
	if revision != 0 && revision != ro.GetRollout().GetRevision() {
		return ModuleAt(r, ref, revision)
	}
	return ModuleOf(r, ref, ro)
}

// Candidates are the clusters among which a rollout of the module finds its members.
func Candidates(r store.Reader, m *wire.Module) []rollout.Candidate {
	var out []rollout.Candidate
	all, assigned := &neighbours{}, assignedIn(r, m.Ref)
	for _, cl := range Clusters(r) {
		if cl.GetRemoving() != "" {
			continue
		}
		v := Cluster(cl)
		var d *storev1.DesiredRecord
		if assigned(v.Name) {
			d, _, _ = store.Get[*storev1.DesiredRecord](r, store.DesiredKey(v.Name, m.Ref))
		}
		has := hasModule(d)
		cand := rollout.Candidate{Cluster: v, Selected: Placed(m.Placement, v, d)}
		if has {
			cand.Revision, cand.Without, cand.Lost = Tracked{Desired: d}.Revision(), d.GetSync() == nil, Damaged(d)
		}
		if has && !cand.Selected {
			cand.Last, _ = all.none(r, m.Ref, v)
		}
		out = append(out, cand)
	}
	return out
}
