package worker

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// pools is a custom kind whose replicas are not in /spec/replicas, as the shards of a Prometheus.
const pools = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pools.$NS.example.com}
spec:
  group: $NS.example.com
  scope: Namespaced
  names: {kind: Pool, plural: pools}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {size: {type: integer}}},
      status: {type: object, properties: {size: {type: integer}}}}}}
    subresources: {scale: {specReplicasPath: .spec.size, statusReplicasPath: .status.size}}
`

// What an autoscaler scales is left to it, wherever the definition of a kind has it, against drift of other fields and through
// revisions. Without an autoscaler it is drift.
func TestFieldThatAnAutoscalerScales(t *testing.T) {
	for name, scaler := range map[string]bool{"an autoscaler": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.clusterScoped("customresourcedefinitions", pools)
			r.eventually("the kind is served", func() bool { return r.lists("v1", "pools") })
			if scaler {
				r.create(autoscaling, "horizontalpodautoscalers", r.ns, map[string]any{"apiVersion": autoscaling, "kind": "HorizontalPodAutoscaler",
					"metadata": map[string]any{"name": "p", "namespace": r.ns},
					"spec":     map[string]any{"scaleTargetRef": map[string]any{"apiVersion": r.group() + "/v1", "kind": "Pool", "name": "p"}, "maxReplicas": int64(9)}})
			}
			pool := func(spec string) fleet.Sync {
				return r.bundle("shop", nil, "apiVersion: $NS.example.com/v1\nkind: Pool\nmetadata: {name: p, namespace: $NS}\nspec: {size: 2, "+spec+"}\n")
			}
			spec := func() map[string]any {
				spec, _, _ := unstructured.NestedMap(r.get(r.group()+"/v1", "pools", "p").Object, "spec")
				return spec
			}
			s := pool("image: a")
			r.set([]fleet.Sync{s})
			r.ready(s)
			scale := func(size string) {
				r.patch(r.group()+"/v1", "pools", "p", "kube-controller-manager", `{"spec":{"replicas":`+size+`}}`, "scale")
			}
			scale("5")
			want := int64(2)
			if scaler {
				want = 5
			}
			r.wait("shop", "as it is to be", func(x fleet.SyncStatus) bool { return x.Ready && x.States[0].Fine() && x.Corrections == 1 })
			if got := spec(); got["size"] != want {
				t.Errorf("spec %v", got)
			}
			if !scaler {
				return
			}
			r.patch(r.group()+"/v1", "pools", "p", "ana", `{"spec":{"image":"x"}}`)
			r.eventually("drift is corrected", func() bool { return spec()["image"] == "a" })
			scale("6")
			next := pool("image: b")
			r.set([]fleet.Sync{next})
			r.ready(next)
			if got := spec(); got["size"] != int64(6) || got["image"] != "b" {
				t.Errorf("spec %v", got)
			}
			if err := r.res(autoscaling, "horizontalpodautoscalers", r.ns).Delete(context.Background(), "p", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			last := pool("image: c")
			r.set([]fleet.Sync{last})
			r.ready(last)
			if got := spec(); got["size"] != int64(2) {
				t.Errorf("spec %v", got)
			}
		})
	}
}
