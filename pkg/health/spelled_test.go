package health

import (
	"fmt"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestGenerationsAsTheyAreSpelled: a status says of which generation it is by a number, or by a text of digits, as whoever
// writes it by the JSON of protobuf does (Istio). What is neither says no generation.
func TestGenerationsAsTheyAreSpelled(t *testing.T) {
	now := time.Date(2026, 7, 1, 0, 5, 0, 0, time.UTC)
	const (
		whole  = "apiVersion: shop.example/v1, kind: Till, status: {observedGeneration: %s, conditions: [{type: Ready, status: 'True'}]}"
		inPart = "apiVersion: shop.example/v1, kind: Till, status: {conditions: [{type: Ready, status: 'True', observedGeneration: %s}]}"
		parent = "apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, status: {parents: [{parentRef: {name: g}, conditions: [" +
			"{type: Accepted, status: 'True', observedGeneration: %[1]s}, {type: ResolvedRefs, status: 'True', observedGeneration: %[1]s}]}]}"
		mesh = "apiVersion: networking.istio.io/v1, kind: Gateway, status: {observedGeneration: %s, conditions: [{type: Reconciled, status: 'True'}]}"
	)
	for _, c := range []struct {
		status, said  string
		early, latest fleet.Health
	}{
		{whole, "1", fleet.HealthProgressing, fleet.HealthProgressing},
		{whole, "'1'", fleet.HealthProgressing, fleet.HealthProgressing},
		{whole, "'2'", fleet.HealthHealthy, fleet.HealthHealthy},
		{whole, "null", fleet.HealthProgressing, fleet.HealthHealthy},
		{whole, "'a4f3'", fleet.HealthProgressing, fleet.HealthHealthy},
		{whole, "true", fleet.HealthProgressing, fleet.HealthHealthy},
		{inPart, "'1'", fleet.HealthProgressing, fleet.HealthProgressing},
		{inPart, "'2'", fleet.HealthHealthy, fleet.HealthHealthy},
		{inPart, "null", fleet.HealthProgressing, fleet.HealthHealthy},
		{inPart, "0", fleet.HealthProgressing, fleet.HealthHealthy},
		{parent, "'1'", fleet.HealthProgressing, fleet.HealthProgressing},
		{parent, "'2'", fleet.HealthHealthy, fleet.HealthHealthy},
		{mesh, "'1'", fleet.HealthProgressing, fleet.HealthProgressing}, // for a while
		{mesh, "'2'", fleet.HealthHealthy, fleet.HealthHealthy},
	} {
		obj := parse(t, "{metadata: {name: a, generation: 2, creationTimestamp: '2026-06-01T00:00:00Z'}, "+fmt.Sprintf(c.status, c.said)+"}")
		for after, want := range map[time.Duration]fleet.Health{time.Second: c.early, heardGrace: c.latest} {
			if got := Judge(obj, Facts{Now: now.Add(after), Changed: now, HasStatus: true, Last: true}, nil); got.Health != want {
				t.Errorf("generation %s in %s, %s after our change: %s %s, want %s", c.said, c.status, after, got.Health, got.Reason, want)
			}
		}
	}
	obj := parse(t, "{metadata: {name: a, generation: 2, creationTimestamp: '2026-06-01T00:00:00Z'}, "+fmt.Sprintf(mesh, "'1'")+"}")
	if got := Judge(obj, Facts{Now: now.Add(NoStatusGrace), Changed: now, HasStatus: true, Last: true}, nil); got != healthy() {
		t.Errorf("what Istio finds did not change: %+v, and it would stay so", got)
	}
}

// TestMigrationBeforeItsFirstWord: what the API server has of kinds that run to an end is not done because nothing is said of it.
func TestMigrationBeforeItsFirstWord(t *testing.T) {
	now := time.Date(2026, 7, 1, 0, 5, 0, 0, time.UTC)
	for status, want := range map[string]string{
		"{}": "Progressing NoStatus", "{conditions: []}": "Progressing NoStatus",
		"{conditions: [{type: Running, status: 'True'}]}":   "Progressing Running",
		"{conditions: [{type: Succeeded, status: 'True'}]}": "Healthy ",
		"{conditions: [{type: Failed, status: 'True'}]}":    "Degraded Failed",
	} {
		obj := parse(t, "{apiVersion: storagemigration.k8s.io/v1beta1, kind: StorageVersionMigration, metadata: {name: a, generation: 1, creationTimestamp: '2026-07-01T00:05:00Z'}, status: "+status+"}")
		if got := Judge(obj, Facts{Now: now.Add(time.Second), Changed: now, HasStatus: true}, nil); string(got.Health)+" "+got.Reason != want {
			t.Errorf("%s: %s %s, want %s", status, got.Health, got.Reason, want)
		}
	}
}
