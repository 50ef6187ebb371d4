package hub_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// lockstep are clusters that tell how revision 2 goes only when they may.
type lockstep struct {
	*world
	fails map[string]bool
	mu    sync.Mutex
	may   map[string]bool
}

func (w *lockstep) report(cluster string) func(fleet.Sync) fleet.SyncStatus {
	return func(s fleet.Sync) fleet.SyncStatus {
		w.mu.Lock()
		defer w.mu.Unlock()
		switch {
		case s.Revision != 2:
			return simagent.Ready(s)
		case !w.may[cluster]:
			return fleet.SyncStatus{}
		case w.fails[cluster]:
			return simagent.Failing(s)
		}
		return simagent.Ready(s)
	}
}

func (w *lockstep) release(cluster string) {
	w.mu.Lock()
	w.may[cluster] = true
	w.mu.Unlock()
	must(w.t, w.agents[cluster].Again())
}

// drive lets the clusters that move tell one after the other, and returns the steps by which they were moved.
func (w *lockstep) drive(min int64) (steps [][]fleet.ClusterName, last *towlinev1.Rollout) {
	w.t.Helper()
	st, err := w.Rollouts.WatchRollout(w.ctx, &towlinev1.WatchRolloutRequest{Module: "shop", MinRevision: min})
	must(w.t, err)
	moved := map[string]time.Time{}
	for {
		m, err := st.Recv()
		must(w.t, err)
		last = m.GetRollout()
		next, told := "", false
		for _, c := range last.GetStatus().GetClusters() {
			if c.GetState() != "Progressing" || c.GetRevision() != 2 {
				continue
			}
			moved[c.GetCluster()] = c.GetStarted().AsTime()
			if w.may[c.GetCluster()] {
				told = true // and the hub has not decided on it yet
			} else if next == "" {
				next = c.GetCluster()
			}
		}
		if m.GetEnded() {
			return batches(moved), last
		}
		if next != "" && !told && last.GetStatus().GetState() != "RollingBack" {
			w.release(next)
		}
	}
}

// batches are the clusters that were moved at the same moment.
func batches(moved map[string]time.Time) [][]fleet.ClusterName {
	by := map[time.Time][]fleet.ClusterName{}
	for _, c := range slices.Sorted(maps.Keys(moved)) {
		by[moved[c]] = append(by[moved[c]], fleet.ClusterName(c))
	}
	var out [][]fleet.ClusterName
	for _, at := range slices.SortedFunc(maps.Keys(by), time.Time.Compare) {
		out = append(out, by[at])
	}
	return out
}

// TestSimulationIsWhatHappens: the hub, with agents that answer one after the other, takes the steps that the simulation
// prints, and ends as it says.
func TestSimulationIsWhatHappens(t *testing.T) {
	rings := map[string]string{"a1": "canary", "a2": "canary", "b1": "mid", "b2": "mid", "b3": "mid", "b4": "mid", "b5": "mid", "c1": "rest", "c2": "rest"}
	for _, tc := range []struct {
		name, mid, onFailure, tolerated string
		fails, away                     []string
		state                           rollout.RunState
		steps                           int
	}{
		{"all goes well", "2", "Rollback", "", nil, nil, rollout.Succeeded, 6},
		{"one fails as tolerated, one is away", "40%", "Rollback", "1", []string{"a1"}, []string{"c1"}, rollout.Succeeded, 6},
		{"one fails and all are rolled back", "1", "Rollback", "", []string{"b2"}, nil, rollout.RolledBack, 3},
		{"one fails and it is aborted", "1", "Abort", "", []string{"b3"}, nil, rollout.Aborted, 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := &lockstep{world: newWorld(t, true), fails: map[string]bool{}, may: map[string]bool{}}
			for _, c := range tc.fails {
				w.fails[c] = true
			}
			for _, c := range slices.Sorted(maps.Keys(rings)) {
				w.join(c, w.report(c), labels(rings[c]))
			}
			w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
			for _, c := range tc.away {
				w.stops[c]()
				w.awaitCluster(c, "Disconnected")
			}
			ring := func(name string) *towlinev1.LabelSelector { return &towlinev1.LabelSelector{MatchLabels: labels(name)} }
			strategy := &towlinev1.RolloutStrategy{OnFailure: tc.onFailure, MaxFailures: tc.tolerated, Stages: []*towlinev1.Stage{
				{Name: "canary", Selector: ring("canary"), Soak: "10ms", After: []*towlinev1.Gate{
					{Webhook: &towlinev1.WebhookGate{Url: newGateServer(t, "Successful").URL}}}},
				{Name: "mid", Selector: ring("mid"), MaxConcurrency: tc.mid},
				{Name: "rest"}}}

			simulated, timeline := simulate(t, strategy, rings, tc.fails, tc.away)
			steps, ro := w.drive(w.put(staged("shop", "2", strategy)).GetRevision())

			if diff := cmp.Diff(simulated, steps); diff != "" || len(steps) != tc.steps {
				t.Errorf("%d steps, want %d (-simulated +happened)\n%s", len(steps), tc.steps, diff)
			}
			s, sum := ro.GetStatus(), timeline.Summary
			if timeline.State != tc.state || s.GetState() != string(timeline.State) {
				t.Errorf("simulated %s, happened %s, want %s", timeline.State, s.GetState(), tc.state)
			}
			want := fmt.Sprintf("%d succeeded, %d failed, %d deferred, %d moved", sum.Succeeded, sum.Failed, sum.Deferred, sum.Moved)
			if got := fmt.Sprintf("%d succeeded, %d failed, %d deferred, %d moved", s.GetSucceeded(), s.GetFailed(), s.GetDeferred(), s.GetMoved()); got != want {
				t.Errorf("simulated %s, happened %s", want, got)
			}
			for i, g := range s.GetStages() {
				if x := sum.Stages[i]; g.GetName() != x.Name || g.GetState() != string(x.State) || int(g.GetLimit()) != x.Limit {
					t.Errorf("stage %d: simulated %s %s, %d at once, happened %v", i, x.Name, x.State, x.Limit, g)
				}
			}
		})
	}
}

// simulate is what `towline rollout simulate` does; it returns the steps to revision 2.
func simulate(t *testing.T, strategy *towlinev1.RolloutStrategy, rings map[string]string, fails, away []string) ([][]fleet.ClusterName, rollout.Timeline) {
	t.Helper()
	s, err := wire.StrategyFromProto(strategy)
	must(t, err)
	in := rollout.SimInput{Strategy: s, Start: time.Now(), Seed: 1, ApplyMin: time.Second, ApplyMax: time.Hour,
		Plan: rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}, Number: 2}, Revision: 2, From: 1}}
	in.Strategy.ProgressDeadline = 2 * time.Hour // times are drawn far apart, so that no two clusters answer at once
	for _, c := range slices.Sorted(maps.Keys(rings)) {
		in.Plan.Clusters = append(in.Plan.Clusters, rollout.Candidate{Selected: true, Revision: 1,
			Cluster: fleet.Cluster{Name: fleet.ClusterName(c), Labels: labels(rings[c])}})
	}
	for _, c := range fails {
		in.Fail = append(in.Fail, fleet.ClusterName(c))
	}
	for _, c := range away {
		in.Offline = append(in.Offline, fleet.ClusterName(c))
	}
	x, err := rollout.Simulate(in)
	must(t, err)
	var steps [][]fleet.ClusterName
	for _, e := range x.Events {
		if e.Reason == rollout.SimAssign && e.Facts.Revision == 2 {
			steps = append(steps, e.Clusters)
		}
	}
	return steps, x
}

// TestSimulationDefersWhoIsHeld: by the holds that the API lists and what clusters say of themselves, the simulation defers the clusters that the
// hub defers: one that is held, the module or an object of it there, an object by its annotation, one that its own policy froze. What is
// held of another module or project, or was, keeps nobody.
func TestSimulationDefersWhoIsHeld(t *testing.T) {
	w := newWorld(t, true)
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}
	web := fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "web"}
	names := []string{"cluster", "module", "object", "annotation", "policy", "other", "free"}
	for _, c := range names {
		w.join(c, func(s fleet.Sync) fleet.SyncStatus {
			out := simagent.Ready(s)
			if c == "annotation" && s.Module == ref {
				out.Holds = []fleet.ObjectHold{{ID: web, Version: "v1", Since: time.Now()}}
			}
			return out
		}, nil)
	}
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.put(module("base", map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: base, namespace: default}}"}))
	must(t, w.agents["policy"].Tell(fleet.Condition{Type: fleet.ConditionLocalPolicy, Status: fleet.ConditionTrue, Reason: "Frozen"}))
	w.awaitConditions("policy", fleet.ConditionLocalPolicy)
	for _, h := range []*towlinev1.PutHoldRequest{{Cluster: "cluster"}, {Cluster: "module", Module: "shop"}, {Cluster: "other", Module: "base"},
		{Cluster: "object", Object: &towlinev1.ObjectReference{ApiVersion: "v1", Kind: web.Kind, Namespace: web.Namespace, Name: web.Name}}} {
		_, err := w.Modules.PutHold(w.ctx, h)
		must(t, err)
	}
	list, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{Project: ref.Project})
	must(t, err)
	in := rollout.SimInput{Start: time.Now(), Held: map[fleet.ClusterName]time.Time{},
		Plan: rollout.PlanInput{ID: fleet.RolloutID{Module: ref, Number: 2}, Revision: 2, From: 1}}
	for _, c := range names {
		in.Plan.Clusters = append(in.Plan.Clusters, rollout.Candidate{Cluster: fleet.Cluster{Name: fleet.ClusterName(c)}, Selected: true, Revision: 1})
		if until, held := wire.Stopped(w.cluster(c), ref, list.GetHolds(), true, in.Start); held {
			in.Held[fleet.ClusterName(c)] = until
		}
	}
	simulated, err := rollout.Simulate(in)
	must(t, err)
	var want, got []string
	for _, e := range simulated.Events {
		for _, c := range e.Clusters {
			if e.To == "Deferred" && e.Reason == rollout.ReasonHeld {
				want = append(want, string(c))
			}
		}
	}
	for _, c := range w.await("shop", w.put(module("shop", configMap("2"))).GetRevision()).GetStatus().GetClusters() {
		if c.GetState() == "Deferred" && c.GetReason() == rollout.ReasonHeld {
			got = append(got, c.GetCluster())
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" || len(got) != 5 {
		t.Errorf("%d are held (-simulated +happened)\n%s", len(got), diff)
	}
}
