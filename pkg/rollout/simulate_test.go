package rollout_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

func simFleet(n int) []rollout.Candidate {
	out := make([]rollout.Candidate, n)
	for i := range out {
		ring := "rest"
		if i < n/20 || i == 0 {
			ring = "canary"
		}
		out[i] = rollout.Candidate{Cluster: fleet.Cluster{Name: fleet.ClusterName(fmt.Sprintf("c%05d", i)), Labels: map[string]string{"ring": ring}},
			Selected: true, Revision: 1}
	}
	return out
}

func simInput(n int) rollout.SimInput {
	return rollout.SimInput{
		Start: epoch, Seed: 7,
		Plan: rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: 1},
			Revision: 2, From: 1, StartedBy: "ana", Clusters: simFleet(n)},
		Strategy: rollout.Strategy{
			MaxFailures: rollout.Percent(2), OnFailure: rollout.OnFailureRollback,
			Stages: []rollout.Stage{
				{Name: "canary", Selector: &fleet.Selector{MatchLabels: map[string]string{"ring": "canary"}}, Soak: 5 * time.Minute,
					After: []rollout.Gate{{Approval: &rollout.Approval{}}}},
				{Name: "rest", MaxConcurrency: rollout.Percent(25)},
			}},
	}
}

func TestSimulation(t *testing.T) {
	in := simInput(100)
	a, err := rollout.Simulate(in)
	if err != nil {
		t.Fatal(err)
	}
	if a.State != rollout.Succeeded || a.Summary.Succeeded != 100 || a.MaxNotReady > 23 || a.Duration < 5*time.Minute {
		t.Errorf("%s after %s, %d succeeded, %d not ready at once", a.State, a.Duration, a.Summary.Succeeded, a.MaxNotReady)
	}
	b, _ := rollout.Simulate(in)
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Error("the same seed gave another timeline")
	}
	in.Seed = 8
	if c, _ := rollout.Simulate(in); fmt.Sprint(a) == fmt.Sprint(c) {
		t.Error("another seed gave the same timeline")
	}
}

func TestSimulationOfFailures(t *testing.T) {
	in := simInput(100)
	in.Fail = []fleet.ClusterName{"c00002", "c00050", "c00051"}
	got, err := rollout.Simulate(in)
	if err != nil {
		t.Fatal(err)
	}
	if got.State != rollout.RolledBack || got.Summary.Succeeded != 0 || got.Summary.RolledBack != got.Summary.Moved {
		t.Errorf("%s: %+v", got.State, got.Summary.Counts)
	}
	in.Strategy.OnFailure = rollout.OnFailurePause
	if got, _ = rollout.Simulate(in); got.State != rollout.Paused || !got.Stuck || got.Summary.Failed != 3 {
		t.Errorf("%s, stuck %t, %d failed", got.State, got.Stuck, got.Summary.Failed)
	}
}

func TestSimulationOfOffline(t *testing.T) {
	in := simInput(200)
	in.OfflinePercent = 20
	got, err := rollout.Simulate(in)
	if err != nil {
		t.Fatal(err)
	}
	if d := got.Summary.Deferred; got.State != rollout.Succeeded || d != 40 || got.Summary.Succeeded+d != 200 {
		t.Errorf("%s with %d deferred, %d succeeded", got.State, d, got.Summary.Succeeded)
	}
}

func TestSimulationOfGates(t *testing.T) {
	in := simInput(40)
	in.Gates = map[string]rollout.GateState{"canary/after/approval": rollout.GateFailed}
	if got, err := rollout.Simulate(in); err != nil || got.State != rollout.RolledBack {
		t.Errorf("rejected: %s, %v", got.State, err)
	}
	in.Gates = map[string]rollout.GateState{"canary/after/approval": rollout.GatePending}
	if got, err := rollout.Simulate(in); err != nil || !got.Stuck || got.Reason != rollout.ReasonApproval {
		t.Errorf("unanswered: %s %s, %v", got.State, got.Reason, err)
	}
	in.Gates = map[string]rollout.GateState{"canary/after/aproval": rollout.GateFailed}
	if _, err := rollout.Simulate(in); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a gate that is not there: %v", err)
	}
	in.Gates, in.Fail = nil, []fleet.ClusterName{"nobody"}
	if _, err := rollout.Simulate(in); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("a cluster that is not there: %v", err)
	}
}

// TestSimulationOfHolds: who is held is deferred and never moved, until the hold ends while the rollout runs.
func TestSimulationOfHolds(t *testing.T) {
	start := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	in := rollout.SimInput{Start: start, Strategy: rollout.Strategy{Stages: []rollout.Stage{{Name: "all", MaxConcurrency: rollout.Percent(20)}}},
		ApplyMin: time.Minute, ApplyMax: time.Minute, Held: map[fleet.ClusterName]time.Time{"a": {}, "b": start.Add(90 * time.Second)},
		Plan: rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: 2}, Revision: 2, From: 1}}
	for _, c := range []fleet.ClusterName{"a", "b", "c", "d", "e"} {
		in.Plan.Clusters = append(in.Plan.Clusters, rollout.Candidate{Cluster: fleet.Cluster{Name: c}, Selected: true, Revision: 1})
	}
	got, err := rollout.Simulate(in)
	if err != nil {
		t.Fatal(err)
	}
	moved := map[fleet.ClusterName]time.Duration{}
	for _, e := range got.Events {
		for _, c := range e.Clusters {
			if e.Reason == rollout.SimAssign {
				moved[c] = e.At
			}
		}
	}
	if at, is := moved["a"]; is || moved["b"] < 90*time.Second || got.State != rollout.Succeeded || got.Summary.Deferred != 1 || got.Summary.Succeeded != 4 {
		t.Errorf("%s, %d deferred; a moved at %s (%t), b at %s", got.State, got.Summary.Deferred, at, is, moved["b"])
	}
}

// TestSimulationOfAHeldOneThatHasIt: one that is held and has the revision already, as where the strategy is put anew, does well there, as
// all do that the simulation begins with, and stops nothing.
func TestSimulationOfAHeldOneThatHasIt(t *testing.T) {
	in := rollout.SimInput{Start: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), ApplyMin: time.Minute, ApplyMax: time.Minute,
		Strategy: rollout.Strategy{Stages: []rollout.Stage{{Name: "canary", Selector: &fleet.Selector{MatchLabels: map[string]string{"ring": "canary"}}}, {Name: "rest"}}},
		Held:     map[fleet.ClusterName]time.Time{"a": {}},
		Plan:     rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: 2}, Revision: 2, From: 1}}
	for name, revision := range map[fleet.ClusterName]int64{"a": 2, "b": 1, "c": 1} {
		c := rollout.Candidate{Cluster: fleet.Cluster{Name: name, Labels: map[string]string{"ring": "canary"}}, Selected: true, Revision: revision}
		if name == "c" {
			c.Cluster.Labels = nil
		}
		in.Plan.Clusters = append(in.Plan.Clusters, c)
	}
	if got, err := rollout.Simulate(in); err != nil || got.State != rollout.Succeeded || got.Summary.Succeeded != 2 {
		t.Errorf("%s %s, %+v: %v", got.State, got.Reason, got.Summary.Counts, err)
	}
}
