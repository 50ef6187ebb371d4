package rollout_test

import (
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// TestSimulatedRollbackOfAWidenedPlacement: a module comes to a cluster that has nothing of it yet, fails elsewhere, and goes back by itself,
// as it does in a fleet. The simulation says so, and not that a person is needed: the new cluster loses it, unless the placement of before
// has it there as well.
func TestSimulatedRollbackOfAWidenedPlacement(t *testing.T) {
	for name, tc := range map[string]struct {
		unselected bool
		takes      int
		back       int // to the revision of before
	}{
		"only the new placement has it": {true, 1, 2},
		"both have it":                  {false, 0, 3},
	} {
		clusters := []rollout.Candidate{
			{Cluster: fleet.Cluster{Name: "a"}, Selected: true, Revision: 1}, {Cluster: fleet.Cluster{Name: "b"}, Selected: true, Revision: 1},
			{Cluster: fleet.Cluster{Name: "new"}, Selected: true, UnselectedOlder: tc.unselected}}
		got, err := rollout.Simulate(rollout.SimInput{Start: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC), Fail: []fleet.ClusterName{"a"},
			Strategy: rollout.Strategy{OnFailure: rollout.OnFailureRollback},
			Plan:     rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: 2}, Revision: 2, From: 1, Clusters: clusters}})
		if err != nil {
			t.Fatal(err)
		}
		if got.State != rollout.RolledBack || got.Stuck {
			t.Errorf("%s: %s (%s), stuck: %t; want RolledBack", name, got.State, got.Reason, got.Stuck)
		}
		takes, back := 0, 0
		for _, e := range got.Events {
			switch {
			case e.Reason == rollout.SimTake:
				takes += len(e.Clusters)
			case e.Reason == rollout.SimAssign && e.Facts.Revision == 1:
				back += len(e.Clusters)
			}
		}
		if takes != tc.takes || back != tc.back {
			t.Errorf("%s: taken from %d, back in %d; want %d and %d", name, takes, back, tc.takes, tc.back)
		}
	}
}
