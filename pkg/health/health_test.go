package health

import (
	"strings"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

// TestOf: by itself an object does not say when we wrote it, so it has all the time that there is.
func TestOf(t *testing.T) {
	for object, want := range map[string]fleet.Health{
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a, creationTimestamp: '2001-01-01T00:00:00Z'}}":                          fleet.HealthProgressing,
		"{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a, creationTimestamp: '2001-01-01T00:00:00Z'}}":       fleet.HealthProgressing,
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {conditions: [{type: Ready, status: 'True'}]}}":              fleet.HealthHealthy,
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x.io/keep]}}": fleet.HealthTerminating,
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}":                                                                  fleet.HealthHealthy,
		"{}": fleet.HealthHealthy,
	} {
		if got := Of(parse(t, object)); got.Health != want {
			t.Errorf("%s: %+v, want %s", object, got, want)
		}
	}
}

func TestMessagesNameTheCause(t *testing.T) {
	for object, want := range map[string]string{
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: a, deletionTimestamp: '2026-01-01T00:00:00Z', finalizers: [x.io/keep]}}":                                                                        "waits for finalizers x.io/keep",
		"{apiVersion: v1, kind: Pod, metadata: {name: a}, status: {phase: Running, containerStatuses: [{name: web, image: 'web:1', state: {waiting: {reason: CrashLoopBackOff, message: back-off 40s}}}]}}": "container web (web:1): back-off 40s",
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a, generation: 3}, status: {observedGeneration: 2}}":                                                                                               "generation 2, the object is at 3",
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, status: {parents: [{parentRef: {name: gw}, conditions: [{type: Accepted, status: 'False', reason: Invalid, message: no host}]}]}}":             "gw: no host",
		"{apiVersion: x.io/v1, kind: X, metadata: {name: a}, spec: {replicas: 3}, status: {readyReplicas: 1}}":                                                                                              "1 of 3 replicas are ready",
	} {
		if got := Of(parse(t, object)); !strings.Contains(got.Message, want) {
			t.Errorf("%s: %q, want %q", object, got.Message, want)
		}
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
