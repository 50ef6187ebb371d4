package tracker

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestRemovalThatCannotBeSeen: a module goes from a cluster whose agent does not see it, as its API server is not reached. Why that is so is
// said as it is of a module that stays.
func TestRemovalThatCannotBeSeen(t *testing.T) {
	blind := &fleet.Condition{Message: "the API server is not reached: connection refused"}
	got := Fold(Input{Tombstone: &fleet.Tombstone{Generation: 9}, Blind: blind, Observed: &fleet.SyncStatus{Generation: 8, States: make([]fleet.ObjectState, 1)}})
	if got.Reason != fleet.TrackerNotSeen || got.Message != blind.Message || got.Health != fleet.HealthTerminating || got.Counts.Objects != 1 {
		t.Errorf("%+v", got)
	}
}
