package worker

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	x := r.wait("shop", "decided", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (x.Ready || x.Phase == fleet.PhaseFailed)
	})
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
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && len(x.Exceptions) == 1
	})
	if l := r.namespace(r.ns).GetLabels(); l["team"] != "next" || l["extra"] != "bob" {
		t.Errorf("labels %v", l)
	}
}
