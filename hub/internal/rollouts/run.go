package rollouts

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// Run is a rollout as pkg/rollout sees it: plan, state, and what is observed of each member.
type Run struct {
	Module   fleet.ModuleRef
	Number   int64
	Record   *storev1.RolloutRecord
	Plan     *rollout.Plan
	State    rollout.State
	Observed []rollout.Observed
	// Labels of the members, aligned with Observed.
	Labels []map[string]string
	// Newcomers are clusters that one of the placements selects and that are no members.
	Newcomers []rollout.Newcomer
	// Matched are the overrides that matched nobody when the run was planned, and match somebody by now.
	Matched []string
	// Unplaced says that the placement of the run's own revision could not be read then.
	Unplaced bool
	// Older is the older revision by whose placement they were looked at, too; 0: by that of none.
	Older int64
	clock rollout.Clock // kept as long as the run is
	index map[fleet.ClusterName]int
}

// started is when the process did.
var started = time.Now()

// Decided takes note of a decision that was made with an input of the run.
func (run *Run) Decided(in *rollout.Input, d *rollout.Decision) { run.clock = in.Clock.Decided(d) }

// Load reads a planned rollout; nil when it has no plan yet.
func Load(r store.Reader, ref fleet.ModuleRef, number int64) (*Run, error) {
	rec, _, ok := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(ref, number))
	if !ok || len(rec.GetHead()) == 0 {
		return nil, nil
	}
	id := fleet.RolloutID{Module: ref, Number: number}
	run := &Run{Module: ref, Number: number, Record: rec}
	var err error
	if run.Plan, run.State, err = head(rec); err != nil {
		return nil, fmt.Errorf("rollout %s: %w: %v", id, fleet.ErrCorrupt, err)
	}
	for n := range run.State.Chunks {
		c, _, ok := store.Get[*storev1.RolloutChunk](r, store.ChunkKey(ref, number, n))
		if !ok {
			return nil, fmt.Errorf("rollout %s: chunk %d: %w", id, n, fleet.ErrCorrupt)
		}
		if err := rollout.DecodeChunk(run.Plan, &run.State, n, c.GetData()); err != nil {
			return nil, fmt.Errorf("rollout %s: chunk %d: %w: %v", id, n, fleet.ErrCorrupt, err)
		}
	}
	return run, nil
}

// head reads the head of a rollout; no plan: it has none yet.
func head(rec *storev1.RolloutRecord) (*rollout.Plan, rollout.State, error) {
	if len(rec.GetHead()) == 0 {
		return nil, rollout.State{}, nil
	}
	strategy, err := wire.StrategyFromProto(rec.GetRollout().GetStrategy())
	if err != nil {
		return nil, rollout.State{}, err
	}
	return rollout.DecodeHead(rec.GetHead(), strategy)
}

// Created is when the rollout was made. With module and number it names one rollout: the number alone may be that of another one,
// of a module of the name that was deleted.
func (run *Run) Created() time.Time {
	return run.Record.GetRollout().GetMetadata().GetCreationTimestamp().AsTime()
}

// Index is the member of a cluster; -1 if it is none.
func (run *Run) Index(c fleet.ClusterName) int {
	if run.index == nil || len(run.index) != run.State.Len(run.Plan) {
		run.index = make(map[fleet.ClusterName]int, run.State.Len(run.Plan))
		for i := range run.State.Len(run.Plan) {
			run.index[run.State.Member(run.Plan, i).Cluster] = i
		}
	}
	if i, ok := run.index[c]; ok {
		return i
	}
	return -1
}

// Plan makes the run of a rollout that has none yet: it fixes stages and members from the clusters as they are now. overrides are those of
// its revision.
func Plan(r store.Reader, ref fleet.ModuleRef, rec *storev1.RolloutRecord, clusters []rollout.Candidate, overrides []fleet.Override) (*Run, error) {
	ro := rec.GetRollout()
	strategy, err := wire.StrategyFromProto(ro.GetStrategy())
	if err != nil {
		return nil, err
	}
	plan, state, err := rollout.NewPlan(strategy, rollout.PlanInput{ID: fleet.RolloutID{Module: ref, Number: ro.GetNumber()},
		Revision: ro.GetRevision(), From: ro.GetFromRevision(), ModuleGeneration: ro.GetModuleGeneration(),
		StartedBy: ro.GetStatus().GetStartedBy(), Why: ro.GetStatus().GetStartReason(), Pins: Pins(r, ref, ro.GetNumber()), Clusters: clusters,
		MayHave:        mayStillHave(r, ref, ro),
		AskedSince:     askedSince(r, ref, ro),
		EmptyOverrides: assemble.Unmatched(overrides, rollout.Selected(clusters))})
	if err != nil {
		return nil, err
	}
	return &Run{Module: ref, Number: ro.GetNumber(), Record: rec, Plan: plan, State: state}, nil
}

// mayStillHave are the clusters in which the rollout's revision may be by a rollout before, to it or to one that had the same objects. One that
// cannot be read says nothing of that.
func mayStillHave(r store.Reader, ref fleet.ModuleRef, ro *towlinev1.Rollout) []fleet.ClusterName {
	r = store.Untracked(r)
	alike := alikeRevisions(r, ref, ro.GetRevision())
	same := func(x *storev1.RolloutRecord) bool {
		return x.GetRollout().GetNumber() < ro.GetNumber() && len(x.GetHead()) > 0 && alike(x.GetRollout().GetRevision())
	}
	last := newest(r, ref, same).GetRollout().GetNumber()
	if last == 0 {
		return nil
	}
	var past []rollout.Past
	for _, x := range slices.Backward(List(r, ref)) {
		n := x.GetRollout().GetNumber()
		if n < last || n >= ro.GetNumber() {
			continue
		}
		run, err := Load(r, ref, n)
		switch {
		case run != nil && err == nil:
			past = append(past, rollout.Past{Plan: run.Plan, State: run.State})
		case n == last:
			return nil
		}
	}
	return rollout.MayStillHave(past)
}

// alikeRevisions says which revisions are the one, or give a cluster the same objects. One whose record cannot be read is like no other.
func alikeRevisions(r store.Reader, ref fleet.ModuleRef, revision int64) func(int64) bool {
	read := func(n int64) *storev1.RevisionRecord {
		rev, _, _ := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(ref, n))
		return rev
	}
	mine, known := read(revision), map[int64]bool{revision: true}
	return func(n int64) bool {
		if _, ok := known[n]; !ok {
			known[n] = alike(mine, read(n))
		}
		return known[n]
	}
}

// alike reports that two revisions give a cluster the same objects: by their bundles, and by what is put in for placeholders there. It is asked for whom
// a rollout waits, and lets nobody go on: where it is not clear they are alike, for a wait too many ends by a person's word, and what somebody is looking
// at in a held cluster goes to everybody where one is wanting. So a variant that one of them alone has, rendered later or not at all, makes no difference, and
// neither do policies, nor values that come from the clusters and change without a revision.
func alike(a, b *storev1.RevisionRecord) bool {
	return sameBindings(a, b) && sameBundles(bundles(a), bundles(b))
}

// sameBundles reports that one of the revisions has all bundles of the other, in order without repetition; it is not so where nothing was rendered.
func sameBundles(a, b [][]byte) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return len(a) > 0 && !slices.ContainsFunc(a, func(x []byte) bool {
		_, ok := slices.BinarySearchFunc(b, x, bytes.Compare)
		return !ok
	})
}

// bundles are what a revision renders to, in order and each once.
func bundles(rev *storev1.RevisionRecord) (all [][]byte) {
	add := func(bundle []byte) {
		if len(bundle) > 0 {
			all = append(all, bundle)
		}
	}
	add(rev.GetBundle())
	for _, v := range rev.GetVariants() {
		add(v.GetBundle())
	}
	slices.SortFunc(all, bytes.Compare)
	return slices.CompactFunc(all, bytes.Equal)
}

// sameBindings reports that placeholders become the same, in whatever order the values stand.
func sameBindings(a, b *storev1.RevisionRecord) bool {
	sorted := func(rev *storev1.RevisionRecord) []*towlinev1.Binding {
		return slices.SortedFunc(slices.Values(rev.GetRevision().GetSpec().GetBindings()), func(x, y *towlinev1.Binding) int {
			return cmp.Compare(x.GetName(), y.GetName())
		})
	}
	return slices.EqualFunc(sorted(a), sorted(b), func(x, y *towlinev1.Binding) bool { return proto.Equal(x, y) })
}

// Input is what Explain is asked with, and Decide, when there are also facts, verbs and answers of gates.
func (run *Run) Input(now time.Time) rollout.Input {
	return rollout.Input{Now: now, Clock: run.clock.At(now, now.Sub(started)), Plan: run.Plan, State: run.State, Observed: run.Observed, Newcomers: run.Newcomers, Matched: run.Matched, Unplaced: run.Unplaced, Older: run.Older}
}

// Facts are what the run has to know of its module.
func (run *Run) Facts(r store.Reader) rollout.Module {
	m := rollout.Module{Revisions: Revisions(r, run.Module)}
	for _, ro := range List(r, run.Module) {
		switch n := ro.GetRollout().GetNumber(); {
		case n <= run.Number:
		case ro.GetRollout().GetRevision() != 0:
			m.Successor = n
		default:
			m.Put = n
		}
	}
	return m
}

// NextVerb is the key of the verb that is recorded next of a rollout.
func NextVerb(r store.Reader, ref fleet.ModuleRef, number int64) string {
	next := int64(1)
	r.Scan(store.VerbsOf(ref, number), func(store.Entry) bool { next++; return true })
	return store.VerbKey(ref, number, next)
}

// Verbs are the verbs recorded for a rollout, in order; those that were folded already are given again, and count
// once by their id.
func Verbs(r store.Reader, ref fleet.ModuleRef, number int64) []rollout.Verb {
	var out []rollout.Verb
	store.Scan(r, store.VerbsOf(ref, number), func(v *storev1.VerbRecord, e store.Entry) bool {
		x := v.GetVerb()
		if x == nil || v.GetStarted() != 0 {
			return true // damaged: nobody knows what was wanted; or another rollout answers it
		}
		verb := rollout.Verb{ID: e.Key, Verb: x.GetVerb(), Rollout: number, Stage: x.GetStage(), Gate: x.GetGate(),
			By: x.GetBy(), Why: x.GetReason(), Revision: x.GetRevision(), Scope: v.GetScope(), At: x.GetAt().AsTime(), Shorten: v.GetShorten()}
		if x.GetUntil() != nil {
			verb.Until = x.GetUntil().AsTime()
		}
		for _, c := range x.GetClusters() {
			verb.Clusters = append(verb.Clusters, fleet.ClusterName(c))
		}
		out = append(out, verb)
		return true
	})
	return out
}
