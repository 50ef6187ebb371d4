package worker

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
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

// TestFieldThatAnAutoscalerScalesIsLeftInEachWrite: what an autoscaler has scaled is left to it in writes of the whole object, too.
func TestFieldThatAnAutoscalerScalesIsLeftInEachWrite(t *testing.T) {
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		course   func(*rig, fleet.Sync)
	}{
		"somebody changed a field in a hold, and changed it back": {nil, func(r *rig, s fleet.Sync) {
			s.Hold = true
			r.set([]fleet.Sync{s})
			r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
			for _, image := range []string{"x", "a"} {
				r.patch(r.group()+"/v1", "pools", "p", "ana", `{"spec":{"image":"`+image+`"}}`)
			}
			s.Hold = false
			r.set([]fleet.Sync{s})
			r.eventually("the field is the module's again", func() bool {
				return !slices.ContainsFunc(r.get(r.group()+"/v1", "pools", "p").GetManagedFields(), func(m metav1.ManagedFieldsEntry) bool { return m.Manager == "ana" })
			})
		}},
		"somebody writes right before a correction": {ignoring("/spec/other"), func(r *rig, s fleet.Sync) {
			var once sync.Once
			r.count.upset(func(q *http.Request) error {
				if q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/pools/p") {
					once.Do(func() { r.patch(r.group()+"/v1", "pools", "p", "bob", `{"metadata":{"annotations":{"note":"x"}}}`) })
				}
				return nil
			})
			r.patch(r.group()+"/v1", "pools", "p", "ana", `{"spec":{"image":"x"}}`)
			r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 2 })
		}},
		"the agent's state is lost": {nil, func(r *rig, s fleet.Sync) {
			r.loseState()
			r.forget()
			r.set([]fleet.Sync{s})
			r.ready(s)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.clusterScoped("customresourcedefinitions", pools)
			r.eventually("the kind is served", func() bool { return r.lists("v1", "pools") })
			r.create(autoscaling, "horizontalpodautoscalers", r.ns, map[string]any{"apiVersion": autoscaling, "kind": "HorizontalPodAutoscaler",
				"metadata": map[string]any{"name": "p", "namespace": r.ns},
				"spec":     map[string]any{"scaleTargetRef": map[string]any{"apiVersion": r.group() + "/v1", "kind": "Pool", "name": "p"}, "maxReplicas": int64(9)}})
			s := r.bundle("shop", tc.policies, "apiVersion: $NS.example.com/v1\nkind: Pool\nmetadata: {name: p, namespace: $NS}\nspec: {size: 2, image: a}\n")
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.patch(r.group()+"/v1", "pools", "p", "kube-controller-manager", `{"spec":{"replicas":5}}`, "scale")
			r.wait("shop", "left to the autoscaler", func(x fleet.SyncStatus) bool { return x.Ready && x.States[0].Fine() && x.Corrections == 1 })
			tc.course(r, s)
			got, _, _ := unstructured.NestedMap(r.get(r.group()+"/v1", "pools", "p").Object, "spec")
			if got["size"] != int64(5) || got["image"] != "a" {
				t.Errorf("spec %v", got)
			}
		})
	}
}

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
