package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// TestWhatARunOfACronJobUsesStays: a run that began before a revision changed its CronJob goes on with the template of before, and takes its
// environment from what the revision drops. That is said, keeps nothing else from being done, and ends with the run: also where the CronJob
// is suspended meanwhile. With pruneWhen: AfterApply nothing is waited for.
func TestWhatARunOfACronJobUsesStays(t *testing.T) {
	r := newRig(t)
	var policies []fleet.Policy
	revision := func(config string, suspend bool) fleet.Sync {
		s := r.bundle("shop", policies, configMap(config, "k: v"), fmt.Sprintf(`
apiVersion: batch/v1
kind: CronJob
metadata: {name: backup, namespace: $NS}
spec:
  schedule: "0 0 29 2 *"
  suspend: %t
  jobTemplate:
    spec:
      template:
        spec:
          restartPolicy: Never
          containers: [{name: main, image: "never-ready:1", envFrom: [{configMapRef: {name: %s}}]}]
`, suspend, config))
		r.set([]fleet.Sync{s})
		return s
	}
	r.ready(revision("backup-1", false))
	run := r.runs(time.Now()) // which does not end by itself
	said := "CronJob.batch " + r.ns + "/backup has 1"
	for _, config := range []string{"backup-2", "backup-3"} {
		s := revision(config, config == "backup-3")
		r.wait("shop", said, func(x fleet.SyncStatus) bool {
			return x.Generation == s.Generation && x.Ready && x.Reason == plan.ReasonAwaitingUpdate && slices.Contains(names(x.Extras, plan.ReasonAwaitingUpdate), "backup-1") &&
				strings.Contains(x.Message, said)
		})
		if r.get("v1", "configmaps", "backup-1") == nil {
			t.Fatal("deleted while the run uses it")
		}
	}
	r.ends(run)
	r.wait("shop", "through", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 && x.Reason == "" })
	if r.get("v1", "configmaps", "backup-1") != nil || r.get("v1", "configmaps", "backup-2") != nil {
		t.Error("what no run uses any more is there still")
	}

	r.runs(time.Now().Add(-time.Minute))
	policies = []fleet.Policy{{PruneWhen: fleet.PruneAfterApply}}
	s := revision("backup-4", true)
	r.wait("shop", "through", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Ready && len(x.Extras) == 0 })
}

// runs makes a run of the CronJob as its controller does, and returns the name of its Job.
func (r *rig) runs(scheduled time.Time) string {
	r.t.Helper()
	cronJob := r.get("batch/v1", "cronjobs", "backup")
	spec, _, err := unstructured.NestedMap(cronJob.Object, "spec", "jobTemplate", "spec")
	if err != nil {
		r.t.Fatal(err)
	}
	name := fmt.Sprintf("backup-%d", scheduled.Unix()/60)
	job, err := r.res("batch/v1", "jobs", r.ns).Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1", "kind": "Job",
		"metadata": map[string]any{"name": name, "namespace": r.ns, "ownerReferences": []any{map[string]any{"apiVersion": "batch/v1", "kind": "CronJob",
			"name": "backup", "uid": string(cronJob.GetUID()), "controller": true}}}, "spec": spec}}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.patch("batch/v1", "cronjobs", "backup", "kube-controller-manager", fmt.Sprintf(
		`{"status":{"lastScheduleTime":%q,"active":[{"apiVersion":"batch/v1","kind":"Job","name":%q,"namespace":%q,"uid":%q}]}}`,
		scheduled.Truncate(time.Minute).UTC().Format(time.RFC3339), name, r.ns, job.GetUID()), "status")
	return name
}

// ends has a run be gone, as its controller says then.
func (r *rig) ends(run string) {
	r.t.Helper()
	r.delete("batch/v1", "jobs", run)
	r.patch("batch/v1", "cronjobs", "backup", "kube-controller-manager", `{"status":{"active":null}}`, "status")
}
