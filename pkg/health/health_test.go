package health

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

func TestOf(t *testing.T) {
	for _, tc := range []struct {
		name, object string
		want         fleet.Health
		message      string
	}{
		{"config map", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}", fleet.HealthHealthy, ""},
		{"leaving, with finalizers", "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x.io/keep]}}",
			fleet.HealthTerminating, "waits for finalizers x.io/keep"},
		{"deployment not observed", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 2}, spec: {replicas: 1},
			status: {observedGeneration: 1, replicas: 1, readyReplicas: 1, availableReplicas: 1, updatedReplicas: 1}}`, fleet.HealthProgressing, ""},
		{"deployment ready", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 2}, spec: {replicas: 1},
			status: {observedGeneration: 2, replicas: 1, readyReplicas: 1, availableReplicas: 1, updatedReplicas: 1, conditions: [{type: Available, status: 'True'}]}}`,
			fleet.HealthHealthy, ""},
		{"deployment on its way", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 2}, spec: {replicas: 3},
			status: {observedGeneration: 2, replicas: 3, readyReplicas: 1, availableReplicas: 1, updatedReplicas: 3}}`, fleet.HealthProgressing, "1 of 3"},
		{"deployment over its deadline", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 1}, spec: {replicas: 1},
			status: {observedGeneration: 1, replicas: 1, updatedReplicas: 1, conditions: [{type: Progressing, status: 'False', reason: ProgressDeadlineExceeded}]}}`,
			fleet.HealthDegraded, ""},
		{"deployment that may make no pods", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 1}, spec: {replicas: 1},
			status: {observedGeneration: 1, conditions: [{type: ReplicaFailure, status: 'True', message: 'exceeded quota: small'}]}}`,
			fleet.HealthDegraded, "exceeded quota: small"},
		{"deployment paused in the middle", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, generation: 1}, spec: {replicas: 2, paused: true},
			status: {observedGeneration: 1, replicas: 2, updatedReplicas: 1, readyReplicas: 2, availableReplicas: 2}}`, fleet.HealthSuspended, "spec.paused"},
		{"cron job", "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {schedule: '* * * * *'}}", fleet.HealthHealthy, ""},
		{"cron job suspended", "{apiVersion: batch/v1, kind: CronJob, metadata: {name: a}, spec: {suspend: true}}", fleet.HealthSuspended, "spec.suspend"},
		{"job suspended", "{apiVersion: batch/v1, kind: Job, metadata: {name: a}, spec: {suspend: true}}", fleet.HealthSuspended, "spec.suspend"},
		{"job failed", "{apiVersion: batch/v1, kind: Job, metadata: {name: a}, status: {conditions: [{type: Failed, status: 'True', reason: BackoffLimitExceeded}]}}",
			fleet.HealthDegraded, ""},
		{"claim lost", "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, status: {phase: Lost}}", fleet.HealthDegraded, "volume is gone"},
		{"claim bound", "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: a}, status: {phase: Bound}}", fleet.HealthHealthy, ""},
		{"definition established", `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a},
			status: {conditions: [{type: NamesAccepted, status: 'True'}, {type: Established, status: 'True'}]}}`, fleet.HealthHealthy, ""},
		{"definition new", "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: a}}", fleet.HealthProgressing, ""},
		{"custom resource ready", "{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {conditions: [{type: Ready, status: 'True'}]}}", fleet.HealthHealthy, ""},
		{"custom resource not ready", "{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {conditions: [{type: Ready, status: 'False', message: waits for a lock}]}}",
			fleet.HealthProgressing, "waits for a lock"},
		{"custom resource stalled", "{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {conditions: [{type: Stalled, status: 'True', message: bad key}]}}",
			fleet.HealthDegraded, "bad key"},
		{"custom resource behind", "{apiVersion: x.io/v1, kind: X, metadata: {name: a, generation: 3}, status: {observedGeneration: 2, conditions: [{type: Ready, status: 'True'}]}}",
			fleet.HealthProgressing, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			obj := parse(t, tc.object)
			before := maps.Clone(obj)
			got := Of(obj)
			if got.Health != tc.want || !strings.Contains(got.Message, tc.message) {
				t.Errorf("%+v, want %s with %q", got, tc.want, tc.message)
			}
			if (got.Health == fleet.HealthHealthy) != (got.Reason == "") {
				t.Errorf("%s with the reason %q", got.Health, got.Reason)
			}
			if !reflect.DeepEqual(obj, before) {
				t.Error("the object was changed")
			}
		})
	}
}

func parse(t testing.TB, object string) map[string]any {
	t.Helper()
	var obj map[string]any
	raw, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(object, "\t", "")))
	if err == nil {
		err = utiljson.Unmarshal(raw, &obj)
	}
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

func TestMessagesAreBounded(t *testing.T) {
	got := Of(map[string]any{"apiVersion": "x.io/v1", "kind": "X", "metadata": map[string]any{"name": "a"}, "status": map[string]any{
		"conditions": []any{map[string]any{"type": "Stalled", "status": "True", "message": strings.Repeat("é", 4000)}}}})
	if len(got.Message) > 256 || !strings.HasSuffix(got.Message, "…") {
		t.Errorf("message of %d bytes", len(got.Message))
	}
}
