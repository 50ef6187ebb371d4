package cli

import (
	"testing"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/rollout"
)

// TestBudgetIsWhatFailuresDo: what is said of the next failure is what pkg/rollout does then.
func TestBudgetIsWhatFailuresDo(t *testing.T) {
	for _, tc := range []struct {
		name, state, want string
		facts             *v1.Facts
	}{
		{"a stage tolerates less than the rollout", "Progressing", "Failures 1, tolerated 3: one more in stage canary rolls back 4 moved clusters.",
			&v1.Facts{Code: rollout.OnFailureRollback, Stage: "canary"}},
		{"a person accepted some", "Progressing", "Failures 1, tolerated 3: 3 more roll back 4 moved clusters.",
			&v1.Facts{Code: rollout.OnFailureRollback, Failed: 1, Tolerated: 3}},
		{"it goes back", "RollingBack", "Failures on the way back 0, tolerated 0: one more pauses it.", &v1.Facts{Code: rollout.OnFailurePause}},
		{"too many failed on the way back", "Paused", "Failures 1, tolerated 3.", &v1.Facts{Failed: 1}},
	} {
		r := &v1.Rollout{FromRevision: 1, Strategy: &v1.RolloutStrategy{OnFailure: rollout.OnFailureRollback}, Status: &v1.RolloutStatus{State: tc.state,
			Failed: 1, Tolerated: 3, Moved: 4, WaitingFor: []*v1.Reason{{Subject: &v1.Subject{Kind: rollout.AboutBudget}, Facts: tc.facts}}}}
		if got := budgetText(r); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
