package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

const (
	// inlineDesired is up to how many moved clusters the step's transaction also writes their desired records.
	inlineDesired = 40
	// comparedClusters is of how many moved clusters the step's transaction compares each record: as many as a small one compares together
	// with their desired records.
	comparedClusters = 2 * inlineDesired
	// inlineBytes is up to how many bytes of these records: values may be long.
	inlineBytes = 256 << 10
	// inlineChunks is up to how many chunks it also writes; more follow right after it.
	inlineChunks = 60
	// stepBytes is how many bytes of names one step record holds.
	stepBytes = 64 << 10
)

// room is how many clusters one transaction writes: tests have less.
type room struct {
	inline, compared int // see inlineDesired, and comparedClusters
	batch            int
}

var usualRoom = room{inline: inlineDesired, compared: comparedClusters, batch: batchClusters}

// errInline asks for a step record instead of desired records in the step's own transaction.
var errInline = errors.New("too large for the step's transaction")

// commit writes a decision: head, changed chunks and the step, in one transaction with the generation that all moved
// clusters get. From that commit they are assigned. It reports whether there was anything to write.
func (c *Controller) commit(ctx context.Context, run *rollouts.Run, d rollout.Decision) (written bool, err error) {
	if run.Planned() && !d.HeadChanged && len(d.Changed) == 0 && len(d.Assign) == 0 && len(d.Holds) == 0 && len(d.Outcomes) == 0 {
		return false, nil
	}
	began := time.Now()
	before, with, after := divide(run.Chunks(d), int(run.Record.GetChunks()))
	groups := assignGroups(run, d)
	for i := range groups {
		groups[i].shared = c.state(run.Module).common()
	}
	unsent := d.State.Unsent(&run.State, d.Assign)
	if err := c.write(ctx, run.Encode(&unsent, before)); err != nil {
		return false, err
	}
	var next *storev1.RolloutRecord
	inline := true
	write := func(w store.Writer, o outside) (err error) {
		next, err = c.writeDecision(ctx, w, o, run, d, groups, with, inline)
		return err
	}
	err = c.updateWith(ctx, write)
	if errors.Is(err, errInline) {
		inline = false
		err = c.updateWith(ctx, write)
	}
	if err != nil {
		return false, err
	}
	// Records that a crash loses here say "to apply" of clusters that the step has assigned: they are assigned the same
	// again, which changes nothing in them.
	if err := c.write(ctx, run.Encode(&d.State, after)); err != nil {
		return false, err
	}
	run.Record, run.State = next, d.State
	c.o.Meter.Decided(len(d.Assign))
	c.logMoves(run, d)
	c.traceDecision(run, d, began)
	if len(d.Assign) > 0 {
		// What was assigned just now is not what was observed before: look again at the members that moved.
		st := c.state(run.Module)
		for _, a := range d.Assign {
			st.mark(run.State.Member(run.Plan, int(a.Member)).Cluster)
		}
	}
	return true, nil
}

// divide says which chunks of a decision are written before its transaction, with it, and after it; stored is how many the head says
// that there are. A head can be read only with all of its chunks, each as long as it says. So the last one that is stored, which may
// grow, goes with the head, and new ones for which there is no room there are written before it, when nothing refers to them, and
// once more after it, with what the step assigned.
func divide(chunks []int, stored int) (before, with, after []int) {
	if i := slices.Index(chunks, stored-1); i >= 0 {
		chunks = append(slices.Delete(slices.Clone(chunks), i, i+1), stored-1)
	}
	n := max(len(chunks)-inlineChunks, 0)
	with, after = chunks[n:], chunks[:n]
	before = slices.DeleteFunc(slices.Clone(after), func(chunk int) bool { return chunk < stored })
	return before, with, after
}

// writeDecision puts the decision with its step, and returns the rollout's record as it will be.
func (c *Controller) writeDecision(ctx context.Context, w store.Writer, o outside, run *rollouts.Run, d rollout.Decision, groups []group, chunks []int, inline bool) (*storev1.RolloutRecord, error) {
	var step rollouts.Step
	if len(groups) > 0 {
		step = func(next *storev1.RolloutRecord) (uint64, error) {
			clusters := c.clustersOf(w, d)
			if err := mayLeave(w, clusters, run, d, groups); err != nil {
				return 0, err
			}
			if err := mayMove(w, clusters, run, d); err != nil {
				return 0, err
			}
			generation := record.NextGeneration(w)
			return generation, c.putStep(ctx, w, o, run, next, groups, generation, inline)
		}
	}
	return run.Write(w, d, chunks, o.now, step)
}

// placedError is a decision that takes a module from clusters in which its placement has it. The next one looks at everything
// again.
type placedError struct{ clusters []fleet.ClusterName }

func (e *placedError) Error() string {
	return fmt.Sprintf("it is not taken from %v, where its placement has it", e.clusters)
}

func (e *placedError) Unwrap() error { return fleet.ErrConflict }

// mayLeave refuses a decision that takes the module from clusters in which the placement has it that is in force under the
// decision's own state, leaves a cluster with nothing though no person has confirmed that, or was made of another cluster of the name,
// whatever led to it: an older look, or a mistake.
func mayLeave(w store.Writer, r store.Reader, run *rollouts.Run, d rollout.Decision, groups []group) error {
	i := slices.IndexFunc(groups, func(g group) bool { return g.revision == 0 })
	if i < 0 {
		return nil
	}
	exit := record.ExitBy(w, run.Module, run.Record, d.State.PlacedBy())
	closed := slices.DeleteFunc(names(groups[i].clusters), func(c fleet.ClusterName) bool { return exit.Open(r, c) })
	if len(closed) > 0 {
		return &placedError{closed}
	}
	for _, a := range d.Assign {
		m, name := d.State.Record(int(a.Member)), d.State.Member(run.Plan, int(a.Member)).Cluster
		if a.Leave && m.Taken != record.Taken(record.Anew(r, name)) {
			return fleet.Errorf(fleet.ErrConflict, "rollout %s: another cluster has taken the name of cluster %s since that was looked at", run.Plan.ID, name)
		}
		if a.Leave && !m.Confirmed() && exit.Empties(r, name) {
			return fleet.Errorf(fleet.ErrConflict, "rollout %s: cluster %s has nothing any more when it loses the module: another one went, or does not come, since that was looked at", run.Plan.ID, name)
		}
	}
	exit.Rests(w)
	return nil
}

// clustersOf is the reader for the records of the clusters that a decision moves. The commit depends on each that is read, or, of a large
// one, which are more than it may compare, on all clusters that there are.
func (c *Controller) clustersOf(w store.Writer, d rollout.Decision) store.Reader {
	if len(d.Assign) <= c.room.compared {
		return w
	}
	w.Unchanged(store.ClusterPrefix)
	return store.Untracked(w)
}

// mayMove refuses a decision that moves a cluster which was cordoned since that was looked at, or brings the module to one that the placement does not
// have any more; but who goes back to what it had does so whatever the placement says.
func mayMove(w store.Writer, r store.Reader, run *rollouts.Run, d rollout.Decision) error {
	exit := record.ExitBy(store.Untracked(w), run.Module, run.Record, d.State.PlacedBy())
	for _, a := range d.Assign {
		name := d.State.Member(run.Plan, int(a.Member)).Cluster
		if store.DamageOf(w, store.ClusterKey(name)) != nil { // stops no other
			continue
		}
		rec, _, _ := store.Get[*storev1.ClusterRecord](r, store.ClusterKey(name))
		if rec.GetCluster().GetSpec().GetCordoned() {
			return fleet.Errorf(fleet.ErrConflict, "rollout %s: cluster %s was cordoned since that was looked at", run.Plan.ID, name)
		}
		if !a.Leave && d.State.Back == nil && exit.Shut(r, rec) {
			return fleet.Errorf(fleet.ErrConflict, "rollout %s: cluster %s left the placement since that was looked at", run.Plan.ID, name)
		}
	}
	return nil
}

// group is the part of a step that goes to one revision; 0: the clusters leave.
type group struct {
	revision int64
	clusters []string
	// shared is what the transactions of the run find out of the revision's bundle; nil: there is one only.
	shared *record.Shared
	// shut says to whom the module does not come, for the placement does not have it there any more; nil: that was asked before.
	shut func(*storev1.ClusterRecord) bool
}

func assignGroups(run *rollouts.Run, d rollout.Decision) []group {
	var out []group
	for _, a := range d.Assign {
		rev := a.Revision
		if a.Leave {
			rev = 0
		}
		i := slices.IndexFunc(out, func(g group) bool { return g.revision == rev })
		if i < 0 {
			i = len(out)
			out = append(out, group{revision: rev})
		}
		out[i].clusters = append(out[i].clusters, string(d.State.Member(run.Plan, int(a.Member)).Cluster))
	}
	return out
}

// putStep records which clusters the step moves. A small step writes their desired records in the same transaction; a
// large one leaves step records behind, from which they are materialised.
func (c *Controller) putStep(ctx context.Context, w store.Writer, o outside, run *rollouts.Run, rec *storev1.RolloutRecord, groups []group, generation uint64, inline bool) error {
	total := 0
	for _, g := range groups {
		total += len(g.clusters)
	}
	if inline && total <= c.room.inline {
		bytes := 0
		for _, g := range groups {
			n, err := c.putDesired(ctx, w, o, run, g, generation)
			if err != nil {
				return err
			}
			if bytes += n; bytes > inlineBytes {
				return errInline
			}
		}
		return nil
	}
	for _, g := range groups {
		for _, clusters := range splitNames(g.clusters) {
			rec.Steps++
			w.Put(store.StepKey(run.Module, run.Number, rec.Steps), &storev1.StepRecord{Generation: generation, Revision: g.revision,
				Clusters: clusters, LeavePolicy: fleet.DeleteDelete, At: timestamppb.New(o.now)})
		}
	}
	return nil
}

func splitNames(names []string) [][]string {
	var out [][]string
	size, start := 0, 0
	for i, n := range names {
		if size+len(n)+2 > stepBytes {
			out, size, start = append(out, names[start:i]), 0, i
		}
		size += len(n) + 2
	}
	return append(out, names[start:])
}

func (c *Controller) putDesired(ctx context.Context, w store.Writer, o outside, run *rollouts.Run, g group, generation uint64) (bytes int, err error) {
	if g.revision == 0 {
		heirs, holds := newSuccession(o, run.Module), record.ReadHolds(w, o.now)
		heirs.Rollout = run.Number
		for _, name := range g.clusters {
			key := store.DesiredKey(fleet.ClusterName(name), run.Module)
			if old, _, ok := store.Get[*storev1.DesiredRecord](w, key); ok && !record.Leaves(old, false) {
				if err := putLeaving(ctx, w, heirs, holds, run.Module, fleet.ClusterName(name), old, leaving{policy: fleet.DeleteDelete, generation: generation}); err != nil {
					return 0, err
				}
			}
		}
		return 0, nil
	}
	_, bytes, err = c.putAssigned(ctx, w, o, run, g, generation)
	return bytes, err
}

func (c *Controller) logMoves(run *rollouts.Run, d rollout.Decision) {
	for _, m := range d.Moves {
		if m.Kind == rollout.OfRollout {
			c.o.Meter.Moved(m.To)
			c.o.Log.Info("rollout", "id", run.Plan.ID.String(), "from", m.From, "to", m.To, "reason", m.Reason, "facts", m.Facts.String())
		}
	}
}

// finishSteps materialises steps that were committed and are not yet; it resumes after a crash. The part of a step that is
// refused stays open until the rollout has seen why.
func (c *Controller) finishSteps(ctx context.Context, run *rollouts.Run) (refused []fleet.ClusterName, err error) {
	var open []store.Entry
	if err := c.view(ctx, func(r store.Reader) error {
		r.Scan(store.StepsOf(run.Module, run.Number), func(e store.Entry) bool {
			open = append(open, e)
			return true
		})
		return nil
	}); err != nil {
		return nil, err
	}
	for _, e := range open {
		step, ok := e.Value.(*storev1.StepRecord)
		if !ok {
			continue
		}
		kept, err := c.finishStep(ctx, run, e.Key, step)
		if err != nil {
			return nil, err
		}
		refused = append(refused, kept...)
	}
	return refused, nil
}

func (c *Controller) finishStep(ctx context.Context, run *rollouts.Run, key string, step *storev1.StepRecord) (refused []fleet.ClusterName, err error) {
	if refused, err = c.materialize(ctx, run, step); err != nil {
		return nil, err
	}
	switch len(refused) {
	case len(step.GetClusters()):
		return refused, nil
	case 0:
		return nil, c.write(ctx, map[string]proto.Message{key: nil})
	}
	rest := proto.CloneOf(step)
	rest.Clusters = nil
	for _, name := range refused {
		rest.Clusters = append(rest.Clusters, string(name))
	}
	return refused, c.write(ctx, map[string]proto.Message{key: rest})
}

// refuse remembers from which clusters the last run would have taken the module, had the placement not had it there, and says
// so once.
func (c *Controller) refuse(ref fleet.ModuleRef, st *moduleState, clusters []fleet.ClusterName) (news bool) {
	news = len(clusters) > 0 && !slices.Equal(st.refused, clusters)
	st.refused = clusters
	if news {
		c.o.Log.Error("a module is not taken from clusters in which its placement has it", "module", ref.String(), "clusters", clusters)
	}
	return news
}

// lookAgain has the module look at clusters from which a step does not take it: now, and after a while if that was to no avail.
func (c *Controller) lookAgain(ref fleet.ModuleRef, st *moduleState, clusters []fleet.ClusterName, at time.Time) {
	for _, name := range clusters {
		st.mark(name)
	}
	c.modules.addAt(store.ModuleKey(ref), at)
}

// redoSteps materialises what steps said that cannot be read: the members that they moved tell it.
func (c *Controller) redoSteps(ctx context.Context, run *rollouts.Run) (refused []fleet.ClusterName, err error) {
	var lost []store.Damage
	var redo []*storev1.StepRecord
	if err := c.view(ctx, func(r store.Reader) error {
		if lost = r.Damaged(store.StepsOf(run.Module, run.Number)); len(lost) > 0 {
			redo = unfinished(r, run)
		}
		return nil
	}); err != nil || len(lost) == 0 {
		return nil, err
	}
	for _, step := range redo {
		kept, err := c.materialize(ctx, run, step)
		if err != nil {
			return nil, err
		}
		refused = append(refused, kept...)
	}
	if len(refused) > 0 {
		return refused, nil // and once more later: that changes nothing where it is done
	}
	puts := map[string]proto.Message{}
	for _, d := range lost {
		puts[d.Key] = nil
	}
	return nil, c.write(ctx, puts)
}

// unfinished are the steps of members that were moved, and whose desired records do not say so.
func unfinished(r store.Reader, run *rollouts.Run) []*storev1.StepRecord {
	type move struct {
		generation uint64
		revision   int64
	}
	found := map[move]*storev1.StepRecord{}
	for i := range run.State.Len(run.Plan) {
		m, name := run.State.Record(i), run.State.Member(run.Plan, i).Cluster
		d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(name, run.Module))
		if m.Generation == 0 || record.Damaged(d) || record.AssignedGeneration(d) >= m.Generation {
			continue
		}
		at := move{m.Generation, m.Revision}
		if found[at] == nil {
			found[at] = &storev1.StepRecord{Generation: m.Generation, Revision: m.Revision, LeavePolicy: fleet.DeleteDelete}
		}
		found[at].Clusters = append(found[at].Clusters, string(name))
	}
	return slices.SortedFunc(maps.Values(found), func(a, b *storev1.StepRecord) int {
		return cmp.Compare(a.GetGeneration(), b.GetGeneration())
	})
}
