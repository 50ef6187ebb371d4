package worker

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// beforeForce does something once, right before the first apply with force is sent.
func (r *rig) beforeForce(path string, do func()) {
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, path) && q.URL.Query().Get("force") == "true" {
			once.Do(do)
		}
		return nil
	})
}

// takes has a manager merge a patch, outside of what the rig counts and upsets.
func (r *rig) takes(resource, ns, name, body string) {
	if _, err := r.res("v1", resource, ns).Patch(context.Background(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: "bob"}); err != nil {
		r.t.Error(err)
	}
}

// All conflicts of a new revision are over fields that are ours, so that it is applied with force; right before that another
// manager takes a field that never was ours.
func TestForceTakesNothingThatWasTakenMeanwhile(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"ana"}}`)
	r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted })
	r.beforeForce("/configmaps/a", func() { r.takes("configmaps", r.ns, "a", `{"data":{"extra":"bob"}}`) })
	next := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("a", "k: ours, extra: ours"))
	r.set([]fleet.Sync{next})
	x := r.decided(next)
	if r.data("a", "extra") != "bob" || x.Phase != fleet.PhaseFailed || x.Exceptions[0].ChangedBy != "bob" {
		t.Errorf("extra is %q; status %+v", r.data("a", "extra"), x)
	}
	r.takes("configmaps", r.ns, "a", `{"data":{"extra":null}}`)
	r.ready(next)
	if r.data("a", "k") != "ours" || r.data("a", "extra") != "ours" {
		t.Errorf("k is %q, extra %q", r.data("a", "k"), r.data("a", "extra"))
	}
}

// The same with a Namespace that is used.
func TestForceTakesNoLabelThatWasTakenMeanwhile(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, namespace("$NS", "team: ours"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.label(r.ns, "ana", `{"team":"ana"}`)
	r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted })
	r.beforeForce("/namespaces/"+r.ns, func() { r.takes("namespaces", "", r.ns, `{"metadata":{"labels":{"extra":"bob"}}}`) })
	next := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, namespace("$NS", "team: next, extra: ours"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "applied, and said", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && len(x.Exceptions) == 1 && x.Exceptions[0].ChangedBy == "bob"
	})
	if l := r.namespace(r.ns).GetLabels(); l["team"] != "next" || l["extra"] != "bob" {
		t.Errorf("labels %v", l)
	}
}

// An autoscaler scales for the first time between the decision to correct an object and the correction, which may wait behind
// many others.
func TestCorrectionLeavesAnAutoscalerThatCameMeanwhile(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.autoscaler("web")
	r.beforeForce("/deployments/web", func() {
		if _, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), "web", types.MergePatchType,
			[]byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{FieldManager: "kube-controller-manager"}, "scale"); err != nil {
			t.Error(err)
		}
	})
	least := r.leastReplicas("web")
	r.patch("apps/v1", "deployments", "web", "ana", `{"metadata":{"labels":{"app":"theirs"}}}`)
	r.eventually("the label is corrected", func() bool { return r.get("apps/v1", "deployments", "web").GetLabels()["app"] == "web" })
	r.ready(s)
	r.eventually("the replicas were seen", func() bool { return least.Load() != 0 })
	if n := least.Load(); n != 7 {
		t.Errorf("there were %d replicas after the autoscaler had said 7", n)
	}
}

// The same where what is corrected are the replicas that a person set while no autoscaler was there.
func TestCorrectionOfAPersonsReplicasLeavesAProgramThatCameMeanwhile(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.beforeForce("/deployments/web", func() {
		if _, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), "web", types.MergePatchType,
			[]byte(`{"spec":{"replicas":7}}`), metav1.PatchOptions{FieldManager: "kube-controller-manager"}, "scale"); err != nil {
			t.Error(err)
		}
	})
	least := r.leastReplicas("web")
	r.scale("web", 3, "kubectl")
	r.eventually("the replicas were seen", func() bool { return least.Load() != 0 })
	r.wait("shop", "decided", func(x fleet.SyncStatus) bool {
		return x.Ready && x.States[0].Drift == fleet.DriftInSync && r.replicas("web") != 3
	})
	if n := least.Load(); n != 7 {
		t.Errorf("there were %d replicas after a program had said 7", n)
	}
}

// leastReplicas watches a deployment, and says how few replicas it had after it had 7; 0: it had not yet.
func (r *rig) leastReplicas(name string) *atomic.Int64 {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r.t.Cleanup(cancel)
	w, err := r.res("apps/v1", "deployments", r.ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		r.t.Fatal(err)
	}
	least := &atomic.Int64{}
	go func() {
		for e := range w.ResultChan() {
			if u, ok := e.Object.(*unstructured.Unstructured); ok {
				have, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas")
				if n := least.Load(); have == 7 && n == 0 || have < n {
					least.Store(have)
				}
			}
		}
	}()
	return least
}
