package rollouts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
)

// failingCanary: the hub dies when the module has just been put, while the canary is on its way to its deadline, and in
// the middle of the rollback.
func failingCanary(w *world) {
	from := w.mark()
	broken := revision{n: 2, broken: true, deadline: "8s", stages: noGates}
	foreseen := w.simulate(broken, "--fail", "c1")
	w.put(broken)
	w.killHub()
	w.begun(2, "c1")
	w.killHub()
	ro := w.until("the canary has timed out", func(r *v1.Rollout) bool {
		s := r.GetStatus().GetState()
		return r.GetNumber() == 2 && (s == "RollingBack" || s == "RolledBack")
	})
	if ro.GetStatus().GetState() == "RollingBack" {
		w.killHub()
	}
	ro = w.in(2, "RolledBack", "")
	s := ro.GetStatus()
	if s.GetMoved() != 1 || s.GetTotal() != 4 || progress(ro, "c1").GetState() != "RolledBack" {
		w.t.Errorf("moved %d of %d, c1 %v", s.GetMoved(), s.GetTotal(), progress(ro, "c1"))
	}
	for _, c := range []string{"c2", "c3", "c4"} {
		if p := progress(ro, c); p.GetState() != "ToApply" || p.GetRevision() != 1 {
			w.t.Errorf("cluster %s, which nothing should have touched: %v", c, p)
		}
	}
	w.foreseen(foreseen, ro)
	w.isEverywhere(1)
	w.writes(from, 2, 0, 0, 0) // there and back
	w.ends("web/2", 1, "RolledBack")
	w.moduleIs("stays at r1", func(m *v1.ModuleStatus) bool {
		return m.GetRolledBack() && m.GetHealthy() == 4 && m.GetRevision() == 2 && m.GetSucceededRevision() == 1
	})
	// The same module again: it stays where it is, and says so.
	r := w.Feed(w.t.Context(), broken.yaml(), "apply", "-f", "-")
	if said := r.Stdout + r.Stderr; r.Code != 0 || !strings.Contains(said, "unchanged") || !strings.Contains(said, "stays at r1") {
		w.t.Errorf("put again after a rollback: exit %d: %s", r.Code, said)
	}
}

// approval lets somebody look at the canary.
const approval = `  - {name: canary, selector: {matchLabels: {ring: canary}}, after: [{approval: {}}]}
  - {name: rest, maxConcurrency: 50%}
`

// approvedWithOneAway: the hub dies in each phase: resolving, canary, approval, just approved, rest on its way, one
// cluster away, all done.
func approvedWithOneAway(w *world) {
	from := w.mark()
	w.put(revision{n: 3, stages: approval})
	w.killHub()
	w.begun(3, "c1")
	w.killHub()
	w.in(3, "Waiting", "Approval")
	w.killHub()
	w.in(3, "Waiting", "Approval")
	w.isEverywhere(3, "c1")
	w.isEverywhere(1, "c2", "c3", "c4")
	w.writes(from, 1, 0, 0, 0)
	if r := w.CLI(w.t.Context(), "rollout", "approve", "web"); r.Code != 1 || !strings.Contains(r.Stderr, "admin") {
		w.t.Errorf("approval by the one who started it: exit %d: %s", r.Code, r.Stderr)
	}
	must(w.t, w.As(w.t.Context(), w.maria, "", "rollout", "approve", "web", "--revision", "r3", "-m", "canary looks good").Err())
	w.killHub()

	w.begun(3, "c2")
	w.killHub()
	ro := w.at(3, "c3", "Progressing")
	if p := progress(ro, "c4"); p.GetState() != "Waiting" && p.GetState() != "ToApply" {
		w.t.Errorf("half of three clusters is one at a time, but c3 is on its way and c4 is %v", p)
	}
	lost := w.Clusters[2]
	w.truth.goesAway("c3")
	lost.Agent.Kill()
	w.at(3, "c3", "Deferred")
	w.killHub()
	ro = w.in(3, "Succeeded", "")
	s := ro.GetStatus()
	if s.GetTotal() != 4 || s.GetSucceeded() != 3 || s.GetDeferred() != 1 || s.GetFailed() != 0 || progress(ro, "c3").GetState() != "Deferred" {
		w.t.Errorf("with c3 away: %v", s)
	}
	w.isEverywhere(3, "c1", "c2", "c4")
	out := w.ends("web/3", 0, "Succeeded")
	if !strings.Contains(out, "1 deferred") {
		w.t.Errorf("nothing says that one is deferred: %s", out)
	}
	if r := w.CLI(w.t.Context(), "rollout", "wait", "web", "--strict"); r.Code != 1 {
		w.t.Errorf("--strict with a deferred cluster: exit %d", r.Code)
	}
	w.moduleIs("counts c3 as away", func(m *v1.ModuleStatus) bool {
		return m.GetClusters() == 4 && m.GetHealthy() == 3 && m.GetAway() == 1 && m.GetProgressing()+m.GetBad() == 0
	})

	w.killHub()
	must(w.t, lost.Agent.Start())
	w.eventually("c3 catches up", func() error { return runs(w.t.Context(), lost, revision{n: 3}.image()) })
	w.eventually("the rollout counts c3", func() error {
		r, err := w.hub.Rollouts.GetRollout(w.t.Context(), &v1.GetRolloutRequest{Module: "web", Number: 3})
		if err != nil {
			return err
		}
		if s := r.GetRollout().GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 4 || s.GetDeferred() != 0 {
			return fmt.Errorf("%v", s)
		}
		return nil
	})
	w.moduleIs("is healthy everywhere", func(m *v1.ModuleStatus) bool { return m.GetHealthy() == 4 && m.GetUpdated() == 4 })
	w.isEverywhere(3)
	w.writes(from, 1, 1, -2, 1) // perhaps the agent of c3 had not noted its write when it was killed
	verbs := w.get(3).GetStatus().GetVerbs()
	last := verbs[len(verbs)-1]
	if last.GetVerb() != "approve" || last.GetBy() != "maria" || last.GetReason() != "canary looks good" || last.GetRevision() != 3 || last.GetOutcome() != "accepted" {
		w.t.Errorf("who approved, and why: %v", verbs)
	}
}

// superseding: a newer revision is put while one is on its way, and the hub dies right after.
func superseding(w *world) {
	w.put(revision{n: 4, stages: noGates})
	w.begun(4, "c1")
	foreseen := w.simulate(revision{n: 5, stages: noGates})
	w.put(revision{n: 5, stages: noGates})
	w.killHub()
	ro := w.in(5, "Succeeded", "")
	w.foreseen(foreseen, ro)
	if s := ro.GetStatus(); s.GetSucceeded() != 4 {
		w.t.Errorf("web/5: %v", s)
	}
	w.isEverywhere(5)
	if s := w.get(4).GetStatus(); s.GetState() != "Superseded" || s.GetSupersededBy() != "web/5" {
		w.t.Errorf("web/4: %v", s)
	}
	w.ends("web/4", 5, "Superseded")
	history := w.towline("rollout", "history", "web")
	for _, word := range []string{"web/1", "web/2", "web/3", "web/4", "web/5", "RolledBack", "Superseded"} {
		if !strings.Contains(history, word) {
			w.t.Errorf("the history lacks %s:\n%s", word, history)
		}
	}
}

// simulation is what `rollout simulate` says.
type simulation struct {
	Revision int64
	State    string
	Events   []struct {
		Subject  struct{ Kind string }
		Reason   string
		Facts    map[string]any
		Clusters []string
	}
	Stages []struct {
		Name, State         string
		Total, Done, Failed int32
	}
}

func (w *world) simulate(r revision, flags ...string) simulation {
	w.t.Helper()
	got := w.Feed(w.t.Context(), r.yaml(), append([]string{"rollout", "simulate", "-f", "-", "-o", "json", "--ready-after", "1s-3s"}, flags...)...)
	must(w.t, got.Err())
	var out simulation
	must(w.t, json.Unmarshal([]byte(got.Stdout), &out))
	return out
}

// foreseen holds a rollout against its simulation: the order in which clusters were moved first, the stages and the end.
func (w *world) foreseen(x simulation, ro *v1.Rollout) {
	w.t.Helper()
	var want, got []string
	for _, e := range x.Events {
		if e.Subject.Kind == "Step" && e.Reason == "Assign" && fmt.Sprint(e.Facts["revision"]) == fmt.Sprint(ro.GetRevision()) {
			want = append(want, e.Clusters...)
		}
	}
	var moved []*v1.ClusterProgress
	for _, c := range ro.GetStatus().GetClusters() {
		if c.GetStarted() != nil {
			moved = append(moved, c)
		}
	}
	slices.SortFunc(moved, func(a, b *v1.ClusterProgress) int { return a.GetStarted().AsTime().Compare(b.GetStarted().AsTime()) })
	for _, c := range moved {
		got = append(got, c.GetCluster())
	}
	if !slices.Equal(want, got) || x.State != ro.GetStatus().GetState() || x.Revision != ro.GetRevision() {
		w.t.Errorf("%s: simulated %v to r%d, %s; happened %v to r%d, %s", ro.GetId(), want, x.Revision, x.State, got, ro.GetRevision(), ro.GetStatus().GetState())
	}
	for i, g := range ro.GetStatus().GetStages() {
		if s := x.Stages[i]; s.Name != g.GetName() || s.State != g.GetState() || s.Total != g.GetTotal() || s.Done != g.GetDone() {
			w.t.Errorf("%s: simulated %+v, happened %v", ro.GetId(), s, g)
		}
	}
}

// ends asks the command line for the result of a rollout that is over.
func (w *world) ends(id string, code int, state string) string {
	w.t.Helper()
	r := w.CLI(w.t.Context(), "rollout", "wait", "--id", id, "--timeout", "10s")
	if r.Code != code || !strings.Contains(r.Stdout, state) {
		w.t.Errorf("towline rollout wait --id %s: exit %d, want %d and %s: %s%s", id, r.Code, code, state, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// moduleIs waits for the module's status: after a start of the hub its agents come back one after the other.
func (w *world) moduleIs(what string, ok func(*v1.ModuleStatus) bool) {
	w.t.Helper()
	w.eventually("the module "+what, func() error {
		m, err := w.hub.Modules.GetModule(w.t.Context(), &v1.GetModuleRequest{Name: w.module})
		if err != nil || ok(m.GetModule().GetStatus()) {
			return err
		}
		return fmt.Errorf("%v", m.GetModule().GetStatus())
	})
}

func (w *world) get(number int64) *v1.Rollout {
	w.t.Helper()
	r, err := w.hub.Rollouts.GetRollout(w.t.Context(), &v1.GetRolloutRequest{Module: w.module, Number: number})
	must(w.t, err)
	return r.GetRollout()
}
