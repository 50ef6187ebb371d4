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
