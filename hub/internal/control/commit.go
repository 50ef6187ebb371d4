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
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

const (
	// inlineDesired is up to how many moved clusters the step's transaction also writes their desired records.
	inlineDesired = 40
	// inlineBytes is up to how many bytes of them: values may be long.
	inlineBytes = 256 << 10
	// inlineChunks is up to how many chunks it also writes; more follow right after it.
	inlineChunks = 60
	// stepBytes is how many bytes of names one step record holds.
	stepBytes = 64 << 10
)

// errInline asks for a step record instead of desired records in the step's own transaction.
var errInline = errors.New("too large for the step's transaction")

// commit writes a decision: head, changed chunks and the step, in one transaction with the generation that all moved
// clusters get. From that commit they are assigned.
func (c *Controller) commit(ctx context.Context, run *record.Run, d rollout.Decision) error {
	planned := len(run.Record.GetHead()) > 0
	if planned && !d.HeadChanged && len(d.Changed) == 0 && len(d.Assign) == 0 && len(d.Holds) == 0 && len(d.Outcomes) == 0 {
		return nil
	}
	chunks := changedChunks(d, planned)
	first, rest := chunks[:min(len(chunks), inlineChunks)], chunks[min(len(chunks), inlineChunks):]
	groups := assignGroups(run, d)
	if !planned {
		// A head is readable only with all of its chunks.
		if err := c.writeChunks(ctx, run, &d.State, rest); err != nil {
			return err
		}
	}
	var next *storev1.RolloutRecord
	inline := true
	write := func(w store.Writer) (err error) {
		next, err = c.writeDecision(ctx, w, run, d, groups, first, inline)
		return err
	}
	err := c.update(ctx, write)
	if errors.Is(err, errInline) {
		inline = false
		err = c.update(ctx, write)
	}
	if err != nil {
		return err
	}
	// Records that a crash loses here say "to apply" of clusters that the step has assigned: they are assigned the same
	// again, which changes nothing in them.
	if err := c.writeChunks(ctx, run, &d.State, rest); err != nil {
		return err
	}
	run.Record, run.State = next, d.State
	c.logMoves(run, d)
	if len(d.Assign) > 0 {
		// What was assigned just now is not what was observed before: look again at the members that moved.
		st := c.state(run.Module)
		for _, a := range d.Assign {
			st.mark(run.State.Member(run.Plan, int(a.Member)).Cluster)
		}
	}
	return c.rolloutHolds(ctx, run, d.Holds)
}

// writeDecision puts head, chunks and step, and returns the rollout's record as it will be.
func (c *Controller) writeDecision(ctx context.Context, w store.Writer, run *record.Run, d rollout.Decision, groups []group, chunks []int, inline bool) (*storev1.RolloutRecord, error) {
	rec, _, ok := store.Get[*storev1.RolloutRecord](w, store.RolloutKey(run.Module, run.Number))
	if !ok || (record.Ended(rec) && !record.Ended(run.Record)) {
		return nil, fleet.Errorf(fleet.ErrConflict, "rollout %s ended meanwhile", run.Plan.ID)
	}
	next := proto.CloneOf(rec)
	if len(d.Assign) > 0 {
		generation := record.NextGeneration(w)
		d.State.Stamp(d.Assign, generation)
		if err := c.putStep(ctx, w, run, next, groups, generation, inline); err != nil {
			return nil, err
		}
	}
	if d.Start != nil {
		startAgain(w, run, *d.Start)
	}
	return next, putState(w, run, next, d, chunks)
}

func (c *Controller) writeChunks(ctx context.Context, run *record.Run, s *rollout.State, chunks []int) error {
	puts := map[string]proto.Message{}
	for _, n := range chunks {
		puts[store.ChunkKey(run.Module, run.Number, n)] = &storev1.RolloutChunk{Data: rollout.EncodeChunk(run.Plan, s, n)}
	}
	return c.write(ctx, puts)
}

func changedChunks(d rollout.Decision, planned bool) []int {
	if !planned {
		all := make([]int, len(d.State.Chunks))
		for i := range all {
			all[i] = i
		}
		return all
	}
	var out []int
	for _, m := range d.Changed {
		if n := int(m) / rollout.ChunkSize; len(out) == 0 || out[len(out)-1] != n {
			out = append(out, n)
		}
	}
	return out
}

// group is the part of a step that goes to one revision; 0: the clusters leave.
type group struct {
	revision int64
	clusters []string
}

func assignGroups(run *record.Run, d rollout.Decision) []group {
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
func (c *Controller) putStep(ctx context.Context, w store.Writer, run *record.Run, rec *storev1.RolloutRecord, groups []group, generation uint64, inline bool) error {
	total := 0
	for _, g := range groups {
		total += len(g.clusters)
	}
	if inline && total <= inlineDesired {
		bytes := 0
		for _, g := range groups {
			n, err := c.putDesired(ctx, w, run, g, generation)
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
				Clusters: clusters, LeavePolicy: fleet.DeleteDelete, At: timestamppb.New(time.Now())})
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

func (c *Controller) putDesired(ctx context.Context, w store.Writer, run *record.Run, g group, generation uint64) (bytes int, err error) {
	if g.revision == 0 {
		heirs := c.newSuccession(run.Module)
		heirs.Rollout = run.Number
		for _, name := range g.clusters {
			key := store.DesiredKey(fleet.ClusterName(name), run.Module)
			if old, _, ok := store.Get[*storev1.DesiredRecord](w, key); ok && !record.Leaves(old, false) {
				if err := putLeaving(ctx, w, heirs, run.Module, fleet.ClusterName(name), old, leaving{policy: fleet.DeleteDelete, generation: generation}); err != nil {
					return 0, err
				}
			}
		}
		return 0, nil
	}
	a, err := c.newAssigner(ctx, w, run.Module, g.revision, run.Number)
	if err != nil {
		return 0, err
	}
	for _, name := range g.clusters {
		cluster, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(w), store.ClusterKey(fleet.ClusterName(name)))
		if !ok || cluster.GetRemoving() != "" {
			continue
		}
		desired, err := a.desired(ctx, w, record.Cluster(cluster), generation)
		if err != nil {
			return 0, err
		}
		w.Put(store.DesiredKey(fleet.ClusterName(name), run.Module), desired)
		bytes += proto.Size(desired)
	}
	return bytes, nil
}

// putState writes the head and the changed chunks.
func putState(w store.Writer, run *record.Run, rec *storev1.RolloutRecord, d rollout.Decision, chunks []int) error {
	head, err := rollout.EncodeHead(run.Plan, &d.State)
	if err != nil {
		return fmt.Errorf("rollout %s: %w", run.Plan.ID, err)
	}
	rec.Head, rec.Chunks = head, int32(len(d.State.Chunks))
	summarize(rec.Rollout.Status, run, d)
	w.Put(store.RolloutKey(run.Module, run.Number), rec)
	for _, n := range chunks {
		w.Put(store.ChunkKey(run.Module, run.Number, n), &storev1.RolloutChunk{Data: rollout.EncodeChunk(run.Plan, &d.State, n)})
	}
	return nil
}

// summarize keeps what lists show.
func summarize(s *towlinev1.RolloutStatus, run *record.Run, d rollout.Decision) {
	h := d.State.Head
	stages := rollout.Tally(run.Plan, &d.State)
	s.Position = ""
	if !h.State.Ended() && h.Stage < len(stages) {
		stage := &stages[h.Stage]
		s.Position = fmt.Sprintf("%s %d/%d", run.Plan.Stages[h.Stage].Name, stage.Succeeded, stage.Members())
	}
	all := rollout.Sum(stages)
	s.Total, s.Succeeded, s.Failed, s.Deferred, s.Moved = int32(all.Members()), int32(all.Succeeded), int32(all.Failed), int32(all.Deferred), int32(all.Moved)
	s.NextLook = nil
	if !d.WakeAt.IsZero() {
		s.NextLook = timestamppb.New(d.WakeAt)
	}
	project(s, run.Module, h)
}

func (c *Controller) logMoves(run *record.Run, d rollout.Decision) {
	for _, m := range d.Moves {
		if m.Kind == rollout.OfRollout {
			c.o.Log.Info("rollout", "id", run.Plan.ID.String(), "from", m.From, "to", m.To, "why", m.Why)
		}
	}
}

// finishSteps materialises steps that were committed and are not yet; it resumes after a crash.
func (c *Controller) finishSteps(ctx context.Context, ref fleet.ModuleRef, number int64) error {
	var open []store.Entry
	if err := c.view(ctx, func(r store.Reader) error {
		r.Scan(store.StepsOf(ref, number), func(e store.Entry) bool {
			open = append(open, e)
			return true
		})
		return nil
	}); err != nil {
		return err
	}
	for _, e := range open {
		step, ok := e.Value.(*storev1.StepRecord)
		if !ok {
			continue
		}
		if err := c.materialize(ctx, ref, number, step); err != nil {
			return err
		}
		if err := c.write(ctx, map[string]proto.Message{e.Key: nil}); err != nil {
			return err
		}
	}
	return nil
}

// redoSteps materialises what steps said that cannot be read: the members that they moved tell it.
func (c *Controller) redoSteps(ctx context.Context, run *record.Run) error {
	var lost []store.Damage
	var redo []*storev1.StepRecord
	if err := c.view(ctx, func(r store.Reader) error {
		if lost = r.Damaged(store.StepsOf(run.Module, run.Number)); len(lost) > 0 {
			redo = unfinished(r, run)
		}
		return nil
	}); err != nil || len(lost) == 0 {
		return err
	}
	for _, step := range redo {
		if err := c.materialize(ctx, run.Module, run.Number, step); err != nil {
			return err
		}
	}
	puts := map[string]proto.Message{}
	for _, d := range lost {
		puts[d.Key] = nil
	}
	return c.write(ctx, puts)
}

// unfinished are the steps of members that were moved, and whose desired records do not say so.
func unfinished(r store.Reader, run *record.Run) []*storev1.StepRecord {
	type move struct {
		generation uint64
		revision   int64
	}
	found := map[move]*storev1.StepRecord{}
	for i := range run.State.Len(run.Plan) {
		m, name := run.State.Record(i), run.State.Member(run.Plan, i).Cluster
		d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey(name, run.Module))
		if m.Generation == 0 || record.Damaged(d) || record.Generation(d) >= m.Generation {
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
