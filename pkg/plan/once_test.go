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

// An attempt whose answer was lost is known by the Events about an object of its name: not by those of one that began before, or that
// is on record, nor of one that has not ended.
func TestAttempt(t *testing.T) {
	for name, tc := range map[string]struct {
		events []Event
		uid    string
		end    Outcome
	}{
		"none":               {},
		"completed":          {events: []Event{{"b", "SuccessfulCreate", 10}, {"b", "Completed", 11}}, uid: "b", end: Completed},
		"failed":             {events: []Event{{"b", "BackoffLimitExceeded", 11}}, uid: "b", end: Failed},
		"began before":       {events: []Event{{"a", "SuccessfulCreate", 9}, {"a", "Completed", 10}}},
		"is on record":       {events: []Event{{"known", "Completed", 10}}},
		"has not ended":      {events: []Event{{"b", "SuccessfulCreate", 10}}},
		"the newer one":      {events: []Event{{"a", "SuccessfulCreate", 3}, {"a", "Completed", 10}, {"b", "Completed", 12}}, uid: "b", end: Completed},
		"of the same second": {events: []Event{{"b", "SuccessfulCreate", 10}, {"b", "Completed", 10}}, uid: "b", end: Completed},
	} {
		t.Run(name, func(t *testing.T) {
			if uid, end := Attempt(tc.events, 10, "known"); uid != tc.uid || end != tc.end {
				t.Errorf("got %q %s", uid, end)
			}
		})
	}
}
