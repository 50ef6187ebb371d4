package worker

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// TestJobThatAPersonRunsAgain: a person deletes a Job that has run, and makes it anew with all that it carried. What ran is done for its content, and
// it is said that there is another one, of which this tells nothing.
func TestJobThatAPersonRunsAgain(t *testing.T) {
	r := newRig(t)
	one := r.bundle("shop", nil, "apiVersion: batch/v1\nkind: Job\nmetadata: {name: j, namespace: $NS}\n"+
		"spec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}\n")
	r.set([]fleet.Sync{one})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	r.patch("batch/v1", "jobs", "j", "controller", `{"status":{"startTime":"2026-01-01T00:00:00Z","completionTime":"2026-01-01T00:00:01Z","succeeded":1,"uncountedTerminatedPods":{},
		"conditions":[{"type":"SuccessCriteriaMet","status":"True"},{"type":"Complete","status":"True"}]}}`, "status")
	r.ready(one)
	jobs, live := r.res("batch/v1", "jobs", r.ns), r.get("batch/v1", "jobs", "j")
	background := metav1.DeletePropagationBackground
	if err := jobs.Delete(context.Background(), "j", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	says := func(what string, another bool) {
		t.Helper()
		r.wait("shop", what, func(x fleet.SyncStatus) bool {
			return x.Ready && len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "Completed" && strings.Contains(x.Exceptions[0].Message, "another object") == another
		})
	}
	says("said to be taken away", false)
	r.create("batch/v1", "jobs", r.ns, map[string]any{"apiVersion": "batch/v1", "kind": "Job",
		"metadata": map[string]any{"name": "j", "namespace": r.ns, "labels": map[string]any{fleet.HubLabel: live.GetLabels()[fleet.HubLabel]},
			"annotations": map[string]any{fleet.OwnerAnnotation: live.GetAnnotations()[fleet.OwnerAnnotation]}},
		"spec": map[string]any{"suspend": true, "template": map[string]any{"spec": map[string]any{"restartPolicy": "Never",
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}})
	says("told of the other one", true)
}
