package record

import (
	"fmt"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/tracker"
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
	// Newcomers are clusters that the placement selects and that are no members.
	Newcomers []rollout.Newcomer
	index     map[fleet.ClusterName]int
}

// View is what observing needs besides the store.
type View struct {
	Connected func(fleet.ClusterName) bool
	// Live says whose session is live. Others that are connected are only expected to come back. Nil: all that are connected.
	Live  func(fleet.ClusterName) bool
	Holds Holds
	// Module is the module as it is now: its placement says who is selected. Nil: it is being deleted.
	Module *wire.Module
}

// LoadRun reads a planned rollout; nil when it has no plan yet.
func LoadRun(r store.Reader, ref fleet.ModuleRef, number int64) (*Run, error) {
	rec, _, ok := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(ref, number))
	if !ok || len(rec.GetHead()) == 0 {
		return nil, nil
	}
	id := fleet.RolloutID{Module: ref, Number: number}
	strategy, err := wire.StrategyFromProto(rec.GetRollout().GetStrategy())
	if err != nil {
		return nil, fmt.Errorf("rollout %s: %w", id, err)
	}
	run := &Run{Module: ref, Number: number, Record: rec}
	if run.Plan, run.State, err = rollout.DecodeHead(rec.GetHead(), strategy); err != nil {
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

// ObserveAll looks at every member and finds the newcomers.
func (run *Run) ObserveAll(r store.Reader, v View) {
	n := run.State.Len(run.Plan)
	run.Observed, run.Labels = make([]rollout.Observed, n), make([]map[string]string, n)
	for i := range n {
		run.observeMember(r, v, i)
	}
	run.Newcomers = nil
	if v.Module == nil {
		return
	}
	for _, rec := range Clusters(r) {
		run.newcomer(r, v, rec)
	}
}

// ObserveSome looks again at some clusters only.
func (run *Run) ObserveSome(r store.Reader, v View, dirty map[fleet.ClusterName]struct{}) {
	for len(run.Observed) < run.State.Len(run.Plan) {
		run.Observed, run.Labels = append(run.Observed, rollout.Observed{}), append(run.Labels, nil)
		run.observeMember(r, v, len(run.Observed)-1)
	}
	run.dropNewcomers(dirty)
	for c := range dirty {
		if i := run.Index(c); i >= 0 {
			run.observeMember(r, v, i)
			continue
		}
		if rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(c)); ok && v.Module != nil {
			run.newcomer(r, v, rec)
		}
	}
}

func (run *Run) dropNewcomers(dirty map[fleet.ClusterName]struct{}) {
	kept := run.Newcomers[:0]
	for _, n := range run.Newcomers {
		if _, again := dirty[n.Cluster.Name]; !again && run.Index(n.Cluster.Name) < 0 {
			kept = append(kept, n)
		}
	}
	run.Newcomers = kept
}

func (run *Run) newcomer(r store.Reader, v View, rec *storev1.ClusterRecord) {
	c := Cluster(rec)
	if rec.GetRemoving() != "" || run.Index(c.Name) >= 0 || !assemble.Selects(v.Module.Placement, c) {
		return
	}
	o, _ := run.observe(r, v, c.Name)
	run.Newcomers = append(run.Newcomers, rollout.Newcomer{Cluster: c, Observed: o})
}

func (run *Run) observeMember(r store.Reader, v View, i int) {
	o, labels := run.observe(r, v, run.State.Member(run.Plan, i).Cluster)
	if m := run.State.Record(i); o.Generation == 0 && m.Generation != 0 && m.Revision == 0 {
		o.Removed = true // its tombstone was confirmed and forgotten, perhaps before the rollout saw the confirmation
	}
	run.Observed[i], run.Labels[i] = o, labels
}

// observe is what is known of a cluster, and its labels.
func (run *Run) observe(r store.Reader, v View, name fleet.ClusterName) (rollout.Observed, map[string]string) {
	rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name))
	switch {
	case !ok && store.DamageOf(r, store.ClusterKey(name)) != nil:
		return run.unreadable(r, name), nil
	case !ok:
		return rollout.Observed{Gone: true}, nil
	}
	c := Cluster(rec)
	connected := v.Connected(name)
	seen := Seen(r, name, connected)
	o := rollout.Observed{Connected: seen, NotSeen: connected && !seen, Cordoned: c.Cordoned, Held: v.Holds.Frozen(run.Module, name),
		Gone: rec.GetRemoving() != "", Unselected: v.Module == nil || !assemble.Selects(v.Module.Placement, c)}
	if s := run.Plan.StageFor(c.Labels); s >= 0 {
		o.Stage = int16(s + 1)
	}
	o.Silent = connected && v.Live != nil && !v.Live(name)
	if s, _, ok := store.Get[*storev1.SessionRecord](r, store.SessionKey(name)); ok && connected && !o.Silent && s.GetStarted() != nil {
		o.Session = s.GetStarted().AsTime()
	}
	t, ok := Track(r, name, run.Module, connected)
	if !ok {
		return o, c.Labels
	}
	if o.Silent {
		t.Input.Unheard = true
		t.Tracker = tracker.Fold(t.Input)
	}
	o.Unheard = t.Input.Unheard && t.Tracker.Current
	o.Generation, o.Revision, o.Lost = t.Generation(), t.Revision(), Damaged(t.Desired)
	o.Ready, o.Failed, o.Removed = t.Tracker.Ready, t.Tracker.Failed, t.Tracker.Removed
	o.Reason, o.Message = t.Tracker.Reason, t.Tracker.Message
	if o.Silent {
		o.Reason, o.Message = rollout.ReasonNotHeard, rollout.NotBack
	}
	return o, c.Labels
}

// unreadable is what is known of a cluster whose record is damaged: what it was given. It is away, and it leaves no
// placement, for nobody knows its labels.
func (run *Run) unreadable(r store.Reader, name fleet.ClusterName) rollout.Observed {
	t, _ := Track(r, name, run.Module, false)
	return rollout.Observed{Generation: t.Generation(), Revision: t.Revision(), Reason: "Damaged", Message: DamagedCluster(name)}
}

// InForce is the module whose placement counts for the run: after a rollback that of the revision it went back to, until
// the spec changes or somebody retries; else the module as it is now.
func InForce(r store.Reader, run *Run, now *wire.Module) (*wire.Module, error) {
	if !run.State.Held() || run.State.Back == nil {
		return now, nil
	}
	if err := DamagedRevision(r, run.Module, run.State.Back.To); err != nil {
		return nil, err
	}
	rev, _, ok := store.Get[*storev1.RevisionRecord](r, store.RevisionKey(run.Module, run.State.Back.To))
	if !ok {
		return now, nil
	}
	m, err := wire.ModuleFromProto(ModuleOfRevision(run.Module, rev))
	if err != nil {
		return nil, fmt.Errorf("module %s r%d: %w", run.Module.Display(), run.State.Back.To, err)
	}
	return m, nil
}

// Input is what Decide and Explain are asked with.
func (run *Run) Input(now time.Time, results []rollout.GateResult, verbs []rollout.Verb, m rollout.Module, confirmed []fleet.Digest) rollout.Input {
	return rollout.Input{Now: now, Plan: run.Plan, State: run.State, Observed: run.Observed, Newcomers: run.Newcomers,
		Results: results, Verbs: verbs, Module: m, Confirmed: confirmed}
}

// ReadVerbs are the verbs recorded for a rollout, in order; those that were folded already are given again, and count
// once by their id.
func ReadVerbs(r store.Reader, ref fleet.ModuleRef, number int64) []rollout.Verb {
	var out []rollout.Verb
	store.Scan(r, store.VerbsOf(ref, number), func(v *storev1.VerbRecord, e store.Entry) bool {
		x := v.GetVerb()
		if x == nil {
			return true // damaged: nobody knows what was wanted
		}
		verb := rollout.Verb{ID: e.Key, Verb: x.GetVerb(), Rollout: number, Stage: x.GetStage(), Gate: x.GetGate(),
			By: x.GetBy(), Why: x.GetReason(), Revision: x.GetRevision(), Scope: v.GetScope(), At: x.GetAt().AsTime()}
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

// ConfirmedDigests are the digests of holds that people released.
func ConfirmedDigests(r store.Reader, ref fleet.ModuleRef) []fleet.Digest {
	var out []fleet.Digest
	store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, _ store.Entry) bool {
		if h.GetConfirmed() && HoldModule(h.GetHold()) == ref.String() {
			if d, err := fleet.ParseDigest(h.GetHold().GetDigest()); err == nil {
				out = append(out, d)
			}
		}
		return true
	})
	return out
}
