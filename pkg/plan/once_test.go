package plan

import "testing"

func TestOutcomeOf(t *testing.T) {
	job := func(kind, apiVersion, condition, status string) map[string]any {
		return map[string]any{"kind": kind, "apiVersion": apiVersion, "status": map[string]any{"phase": condition,
			"conditions": []any{map[string]any{"type": "Suspended", "status": "True"}, map[string]any{"type": condition, "status": status}}}}
	}
	for _, tc := range []struct {
		name string
		obj  map[string]any
		want Outcome
	}{
		{"complete", job("Job", "batch/v1", "Complete", "True"), Completed},
		{"failed", job("Job", "batch/v1", "Failed", "True"), Failed},
		{"failing", job("Job", "batch/v1", "FailureTarget", "True"), Running},
		{"not failed", job("Job", "batch/v1", "Failed", "False"), Running},
		{"no status", map[string]any{"kind": "Job", "apiVersion": "batch/v1"}, Running},
		{"another Job", job("Job", "example.com/v1", "Complete", "True"), Running},
		{"a pod that ran", job("Pod", "v1", "Succeeded", ""), Completed},
		{"a pod that failed", job("Pod", "v1", "Failed", ""), Running},
	} {
		if got := OutcomeOf(tc.obj); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
