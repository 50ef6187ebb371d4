package tracker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestRemovalCountsWhatIsLeft: before the agent has reported on the tombstone, what it reported last is there.
func TestRemovalCountsWhatIsLeft(t *testing.T) {
	ref := fleet.ModuleRef{Project: "default", Name: "shop"}
	got := Fold(Input{Tombstone: &fleet.Tombstone{Module: ref, Generation: 4}, Observed: &fleet.SyncStatus{Module: ref, Generation: 3,
		Phase: fleet.PhaseApplied, States: make([]fleet.ObjectState, 5), Extras: make([]fleet.ExtraObject, 2)}})
	if got.Counts.Objects != 7 || got.Removed {
		t.Errorf("%+v, want 7 objects", got)
	}
}

// TestClusterThatLeavesIsNotUnreported: an agent whose cluster leaves the fleet says of the generation that it had how far that is. It is told of no
// other, so that nothing is on its way to it.
func TestClusterThatLeavesIsNotUnreported(t *testing.T) {
	want := fleet.Sync{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Generation: 3, Bundle: fleet.DigestOf([]byte("b")), Objects: 2}
	for _, tc := range []struct {
		leaves          bool
		said            fleet.SyncStatus
		reason, message string
	}{
		{true, fleet.SyncStatus{Generation: 3, Phase: fleet.PhaseRemoving, Reason: "Removing"}, fleet.TrackerLeaving, ""},
		{true, fleet.SyncStatus{Generation: 3, Phase: fleet.PhaseHeld, Reason: "Held", Message: "held"}, "Held", "held"},
		{true, fleet.SyncStatus{Generation: 2, Phase: fleet.PhaseRemoving, Reason: "Removing"}, fleet.TrackerLeaving, ""},  // a hold ended since
		{false, fleet.SyncStatus{Generation: 2, Phase: fleet.PhaseRemoving, Reason: "Removing"}, fleet.TrackerSending, ""}, // of what it had before
		{true, fleet.SyncStatus{Generation: 3, Bundle: want.Bundle, Phase: fleet.PhaseHeld, Reason: "Held", Message: "held", States: make([]fleet.ObjectState, 2)}, "Held", "held"},
		{true, fleet.SyncStatus{Generation: 2, Bundle: want.Bundle, Phase: fleet.PhaseApplied, States: make([]fleet.ObjectState, 2)}, fleet.TrackerSending, ""},
	} {
		got := Fold(Input{Desired: &want, Connected: true, Observed: &tc.said, ClusterLeaves: tc.leaves})
		if got.Reason != tc.reason || got.Message != tc.message || got.Ready || got.Fine() {
			t.Errorf("%+v: %+v", tc.said, got)
		}
	}
}

// TestMissing: an object whose turn to be written has not come is on its way; one that is gone afterwards is bad.
func TestMissing(t *testing.T) {
	want := fleet.Sync{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Generation: 3, Bundle: fleet.DigestOf([]byte("b")), Objects: 2}
	for phase, class := range map[fleet.SyncPhase]Class{
		fleet.PhaseApplying: Progressing, fleet.PhaseApplied: Bad, fleet.PhaseHeld: Bad, fleet.PhaseFailed: Bad,
	} {
		got := Fold(Input{Desired: &want, Connected: true, Observed: &fleet.SyncStatus{Module: want.Module, Generation: 3, Bundle: want.Bundle,
			Phase: phase, States: []fleet.ObjectState{
				{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync},
				{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftInSync}}}})
		if got.Ready || Classify(got) != class {
			t.Errorf("%s: ready %t, class %d, want class %d: %+v", phase, got.Ready, Classify(got), class, got)
		}
	}
}
