package health_test

import (
	"testing"

	"towline.dev/towline/pkg/health"
)

// TestRunOfACronJobIsOfTheTemplateThatItBeganWith: a run that was scheduled before the CronJob was changed last has pods of the older
// template, and begins more of them: where one fails, and where it has several. So may one that was scheduled as the change was made.
func TestRunOfACronJobIsOfTheTemplateThatItBeganWith(t *testing.T) {
	cronJob := func(active ...string) map[string]any {
		runs := make([]any, len(active))
		for i, name := range active {
			runs[i] = map[string]any{"kind": "Job", "name": name, "namespace": "shop"}
		}
		return map[string]any{"apiVersion": "batch/v1", "kind": "CronJob",
			"metadata": map[string]any{"name": "backup", "namespace": "shop", "generation": int64(2), "managedFields": []any{
				map[string]any{"manager": "towline", "operation": "Apply", "time": "2026-11-24T02:30:00Z"},
				map[string]any{"manager": "kube-controller-manager", "operation": "Update", "time": "2026-11-24T03:00:00Z", "subresource": "status"}}},
			"spec":   map[string]any{"concurrencyPolicy": "Allow"},
			"status": map[string]any{"lastScheduleTime": "2026-11-24T03:00:00Z", "active": runs}}
	}
	// The minutes are 02:00, 02:30, 02:31 and 03:00.
	const before, meanwhile, next, now = "backup-29924760", "backup-29924790", "backup-29924791", "backup-29924820"
	suspended := cronJob(before)
	suspended["spec"] = map[string]any{"suspend": true}
	first := cronJob()
	first["metadata"].(map[string]any)["generation"], first["status"] = int64(1), nil
	for name, tc := range map[string]struct {
		obj map[string]any
		old int
	}{
		"a run of before":                        {cronJob(before), 1},
		"one of the very minute":                 {cronJob(meanwhile), 1},
		"one of the next minute":                 {cronJob(next), 0},
		"a run of now":                           {cronJob(now), 0},
		"several":                                {cronJob(before, meanwhile, now), 2},
		"nobody knows of when it is":             {cronJob("backup-of-ana"), 1},
		"no run":                                 {cronJob(), 0},
		"suspended, and a run of before goes on": {suspended, 1},
		"new":                                    {first, 0},
	} {
		if got := health.Old(tc.obj); got != tc.old {
			t.Errorf("%s: %d, want %d", name, got, tc.old)
		}
	}
}
