package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// refresh is a change of an assignment that no rollout makes: a label that a binding reads, a hold, a confirm, another
// module that lets go what this one lists. Of a tombstone it is the hold.
type refresh struct {
	cluster    fleet.ClusterName
	generation uint64 // of the assignment that was looked at
	taken      uint64 // tells the Kubernetes cluster that what was found out is of from another one that takes its name
	values     map[string]string
	hold       bool
	held       []uint64
	prune      bool
	shown      []uint64 // with prune
	yields     []*agentv1.Yield
	heirs      []*agentv1.Heir
	recycles   []*agentv1.Recycle
	policy     string // of a tombstone
	again      bool   // the assignment that could not be made can be made, or cannot for another reason
	anew       int64  // the revision to be assigned anew, since other overrides of it match the cluster; 0: none
	problem    string // why the assignment could not be made any more, or is not made again
}

// in is the change in the Kubernetes cluster that has the name now.
func (x refresh) in(cluster *storev1.ClusterRecord) refresh {
	x.taken = record.Taken(cluster)
	return x
}

// heldSince reports that something is held that was not when the assignment was looked at. What is made anew is held as it is made.
func (x refresh) heldSince(holds record.Holds, ref fleet.ModuleRef, old *storev1.DesiredRecord) bool {
	if x.problem != "" || x.again || x.anew != 0 {
		return false
	}
	if dead := old.GetTombstone(); dead != nil {
		return !x.hold && holds.StopsRemoval(ref, x.cluster, dead.GetHold())
	}
	s := old.GetSync()
	return !x.hold && holds.Freezes(ref, x.cluster, s.GetHold()) || !slices.Equal(x.held, holds.Objects(ref, x.cluster, s.GetHeld()))
}

// saidSince reports that a person has said since the look what becomes of the objects of a removal. The commit depends on that.
func (x refresh) saidSince(w store.Writer, ref fleet.ModuleRef, old *storev1.DesiredRecord) bool {
	key := store.ModuleKey(ref)
	if old.GetTombstone() == nil || x.problem != "" || x.again || x.anew != 0 || store.DamageOf(w, key) != nil {
		return false
	}
	m, _, _ := store.Get[*storev1.ModuleRecord](w, key)
	said := m.GetDeleting()
	return said != "" && said != x.policy && record.Unsaid(old, said, m.GetFirstRollout())
}

// refresher looks for what has to change of a module's assignments, under one view of the store.
type refresher struct {
	c         *Controller
	r         store.Reader
	holds     record.Holds
	contested map[fleet.ClusterName]bool
	modules   map[int64]*wire.Module
	varying   map[int64]bool // of the modules those of revisions with variants
	assigners map[int64]*assigner
	contests  map[[2]fleet.Digest]*record.Contest
	shared    *record.Shared
	o         outside
	heirs     *record.Succession
	heading   *record.Heading
	called    map[fleet.ModuleRef]bool // who may list what is let go, and has been asked to look
	withheld  *withholder
	again     *placedAgain
	// deleting is the module when it is being deleted: the last word about that counts.
	deleting *storev1.ModuleRecord
}

func (c *Controller) newRefresher(r store.Reader, contested map[fleet.ClusterName]bool) *refresher {
	o := c.outside()
	return &refresher{c: c, r: r, o: o, holds: record.ReadHolds(r, o.now), contested: contested, modules: map[int64]*wire.Module{}, varying: map[int64]bool{},
		assigners: map[int64]*assigner{}, contests: map[[2]fleet.Digest]*record.Contest{}, shared: record.NewShared()}
}

// look compares an assignment with what it would be if it was made now.
func (x *refresher) look(ctx context.Context, t record.Tracked, cluster fleet.Cluster) (refresh, bool, error) {
	s := t.Desired.GetSync()
	possible, otherwise, withheld, err := x.possible(ctx, t, cluster)
	again := refresh{cluster: cluster.Name, generation: t.Generation(), again: true, problem: withheld}
	if possible || err != nil || s == nil {
		return again, possible || otherwise, err
	}
	out := refresh{cluster: cluster.Name, generation: t.Generation(), values: s.GetValues(), hold: x.holds.Freezes(t.Module, cluster.Name, s.GetHold()),
		held: x.holds.Objects(t.Module, cluster.Name, s.GetHeld()), yields: s.GetYields(), heirs: s.GetHeirs(),
		recycles: record.Recycles(x.r, cluster.Name, t.Module)}
	out.prune, out.shown = pruneConfirmed(x.r, t)
	// The last good sync below a problem keeps its values, but a freeze holds for it too.
	if m := x.module(t.Module, s.GetRevision()); m != nil && t.Desired.GetProblem() == "" {
		varies, err := x.varies(ctx, t, cluster)
		stays := err == nil && varies && record.Stands(x.r) // what a restored store would have chosen waits
		if err == nil && varies && !stays {
			return refresh{cluster: cluster.Name, generation: t.Generation(), anew: s.GetRevision()}, true, nil
		}
		v := s.GetValues()
		if stays || errors.Is(err, record.ErrNotRendered) {
			err = nil // the new values come with the new variant: in the one before they would make what neither has
		} else if err == nil {
			v, err = x.values(ctx, t, m, cluster)
		}
		if cannot := (*cannotAssign)(nil); errors.As(err, &cannot) { // it is said, and does not take the good values away
			return refresh{cluster: cluster.Name, generation: t.Generation(), problem: cannot.Error()}, true, nil
		}
		if err != nil {
			return out, false, err
		}
		out.values = v
	}
	if !maps.Equal(out.values, s.GetValues()) {
		out.prune = false // other values drop other objects than a person was asked about
	}
	changed := !maps.Equal(out.values, s.GetValues()) || out.hold != s.GetHold() || out.prune != s.GetPruneConfirmed() ||
		!slices.Equal(out.held, s.GetHeld()) || !record.SameRecycles(out.recycles, s.GetRecycles())
	yields, differ, err := x.yields(ctx, t, out.values)
	if differ {
		out.yields = yields
	}
	if err != nil {
		return out, false, err
	}
	next := &storev1.DesiredRecord{Rollout: t.Desired.GetRollout(), LetGoAt: letGoAt(x.r, t.Desired, out.values, out.hold), Sync: &agentv1.Sync{Revision: s.GetRevision(), Bundle: s.GetBundle(), Values: out.values}}
	heirs, others, err := x.inherit(ctx, t, cluster, next)
	if others {
		out.heirs, out.prune = heirs, out.prune && !lapses(t, heirs, func(id fleet.ObjectID) bool { return x.heirs.Taken(ctx, x.r, cluster.Name, id) })
	}
	if changed || differ || others || err != nil {
		return out, true, err
	}
	return again, otherwise, nil
}

// letLoose is when a removal goes on that stood still: what it lets go others may have come to list meanwhile.
func letLoose(r store.Reader) int64 { return r.Revision() + 1 }

// letGoAt is when a cluster begins to let go what it does not list with these values: what other values drop nobody has looked for yet, nor what
// goes when a hold ends.
func letGoAt(r store.Reader, d *storev1.DesiredRecord, values map[string]string, hold bool) int64 {
	if maps.Equal(values, d.GetSync().GetValues()) && (hold || !d.GetSync().GetHold()) {
		return d.GetLetGoAt()
	}
	return r.Revision() + 1
}

// varies reports that the cluster is to have another variant than that of the sync that it has, and that it can be assigned that; cannotAssign: it cannot. While it is being rendered, ErrNotRendered, the cluster keeps what it has.
func (x *refresher) varies(ctx context.Context, t record.Tracked, cluster fleet.Cluster) (bool, error) {
	revision := t.Desired.GetSync().GetRevision()
	if !x.varying[revision] {
		return false, nil
	}
	a, err := x.assigner(ctx, t, revision)
	if err != nil || a.lost != nil {
		return false, err
	}
	p, err := a.partIn(ctx, x.r, cluster)
	return err == nil && !bytes.Equal(p.GetBundle(), t.Desired.GetSync().GetBundle()), err
}

// values are those that a cluster is to have of its sync as it is now, or cannotAssign. What the sync has it was checked with.
func (x *refresher) values(ctx context.Context, t record.Tracked, m *wire.Module, cluster fleet.Cluster) (map[string]string, error) {
	s := t.Desired.GetSync()
	v, err := assemble.Values(m.Bindings, cluster)
	if err != nil {
		return nil, &cannotAssign{err}
	}
	if maps.Equal(v, s.GetValues()) {
		return v, nil
	}
	a, err := x.assigner(ctx, t, s.GetRevision())
	if err != nil || a.lost != nil {
		return v, err
	}
	p, err := a.partIn(ctx, x.r, cluster)
	if err != nil { // of overrides it was said above
		return v, nil
	}
	return v, a.fit(p.bundle, v)
}

// assigner is that of a revision, read once.
func (x *refresher) assigner(ctx context.Context, t record.Tracked, revision int64) (*assigner, error) {
	a, known := x.assigners[revision]
	if !known {
		var err error
		if a, err = x.c.newAssigner(ctx, x.r, x.o, t.Module, revision, t.Desired.GetRollout()); err != nil {
			return nil, err
		}
		x.assigners[revision] = a
	}
	return a, nil
}

// removal compares a tombstone with the holds, with who is to have what it takes away, and with a later word that the
// objects are to be left. Below a problem it stands still (see assigner.problem), until the cluster can be assigned the module again, or that is
// to leave it after all.
func (x *refresher) removal(ctx context.Context, t record.Tracked, cluster fleet.Cluster) (refresh, bool, error) {
	dead := t.Desired.GetTombstone()
	stands := x.standsStill(t)
	if stands {
		if again, needed, err := x.look(ctx, t, cluster); needed || err != nil {
			return again, needed, err
		}
	}
	x.c.noteAwaiting(t.Module, t.Cluster, nil)
	if x.again == nil {
		x.again = newPlacedAgain(x.r, t.Module)
	}
	out := refresh{cluster: t.Cluster, generation: t.Generation(), hold: stands || x.holds.StopsRemoval(t.Module, t.Cluster, dead.GetHold()) || x.again.in(t.Cluster, t.Desired), heirs: dead.GetHeirs(),
		policy: dead.GetPolicy()}
	if m := x.deleting; m != nil && record.Unsaid(t.Desired, m.GetDeleting(), m.GetFirstRollout()) {
		out.policy = m.GetDeleting()
	}
	next := t.Desired
	if dead.GetHold() && !out.hold {
		next = proto.CloneOf(next)
		next.LetGoAt = letLoose(x.r)
	}
	heirs, others, err := x.inherit(ctx, t, cluster, next)
	if others {
		out.heirs = heirs
	}
	return out, out.hold != dead.GetHold() || out.policy != dead.GetPolicy() || others, err
}

// standsStill reports that a removal goes on no more because the cluster is to have the module again, and cannot be assigned it.
func (x *refresher) standsStill(t record.Tracked) bool {
	if t.Desired.GetProblem() == "" || t.Desired.GetFinal() || x.deleting != nil {
		return false
	}
	rec, _, _ := store.Get[*storev1.ClusterRecord](store.Untracked(x.r), store.ClusterKey(t.Cluster))
	return rec.GetRemoving() == ""
}

// againUnknown is how soon it is looked again who the heirs are, while that cannot be said of all; the longer that lasts the more rarely: each
// look reads all modules, and a module may be behind for weeks. What is found out by a look, a cut or a put is told at once.
const (
	againUnknown    = 500 * time.Millisecond
	maxAgainUnknown = 5 * time.Second
)

// againAfter is how soon it is looked again when it has been unknown for that long.
func againAfter(d time.Duration) time.Duration {
	return min(max(d/10, againUnknown), maxAgainUnknown)
}

// inherit looks again who is to have what the module lets go by next, where something of that may be there. As long as it
// cannot be said of all, all that is let go is kept already, and the agent need not be told who is out of the question. The last
// good sync below a problem goes on to let go what it does not list.
func (x *refresher) inherit(ctx context.Context, t record.Tracked, cluster fleet.Cluster, next *storev1.DesiredRecord) (now []*agentv1.Heir, differ bool, err error) {
	dropping := t.Dropping()
	x.c.noteDropping(t.Module, t.Cluster, dropping)
	if record.Damaged(t.Desired) || !dropping && maps.Equal(t.Desired.GetSync().GetValues(), next.GetSync().GetValues()) {
		return nil, false, nil
	}
	if x.heirs == nil {
		x.heirs = newSuccession(x.o, t.Module)
	}
	if dropping {
		x.c.noteHeading(t.Module, t.Cluster, x.headingOf(t.Module))
	}
	heirs, err := x.heirs.Of(ctx, x.r, cluster, t.Desired, next)
	if err != nil {
		return nil, false, err
	}
	was, err := wire.HeirsFromProto(record.HeirsOf(t.Desired))
	if err != nil {
		return nil, false, err
	}
	unknown := assemble.WaitsForUnknown(heirs)
	lasts := x.c.noteUnknown(t.Module, t.Cluster, unknown)
	if unknown {
		x.callUnlooked(ctx)
		x.c.state(t.Module).mark(t.Cluster)
		x.c.modules.addAt(store.ModuleKey(t.Module), time.Now().Add(againAfter(lasts)))
		if assemble.WaitsForUnknown(was) && assemble.KeepsAll(was, heirs) {
			return nil, false, nil
		}
	}
	return wire.HeirsToProto(heirs), !assemble.EqualHeirs(was, heirs), nil
}

// againAway is how long after it is found that a server is away its modules are looked at again, if something is kept for them: their interval
// may be a day.
const againAway = 5 * time.Minute

// callUnlooked has the sources of those be looked at soon that may be heirs only because they have not seen what the module's source has.
func (x *refresher) callUnlooked(ctx context.Context) {
	for ref := range x.heirs.Unknown {
		if x.called[ref] || !x.heirs.Asks(ref) {
			continue
		}
		if x.called == nil {
			x.called = map[fleet.ModuleRef]bool{}
		}
		rec, _, _ := store.Get[*storev1.ModuleRecord](store.Untracked(x.r), store.ModuleKey(ref))
		switch {
		case rec.GetDeleting() != "":
		case x.heirs.Unlooked(ctx, x.r, ref, rec):
			x.called[ref] = true
			x.c.lookSoon(x.r, ref, rec)
		case x.heirs.Away(ctx, x.r, ref, rec):
			x.called[ref] = true
			x.c.callAt(ref, time.Now().Add(againAway), false) // of several calls the earliest counts, so that asking again puts off nothing
		}
	}
}

// lookSoon has the source of a module be looked at soon, or fetched for its queued put, if it follows nothing.
func (c *Controller) lookSoon(r store.Reader, ref fleet.ModuleRef, rec *storev1.ModuleRecord) {
	if rec.GetModule().GetSpec().GetSource().GetFollow() != nil {
		c.call(ref, false)
		return
	}
	m, err := wire.ModuleFromProto(rec.GetModule())
	if err != nil {
		return // its rollout is going to fail
	}
	number := rollouts.Newest(r, ref)
	key := draftOf(m, rec, number)
	switch _, coming := c.drafts.wants(key); {
	case !coming:
		c.draftAgain(&sight{ref: ref, rec: rec, m: m, number: number}, false)
	case key.rollout != 0 && c.drafts.mayAsk(key, time.Now()): // it could not be had, and what was known of it before is all that anybody asks for
		c.fetchDraft(rec, ref, false)
	}
}

// headingOf is where the module is going.
func (x *refresher) headingOf(ref fleet.ModuleRef) record.Heading {
	if x.heading == nil {
		h := record.HeadingOf(x.r, ref)
		x.heading = &h
	}
	return *x.heading
}

// possible reports that an assignment which could not be made could be made now, or could not for another reason than before: withheld
// is that reason where somebody has said since that the cluster stays where it is.
func (x *refresher) possible(ctx context.Context, t record.Tracked, cluster fleet.Cluster) (possible, otherwise bool, withheld string, err error) {
	if t.Desired.GetProblem() == "" || t.Desired.GetProblemRevision() != t.Desired.GetSync().GetRevision() && record.Stands(x.r) {
		return false, false, "", nil // a restored store gives no cluster another revision: what it knows of that may be taken back since
	}
	a, err := x.assigner(ctx, t, t.Desired.GetProblemRevision())
	if err != nil {
		return false, false, "", err
	}
	if a.lost == nil {
		if _, err := a.partIn(ctx, x.r, cluster); errors.Is(err, record.ErrNotRendered) {
			return false, false, "", nil
		}
	}
	d, err := a.desired(ctx, x.r, cluster, t.Generation())
	if err != nil {
		return false, false, "", err
	}
	problem := d.GetProblem()
	if problem == "" {
		withheld = x.whyWithheld(t)
		problem = withheld
	}
	return problem == "", problem != t.Desired.GetProblem() && !record.Damaged(t.Desired), withheld, nil
}

// whyWithheld is why the cluster is not given what it could have now. What may end without another assignment is looked at again with
// the next change of the module.
func (x *refresher) whyWithheld(t record.Tracked) string {
	if x.withheld == nil {
		x.withheld = &withholder{r: store.Untracked(x.r), ref: t.Module, now: x.o.now}
	}
	why, passes := x.withheld.why(t.Cluster, t.Desired)
	if passes {
		x.c.state(t.Module).mark(t.Cluster)
	}
	return why
}

// yields looks again who owns what the sync lists, where it yields something or something changed.
func (x *refresher) yields(ctx context.Context, t record.Tracked, values map[string]string) (now []*agentv1.Yield, differ bool, err error) {
	s := t.Desired.GetSync()
	own, contested := x.contested[t.Cluster]
	if !contested && len(s.GetYields()) == 0 || record.Damaged(t.Desired) {
		return nil, false, nil
	}
	digest, policies := record.Digest(s.GetBundle()), record.Digest(s.GetPolicies())
	contest := x.contests[[2]fleet.Digest{digest, policies}]
	if contest == nil {
		b, err := x.o.bundles.Get(ctx, digest)
		if err != nil {
			return nil, false, fmt.Errorf("module %s r%d: %w", t.Module.Display(), s.GetRevision(), err)
		}
		contest = x.c.newContest(x.o, t.Module, b, policies)
		contest.Shared = x.shared
		x.contests[[2]fleet.Digest{digest, policies}] = contest
	}
	rivals, err := contest.In(ctx, x.r, t.Cluster, t.Generation(), values)
	if err != nil {
		return nil, false, err
	}
	if own {
		x.c.touchRivals(t.Cluster, rivals.Modules)
	}
	x.c.noteAwaiting(t.Module, t.Cluster, rivals.Yields)
	if len(rivals.Yields) > 0 {
		x.c.againGathered(x.r, t.Module, t.Cluster)
	}
	was, err := wire.YieldsFromProto(s)
	if err != nil {
		return nil, false, err
	}
	return wire.YieldsToProto(rivals.Yields), !assemble.EqualYields(was, rivals.Yields), nil
}

// module is the spec of a revision if it has bindings or variants.
func (x *refresher) module(ref fleet.ModuleRef, number int64) *wire.Module {
	if m, ok := x.modules[number]; ok {
		return m
	}
	var m *wire.Module
	rev, _, ok := store.Get[*storev1.RevisionRecord](store.Untracked(x.r), store.RevisionKey(ref, number))
	if spec := rev.GetRevision().GetSpec(); ok && (len(spec.GetBindings()) > 0 || record.HasVariants(rev)) {
		if v, err := wire.ModuleFromProto(record.ModuleOfRevision(ref, rev)); err == nil {
			m = v
		}
	}
	x.modules[number], x.varying[number] = m, record.HasVariants(rev)
	return m
}

// refresh gives the changed assignments a new generation, one for each transaction. What was found out of one cluster, as that a person let
// something go there, is no order to another one that has taken the name since.
func (c *Controller) refresh(ctx context.Context, ref fleet.ModuleRef, list []refresh) error {
	for chunk := range slices.Chunk(list, c.room.batch) {
		err := c.updateWith(ctx, func(w store.Writer, o outside) error {
			var generation uint64
			holds, again, said := record.ReadHolds(w, o.now), newPlacedAgain(w, ref), &withholder{r: store.Untracked(w), ref: ref, now: o.now}
			for _, x := range chunk {
				key := store.DesiredKey(x.cluster, ref)
				old, _, ok := store.Get[*storev1.DesiredRecord](w, key)
				if !ok || record.Generation(old) != x.generation {
					continue // assigned anew meanwhile, and looked at again
				}
				if record.Taken(record.Anew(w, x.cluster)) != x.taken || x.heldSince(holds, ref, old) || x.saidSince(w, ref, old) {
					continue // and that is looked at
				}
				if record.IsElsewhere(w, x.cluster, ref, old) {
					continue // who took the name would be told next to delete what it has
				}
				if old.GetTombstone().GetHold() && !x.hold {
					w.Unchanged(store.ClusterPrefix)
					if again.in(x.cluster, old) {
						continue
					}
				}
				if generation == 0 {
					generation = record.NextGeneration(w)
				}
				next, err := c.refreshedRecord(ctx, w, o, said, x, old, generation)
				if err != nil {
					return err
				}
				if next != old {
					next.AssignedGeneration = record.AssignedGeneration(old)
				}
				putDesired(w, o, x.cluster, ref, next)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// refreshedRecord is what a cluster has after the change. It is given nothing that it could not have before, and that a person has said by now it is
// not to have.
func (c *Controller) refreshedRecord(ctx context.Context, w store.Writer, o outside, said *withholder, x refresh, old *storev1.DesiredRecord, generation uint64) (*storev1.DesiredRecord, error) {
	ref := said.ref
	if x.problem != "" {
		a := assigner{revision: old.GetSync().GetRevision(), rollout: old.GetRollout()}
		if x.again {
			a.revision = old.GetProblemRevision()
		}
		return a.problem(old, generation, x.problem), nil
	}
	if x.again || x.anew != 0 {
		a, err := c.newAssigner(ctx, w, o, ref, cmp.Or(x.anew, old.GetProblemRevision()), old.GetRollout())
		if err != nil {
			return nil, err
		}
		cluster, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(w), store.ClusterKey(x.cluster))
		if !ok {
			return old, nil
		}
		next, err := a.desired(ctx, w, record.Cluster(cluster), generation)
		if err != nil || x.anew != 0 || next.GetProblem() != "" {
			return next, err
		}
		w.Unchanged(store.ClusterPrefix)
		if why, _ := said.why(x.cluster, old); why != "" {
			return a.problem(old, generation, why), nil
		}
		return next, nil
	}
	next := proto.CloneOf(old)
	next.ChosenGeneration = record.ChosenGeneration(old)
	if dead := next.GetTombstone(); dead != nil {
		if dead.Hold && !x.hold {
			next.LetGoAt = letLoose(w)
		}
		dead.Generation, dead.Hold, dead.Heirs, dead.Policy = generation, x.hold, x.heirs, x.policy
		return next, nil
	}
	next.LetGoAt = letGoAt(w, old, x.values, x.hold)
	s := next.GetSync()
	s.Generation, s.Values, s.Hold, s.PruneConfirmed, s.Yields, s.Heirs, s.Recycles = generation, x.values, x.hold, x.prune, x.yields, x.heirs, x.recycles
	s.Held, s.PruneShown = x.held, nil
	if x.prune {
		s.PruneShown = x.shown
	}
	record.Remember(w, x.cluster, ref, old, next)
	return next, nil
}

// Bounds of the list that a hold shows. Its digest is of the whole list, however much of that is shown; a record that no
// transaction takes would keep the holds of other clusters from being written, too.
const (
	maxItem      = 512
	maxItemBytes = 256 << 10
)

// fitItems cuts a list of some of what there is to what a record may hold, and says how many are left out of all.
func fitItems(items []string, all int) []string {
	var out []string
	bytes := 0
	for _, item := range items {
		if len(item) > maxItem {
			item = strings.ToValidUTF8(item[:maxItem], "") + "…"
		}
		if bytes += len(item); bytes > maxItemBytes {
			break
		}
		out = append(out, item)
	}
	return fleet.AndMore(out, all)
}
