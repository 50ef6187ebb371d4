package health

import (
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

const benchDeployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: a, namespace: n, generation: 3}, spec: {replicas: 3},
	status: {observedGeneration: 3, replicas: 3, readyReplicas: 3, availableReplicas: 3, updatedReplicas: 3, conditions: [
	{type: Available, status: 'True', reason: MinimumReplicasAvailable, message: Deployment has minimum availability.},
	{type: Progressing, status: 'True', reason: NewReplicaSetAvailable, message: ReplicaSet has successfully progressed.}]}}`

const benchCustom = `{apiVersion: shop.example/v1, kind: Till, metadata: {name: a, namespace: n, generation: 3}, spec: {replicas: 3},
	status: {observedGeneration: 3, phase: Running, conditions: [
	{type: Ready, status: 'True', reason: Ready, observedGeneration: 3}, {type: DrawerReady, status: 'True', reason: Closed}]}}`

const benchShipped = `{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: a, namespace: n, generation: 3},
	status: {conditions: [{type: Ready, status: 'True', reason: Ready, observedGeneration: 3}]}}`

// BenchmarkJudge is beside kstatus, of which it must not be 1.5 times as slow: it runs for every event of every object.
func BenchmarkJudge(b *testing.B) {
	for _, c := range []struct{ name, object string }{{"Deployment", benchDeployment}, {"Custom", benchCustom}, {"Shipped", benchShipped}} {
		obj := parse(b, c.object)
		b.Run(c.name+"/judge", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if Judge(obj, Facts{HasStatus: true}, nil).Health != fleet.HealthHealthy {
					b.Fatal("not healthy")
				}
			}
		})
		b.Run(c.name+"/kstatus", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if r, err := status.Compute(&unstructured.Unstructured{Object: obj}); err != nil || r.Status != status.CurrentStatus {
					b.Fatal(r, err)
				}
			}
		})
	}
	rules, err := Compile([]Rule{{Group: "shop.example", Kind: "Till", Healthy: "object.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')"}})
	if err != nil {
		b.Fatal(err)
	}
	obj := parse(b, benchCustom)
	b.Run("Custom/rule", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if Judge(obj, Facts{}, rules).Health != fleet.HealthHealthy {
				b.Fatal("not healthy")
			}
		}
	})
}

// TestJudgeMakesLittleGarbage: what is judged for every event costs an allocation or a few.
func TestJudgeMakesLittleGarbage(t *testing.T) {
	for object, most := range map[string]float64{benchDeployment: 1, benchShipped: 1, benchCustom: 4} {
		obj := parse(t, object)
		if n := testing.AllocsPerRun(100, func() { Judge(obj, Facts{HasStatus: true}, nil) }); n > most {
			t.Errorf("%v allocations for %.60s", n, object)
		}
	}
}
