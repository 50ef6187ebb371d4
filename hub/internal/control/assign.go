package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// batchClusters is how many clusters one transaction of materialisation writes.
const batchClusters = 100

// assigner makes desired records of one revision of one module.
type assigner struct {
	c        *Controller
	ref      fleet.ModuleRef
	revision int64
	lost     error // why there is nothing to assign
	rev      *storev1.RevisionRecord
	module   *wire.Module // of the revision's spec: its bindings and overrides
	o        outside
	parts    map[string]*part // by the key of the variant
	shared   *record.Shared   // nil: the contests of each part have their own
	holds    record.Holds
	rollout  int64
	override map[fleet.ClusterName]bool // prune confirmed
	heirs    *record.Succession
}

// part is what the clusters of one variant are assigned.
type part struct {
	*storev1.VariantRecord
	bundle  fleet.Bundle
	contest *record.Contest
}

// newAssigner reads the revision. One that is lost, or what it consists of, can still be assigned: the clusters then say
// why they do not get it, and nothing else waits for it.
func (c *Controller) newAssigner(ctx context.Context, r store.Reader, o outside, ref fleet.ModuleRef, revision, rolloutNumber int64) (*assigner, error) {
	a := &assigner{c: c, ref: ref, revision: revision, holds: record.ReadHolds(r, o.now), rollout: rolloutNumber,
		heirs: newSuccession(o, ref), o: o, parts: map[string]*part{}}
	err := a.read(ctx, r)
	if isLost(err) {
		a.lost, err = err, nil
	}
	return a, err
}

// isLost reports that something of a revision is not there any more, or cannot be read.
func isLost(err error) bool {
	return errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt) || errors.Is(err, fleet.ErrInvalid)
}

func (a *assigner) read(ctx context.Context, r store.Reader) error {
	if err := record.DamagedRevision(r, a.ref, a.revision); err != nil {
		return err
	}
	rev, _, ok := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(a.ref, a.revision))
	if !ok {
		return fmt.Errorf("module %s: revision r%d: %w", a.ref.Display(), a.revision, fleet.ErrNotFound)
	}
	m, err := wire.ModuleFromProto(record.ModuleOfRevision(a.ref, rev))
	if err != nil {
		return fmt.Errorf("module %s r%d: %w", a.ref.Display(), a.revision, err)
	}
	a.rev, a.module = rev, m
	if !record.HasVariants(rev) {
		_, err = a.partIn(ctx, r, fleet.Cluster{})
	}
	return err
}

// partIn is what a cluster is assigned. One that is not rendered yet is asked for, and is cannotAssign, as is what cannot be rendered.
func (a *assigner) partIn(ctx context.Context, r store.Reader, cluster fleet.Cluster) (*part, error) {
	variant := record.VariantFor(r, a.ref, a.rev, a.module.Overrides, cluster)
	if p := a.parts[variant.Key()]; p != nil {
		return p, nil
	}
	v, err := record.VariantIn(a.rev, variant)
	if err != nil {
		a.c.wantVariant(a.ref, a.rev, variant)
		return nil, &cannotAssign{err}
	}
	b, err := a.o.bundles.Get(ctx, record.Digest(v.GetBundle()))
	if err != nil {
		err = fmt.Errorf("module %s r%d: %w", a.ref.Display(), a.revision, err)
		if isLost(err) && record.HasVariants(a.rev) {
			err = &cannotAssign{err}
		}
		return nil, err
	}
	if b.Digest.IsZero() {
		return nil, errLacks // who has nothing of a bundle would take all that is assigned for dropped, and ask what every module lists
	}
	p := &part{v, b, a.c.newContest(a.o, a.ref, b, record.Digest(v.GetPolicies()))}
	if a.shared != nil {
		p.contest.Shared = a.shared
	}
	a.parts[variant.Key()] = p
	return p, nil
}

// desired makes the record for a cluster. What cannot be made keeps the last good sync, or the tombstone that is not
// confirmed yet, and says why.
func (a *assigner) desired(ctx context.Context, r store.Reader, cluster fleet.Cluster, generation uint64) (*storev1.DesiredRecord, error) {
	old, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(cluster.Name, a.ref))
	next, err := a.order(ctx, r, cluster, old, generation)
	var cannot *cannotAssign
	if errors.As(err, &cannot) {
		return a.problem(old, generation, cannot.Error()), nil
	}
	return next, err
}

// cannotAssign is why a cluster cannot have a revision as both are now.
type cannotAssign struct{ error }

// Unwrap yields the cause.
func (e *cannotAssign) Unwrap() error { return e.error }

// order makes the record by which a cluster has the revision from now on, or cannotAssign.
func (a *assigner) order(ctx context.Context, r store.Reader, cluster fleet.Cluster, old *storev1.DesiredRecord, generation uint64) (*storev1.DesiredRecord, error) {
	if a.lost != nil {
		return nil, &cannotAssign{a.lost}
	}
	values, err := assemble.Values(a.module.Bindings, cluster)
	if err != nil {
		return nil, &cannotAssign{err}
	}
	p, err := a.partIn(ctx, r, cluster)
	if err != nil {
		return nil, err
	}
	if err := a.fit(p.bundle, values); err != nil {
		return nil, err
	}
	rivals, err := p.contest.In(ctx, r, cluster.Name, generation, values)
	if err != nil {
		return nil, err
	}
	can, chosen := record.Chosen(r, a.ref, a.rev, a.module.Overrides, cluster, old, generation)
	next := &storev1.DesiredRecord{Rollout: a.rollout, Needs: p.GetNeeds(), Capabilities: can, ChosenGeneration: chosen, Sync: &agentv1.Sync{Module: a.ref.String(), Generation: generation,
		Revision: a.rev.GetRevision().GetNumber(), Bundle: p.GetBundle(), Values: values, Policies: p.GetPolicies(), Watched: uint32(len(a.module.Watch)),
		Hold: a.holds.Freezes(a.ref, cluster.Name, wasHeld(old)), Held: a.holds.Objects(a.ref, cluster.Name, old.GetSync().GetHeld()),
		Objects: uint32(len(p.bundle.Entries)), PruneConfirmed: a.override[cluster.Name], Yields: wire.YieldsToProto(rivals.Yields),
		Recycles: recycles(r, cluster.Name, a.ref, a.revision), DependsOn: wire.DependsOnToProto(a.module.DependsOn)}}
	return a.heirs.Assign(ctx, r, cluster, old, next)
}

// fit checks what values make of the identities of what a bundle of the revision lists; an error is cannotAssign.
func (a *assigner) fit(b fleet.Bundle, values map[string]string) error {
	if err := manifest.ResolveIDs(b.Entries, values); err != nil {
		return &cannotAssign{err}
	}
	if _, err := assemble.Watched(a.module.Watch, b.Entries, values); err != nil {
		return &cannotAssign{err}
	}
	return nil
}

// wasHeld reports that nothing is written by the record.
func wasHeld(d *storev1.DesiredRecord) bool {
	return d.GetSync().GetHold() || d.GetTombstone().GetHold()
}

// stopped reports that nothing, or not every object, may be deleted by the record.
func stopped(d *storev1.DesiredRecord) bool { return wasHeld(d) || len(d.GetSync().GetHeld()) > 0 }

// problem keeps what a cluster has. A removal that the cluster was told of stands still meanwhile: it is to have the module again. But one of a
// deleted module goes on, which comes before another one of its name.
func (a *assigner) problem(old *storev1.DesiredRecord, generation uint64, why string) *storev1.DesiredRecord {
	dead := old.GetTombstone()
	if dead != nil && !old.GetFinal() && !dead.GetHold() {
		dead = proto.CloneOf(dead)
		dead.Hold, dead.Generation = true, generation
	}
	if record.Damaged(old) { // what it has stays unknown
		why = record.StillDamaged(a.revision, why)
	}
	return &storev1.DesiredRecord{Sync: old.GetSync(), Needs: old.GetNeeds(), Capabilities: old.GetCapabilities(), ChosenGeneration: record.ChosenGeneration(old), Tombstone: dead, Final: old.GetFinal(), Rollout: a.rollout, Problem: why, ProblemGeneration: generation,
		ProblemRevision: a.revision, FirstGeneration: old.GetFirstGeneration(), Before: old.GetBefore(), BeforeUnknown: old.GetBeforeUnknown(), LetGoAt: old.GetLetGoAt()}
}

// materialize writes the desired records of one step, in fenced batches; repeating it changes nothing. A record of a
// later generation is left alone. refused are clusters that the module was not taken from, because they are placed again.
func (c *Controller) materialize(ctx context.Context, run *rollouts.Run, step *storev1.StepRecord) (refused []fleet.ClusterName, err error) {
	if step.GetRevision() == 0 {
		return c.leave(ctx, run.Module, leavers(run, step), leaving{policy: step.GetLeavePolicy(), generation: step.GetGeneration(), rollout: run.Number})
	}
	g := group{revision: step.GetRevision(), clusters: getters(run, step), shared: c.state(run.Module).common()}
	for len(g.clusters) > 0 {
		done := 0
		if err := c.updateWith(ctx, func(w store.Writer, o outside) (err error) {
			if err := rollouts.Stands(w, run.Module, run.Number); err != nil {
				return err
			}
			part := g
			if run.State.Back == nil {
				part.shut = shutBy(store.Untracked(w), run)
			}
			part.clusters = g.clusters[:min(len(g.clusters), c.room.inline)]
			done, _, err = c.putAssigned(ctx, w, o, run, part, step.GetGeneration())
			return err
		}); err != nil {
			return nil, err
		}
		g.clusters = g.clusters[done:]
	}
	return nil, nil
}

// putAssigned writes the desired records of clusters that are to have a revision, and says of how many, for it stops when they
// are writeBytes. What the commit finds to be of a later generation stays: it was assigned after the step. Who is given something is
// there as of the commit: what is left of a cluster that was forgotten would be an order to another one that is made under its name.
func (c *Controller) putAssigned(ctx context.Context, w store.Writer, o outside, run *rollouts.Run, g group, generation uint64) (done, bytes int, err error) {
	a, err := c.newAssigner(ctx, w, o, run.Module, g.revision, run.Number)
	if err != nil {
		return 0, 0, err
	}
	if a.shared = g.shared; a.shared != nil {
		for _, p := range a.parts {
			p.contest.Shared = a.shared
		}
	}
	lacks, changed := false, uint64(0)
	for _, name := range names(g.clusters) {
		if bytes > writeBytes {
			return done, bytes, nil
		}
		done++
		key := store.DesiredKey(name, run.Module)
		cluster, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(w), store.ClusterKey(name)) // one that is damaged stops no other
		old, _, _ := store.Get[*storev1.DesiredRecord](w, key)
		if !ok || cluster.GetRemoving() != "" || record.AssignedGeneration(old) >= generation {
			continue
		}
		w.Get(store.ClusterKey(name))
		if old == nil && g.shut != nil && g.shut(cluster) {
			continue
		}
		desired, err := a.desired(ctx, w, record.Cluster(cluster), ofStep(w, old, generation, &changed))
		if errors.Is(err, errLacks) { // the bundles of other variants are found to be lacking in the same run
			lacks = true
			continue
		}
		if err != nil {
			return 0, 0, err
		}
		putDesired(w, o, name, run.Module, desired)
		bytes += proto.Size(desired)
	}
	if lacks {
		return 0, 0, errLacks
	}
	return done, bytes, nil
}

// shutBy is record.Exit.Shut by the placement in force, which is read when it is first asked for: most clusters of a step have something of the module.
func shutBy(r store.Reader, run *rollouts.Run) func(*storev1.ClusterRecord) bool {
	exit := sync.OnceValue(func() record.Exit { return record.ExitOf(r, run.Module, run.Number) })
	return func(rec *storev1.ClusterRecord) bool { return exit().Shut(r, rec) }
}

// ofStep is the generation by which a step gives a cluster something, or takes it: the step's own, or a new one where what the cluster has was changed
// since the step was taken, which is changed, for all of a transaction.
func ofStep(w store.Writer, old *storev1.DesiredRecord, generation uint64, changed *uint64) uint64 {
	if record.Generation(old) < generation {
		return generation
	}
	if *changed == 0 {
		*changed = record.NextGeneration(w)
	}
	return *changed
}

// getters are the clusters of a step about which its rollout has said nothing since. Of one that it has taken the module from nothing else may tell: where
// there was nothing yet, or a removal, that has left no record of its generation. One that a crash has made forget the step is moved again.
func getters(run *rollouts.Run, step *storev1.StepRecord) []string {
	return slices.DeleteFunc(slices.Clone(step.GetClusters()), func(name string) bool {
		i := run.Index(fleet.ClusterName(name))
		return i >= 0 && run.State.Record(i).Generation != step.GetGeneration()
	})
}

// leavers are the clusters of a step that the rollout still wants to leave by it. One that was selected again since does not,
// whatever came later.
func leavers(run *rollouts.Run, step *storev1.StepRecord) (out []fleet.ClusterName) {
	for _, name := range names(step.GetClusters()) {
		i := run.Index(name)
		if i < 0 {
			continue
		}
		if r := run.State.Record(i); r.Leaving() && r.Generation == step.GetGeneration() {
			out = append(out, name)
		}
	}
	return out
}

// writeBytes bounds the records of one transaction.
const writeBytes = 1 << 20

// write puts records in fenced transactions of at most store.MaxOps and writeBytes each; a nil message deletes.
func (c *Controller) write(ctx context.Context, puts map[string]proto.Message) error {
	keys := slices.Sorted(maps.Keys(puts))
	for len(keys) > 0 {
		n, bytes := 0, 0
		for n < len(keys) && n < store.MaxOps && (n == 0 || bytes+size(puts[keys[n]]) <= writeBytes) {
			bytes += size(puts[keys[n]])
			n++
		}
		err := c.update(ctx, func(w store.Writer) error {
			for _, k := range keys[:n] {
				if puts[k] == nil {
					w.Delete(k)
					continue
				}
				w.Put(k, puts[k])
			}
			return nil
		})
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

func size(m proto.Message) int {
	if m == nil {
		return 0
	}
	return proto.Size(m)
}

// leaving is why a module leaves clusters, and with what generation.
type leaving struct {
	policy string
	// generation 0 allots one.
	generation uint64
	// deleted: the module is, and its policy is that of its record, as of the commit; if it is deleted no more, nothing is written.
	deleted bool
	// rollout is the one whose step it is: it takes the module from no cluster that is placed. 0: it is none's.
	rollout int64
}

// leave replaces the syncs of the module in the clusters by tombstones, but for those where it is refused.
func (c *Controller) leave(ctx context.Context, ref fleet.ModuleRef, clusters []fleet.ClusterName, l leaving) (refused []fleet.ClusterName, err error) {
	if l.policy == "" {
		l.policy = fleet.DeleteDelete
	}
	many := c.room.batch
	if l.rollout != 0 { // whose placement is looked at, too
		many = c.room.inline
	}
	for chunk := range slices.Chunk(clusters, many) {
		var kept []fleet.ClusterName
		err := c.updateWith(ctx, func(w store.Writer, o outside) (err error) {
			kept, err = leaveSome(ctx, w, o, ref, chunk, l)
			return err
		})
		if err != nil {
			return nil, err
		}
		refused = append(refused, kept...)
	}
	return refused, nil
}

func leaveSome(ctx context.Context, w store.Writer, o outside, ref fleet.ModuleRef, clusters []fleet.ClusterName, l leaving) (refused []fleet.ClusterName, err error) {
	var deleted *storev1.ModuleRecord
	if l.deleted {
		if deleted = deletedModule(w, ref); deleted == nil {
			return nil, nil
		}
		l.policy = deleted.GetDeleting() // the last word about its objects
	}
	var exit record.Exit
	if l.rollout != 0 {
		if err := rollouts.Stands(w, ref, l.rollout); err != nil {
			return nil, err
		}
		exit = record.ExitOf(w, ref, l.rollout)
	}
	heirs, holds, changed := newSuccession(o, ref), record.ReadHolds(w, o.now), uint64(0)
	for _, name := range clusters {
		old, _, ok := store.Get[*storev1.DesiredRecord](w, store.DesiredKey(name, ref))
		if !ok || record.Leaves(old, l.deleted) || l.late(old) {
			continue
		}
		// Who has the name is the same until the commit, for a generation is allotted in that.
		if l.deleted && record.Elsewhere(old, deleted.DeletedTakes, record.Anew(w, name)) {
			continue
		}
		if l.rollout != 0 && !exit.Open(w, name) {
			refused = append(refused, name)
			continue
		}
		if l.generation == 0 {
			l.generation = record.NextGeneration(w)
		}
		this := l
		this.generation = ofStep(w, old, l.generation, &changed)
		if err := putLeaving(ctx, w, heirs, holds, ref, name, old, this); err != nil {
			return nil, err
		}
	}
	return refused, nil
}

// late reports that something was assigned after the step was taken.
func (l leaving) late(old *storev1.DesiredRecord) bool {
	return l.rollout != 0 && record.AssignedGeneration(old) >= l.generation
}

// isDeleted reads whether the module is being deleted, so that the commit fails if that changes.
func isDeleted(w store.Writer, ref fleet.ModuleRef) bool { return deletedModule(w, ref) != nil }

// deletedModule is the record of a module that is being deleted; nil: it is not. The commit depends on it.
func deletedModule(w store.Writer, ref fleet.ModuleRef) *storev1.ModuleRecord {
	rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(ref))
	if rec.GetDeleting() == "" {
		return nil
	}
	return rec
}

func putLeaving(ctx context.Context, w store.Writer, heirs *record.Succession, holds record.Holds, ref fleet.ModuleRef, cluster fleet.ClusterName, old *storev1.DesiredRecord, l leaving) error {
	key := store.DesiredKey(cluster, ref)
	next, err := heirs.Leave(ctx, w, cluster, old, &agentv1.Tombstone{Module: ref.String(), Generation: l.generation, Policy: l.policy,
		Hold: holds.StopsRemoval(ref, cluster, stopped(old)), DependsOn: old.GetSync().GetDependsOn()}, l.deleted)
	switch {
	case err != nil:
		return err
	case next == nil:
		w.Delete(key)
	default:
		w.Put(key, next)
	}
	return nil
}

// gone is a tombstone that is carried out, or that nobody will ever carry out; or a sync of a deleted module that is Elsewhere.
type gone struct {
	cluster    fleet.ClusterName
	generation uint64
}

// forget drops what is left of the module in clusters whose agent confirmed the tombstone, and in clusters that never
// had an agent. The floor keeps the generation of the cluster's assemblage from going down. What was assigned again
// meanwhile stays, and what waited for the end of a final tombstone has its turn.
func (c *Controller) forget(ctx context.Context, ref fleet.ModuleRef, clusters []gone) error {
	for chunk := range slices.Chunk(clusters, max(c.room.batch/4, 1)) {
		err := c.updateWith(ctx, func(w store.Writer, o outside) error {
			gen := record.NextGeneration(w)
			for _, x := range chunk {
				name := x.cluster
				d, _, ok := store.Get[*storev1.DesiredRecord](w, store.DesiredKey(name, ref))
				if !ok || record.GivenGeneration(d) != x.generation {
					continue
				}
				if err := c.putNext(ctx, w, o, ref, name, d, gen); err != nil {
					return err
				}
				w.Delete(store.ObservedKey(name, ref))
				if _, ordered := store.Untracked(w).Get(store.RecycleKey(name, ref)); ordered {
					w.Delete(store.RecycleKey(name, ref))
				}
				floor, _, _ := store.Get[*storev1.FloorRecord](w, store.FloorKey(name))
				w.Put(store.FloorKey(name), &storev1.FloorRecord{Generation: gen, Hold: floor.GetHold()})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// comesAfter reports that something is to follow a tombstone that is carried out.
func comesAfter(d *storev1.DesiredRecord) bool {
	return d.GetNextRevision() != 0 || d.GetProblemRevision() != 0
}

// putNext puts what follows a tombstone that is carried out: what waited for that, made anew, or nothing. Of a deleted module nothing follows.
func (c *Controller) putNext(ctx context.Context, w store.Writer, o outside, ref fleet.ModuleRef, cluster fleet.ClusterName, old *storev1.DesiredRecord, generation uint64) error {
	key := store.DesiredKey(cluster, ref)
	revision := max(old.GetNextRevision(), old.GetProblemRevision())
	to, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(w), store.ClusterKey(cluster))
	w.Delete(key)
	if revision == 0 || !ok || isDeleted(w, ref) {
		return nil
	}
	a, err := c.newAssigner(ctx, w, o, ref, revision, old.GetRollout())
	if err != nil {
		return err
	}
	next, err := a.desired(ctx, w, record.Cluster(to), generation)
	if err != nil {
		return err
	}
	if old.GetProblem() != "" && next.GetProblem() == "" {
		w.Unchanged(store.ClusterPrefix)
		said := withholder{r: store.Untracked(w), ref: ref, now: o.now}
		if why, _ := said.why(cluster, old); why != "" {
			next = a.problem(nil, generation, why)
		}
	}
	w.Put(key, next)
	return nil
}

func names(in []string) []fleet.ClusterName {
	out := make([]fleet.ClusterName, len(in))
	for i, n := range in {
		out[i] = fleet.ClusterName(n)
	}
	return out
}
