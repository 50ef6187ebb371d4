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

// TestWhatAPolicyLeavesMissing: an object that somebody deleted, and that a policy leaves so, is not why a module is not ready while another one is
// on its way. One that cannot be made again is.
func TestWhatAPolicyLeavesMissing(t *testing.T) {
	left := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftDrifted}
	for name, tc := range map[string]struct {
		reason string
		other  fleet.Health
		ready  bool
		class  Class
		health fleet.Health
	}{
		"another one progresses":                        {fleet.ObjectMissing, fleet.HealthProgressing, false, Progressing, fleet.HealthProgressing},
		"another one progresses, and this is held":      {fleet.ObjectHeld, fleet.HealthProgressing, false, Progressing, fleet.HealthProgressing},
		"another one is degraded":                       {fleet.ObjectMissing, fleet.HealthDegraded, false, Bad, fleet.HealthDegraded},
		"all others do well":                            {fleet.ObjectMissing, fleet.HealthHealthy, true, Healthy, fleet.HealthMissing},
		"it is to be made again, which fails":           {"Forbidden", fleet.HealthProgressing, false, Bad, fleet.HealthMissing},
		"it is to be made again, and others do well":    {fleet.ObjectMissing, fleet.HealthHealthy, false, Bad, fleet.HealthMissing},
		"it is to be made again, which fails, and that": {"Forbidden", fleet.HealthHealthy, false, Bad, fleet.HealthMissing},
	} {
		report := with(observed(fleet.PhaseApplied, tc.ready, health(tc.other), left), func(s *fleet.SyncStatus) {
			s.Exceptions = []fleet.ObjectException{{Ordinal: 1, Reason: tc.reason, Message: "ConfigMap a: was deleted"}}
		})
		got := Fold(Input{Connected: true, Desired: desired(2), Observed: report})
		if Classify(got) != tc.class || got.Health != tc.health || got.Ready != tc.ready {
			t.Errorf("%s: %+v", name, got)
		}
		away := Fold(Input{Desired: desired(2), Observed: report})
		if away.Was == nil || away.Was.Health != tc.health {
			t.Errorf("%s, away since: %+v", name, away)
		}
	}
}
