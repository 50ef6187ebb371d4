package worker

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// webhook has the API server ask about every write to ConfigMaps of the rig's namespace (labtest.Webhook).
func (r *rig) webhook(answer func(labtest.Admitted) (patch, denied string)) {
	r.t.Helper()
	r.webhookDenying(http.StatusForbidden, answer)
}

// webhookDenying is webhook with the code that a denial has.
func (r *rig) webhookDenying(code int, answer func(labtest.Admitted) (patch, denied string)) {
	r.t.Helper()
	labtest.WebhookDenying(r.t, code, labConfig(r.t), r.ns, corev1.SchemeGroupVersion.WithResource("configmaps"), "ConfigMap", answer)
}

// denies has a webhook deny an operation on an object by its name, in these words, as long as it is to; who did not is asked about everything else.
func (r *rig) denies(of schema.GroupVersionResource, kind, operation, name string, says metav1.Status) (stop func()) {
	r.t.Helper()
	var over atomic.Bool
	labtest.WebhookSaying(r.t, labConfig(r.t), r.ns, of, kind, func(x labtest.Admitted) (string, *metav1.Status) {
		if x.Name != name || x.Operation != operation || over.Load() {
			return "", nil
		}
		said := says
		return "", &said
	})
	return func() { over.Store(true) }
}

// An admission policy that takes our label off makes the object one that no watch shows. It is not called Synced then: what
// happens to it would not be seen.
func TestMarkThatAdmissionTakesOff(t *testing.T) {
	for name, patch := range map[string]string{
		"label":      `[{"op":"remove","path":"/metadata/labels/towline.dev~1hub"}]`,
		"annotation": `[{"op":"remove","path":"/metadata/annotations/towline.dev~1owner"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			var strips atomic.Bool
			strips.Store(true)
			r.webhook(func(x labtest.Admitted) (string, string) {
				if x.Operation == "DELETE" || x.Options.FieldManager != fleet.FieldManager || !strips.Load() {
					return "", ""
				}
				return patch, ""
			})
			s := r.bundle("shop", nil, configMap("a", "k: v"))
			r.set([]fleet.Sync{s})
			status := r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
			if status.Reason != "MarkRemoved" || !strings.Contains(status.Message, "towline.dev/") || status.States[0].Sync == fleet.SyncSynced {
				t.Errorf("status %+v", status)
			}
			strips.Store(false)
			r.m.retry(s.Module, fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "a"})
			r.ready(s)
		})
	}
}

// A policy that comes later takes the label off when somebody else writes: that is seen, and said.
func TestMarkThatAdmissionTakesOffLater(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.webhook(func(x labtest.Admitted) (string, string) {
		labels, _ := x.Object["metadata"].(map[string]any)["labels"].(map[string]any)
		if x.Operation == "DELETE" || labels[fleet.HubLabel] == nil {
			return "", ""
		}
		return `[{"op":"remove","path":"/metadata/labels/towline.dev~1hub"}]`, ""
	})
	r.count.take()
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"annotations":{"seen":"by ana"}}}`)
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && x.Reason == "MarkRemoved" })
	if counts, paths := r.count.take(); counts["PATCH"] > 3 {
		t.Errorf("fights: %v", paths)
	}
}

// What admission makes of an object is what the API server answered. It is no drift, and nothing is written again and again.
func TestValueThatAdmissionChanges(t *testing.T) {
	r := newRig(t)
	changes := func(x labtest.Admitted) (string, string) {
		if x.Operation == "DELETE" {
			return "", ""
		}
		return `[{"op":"replace","path":"/data/k","value":"by admission"}]`, ""
	}
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.webhook(changes)
	r.count.take()
	for _, by := range []string{"ana", "ben"} {
		r.patch("v1", "configmaps", "a", by, `{"metadata":{"annotations":{"seen":"by `+by+`"}}}`)
		r.eventually("admission changes the value", func() bool { return r.data("a", "k") == "by admission" })
	}
	other := r.bundle("shop", nil, configMap("a", "k: w"))
	r.set([]fleet.Sync{other})
	status := r.ready(other)
	counts, paths := r.count.take()
	if counts["PATCH"] > 4 || status.States[0].Drift != fleet.DriftInSync {
		t.Errorf("requests %v, status %+v", paths, status)
	}
}

// While admission denies what the agent writes, drift is shown as drift, with the reason, and the module of before is not
// called failed for it; a new revision is.
func TestDriftThatAdmissionKeeps(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	var open atomic.Bool
	r.webhook(func(x labtest.Admitted) (string, string) {
		if x.Options.FieldManager == fleet.FieldManager && !open.Load() {
			return "", "the cluster is read-only for a while"
		}
		return "", ""
	})
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"hers"}}`)
	r.delete("v1", "configmaps", "b")
	status := r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) == 2 && x.States[0].Drift == fleet.DriftDrifted && x.States[1].Health == fleet.HealthMissing &&
			strings.Contains(x.Exceptions[0].Message, "read-only") && strings.Contains(x.Exceptions[1].Message, "read-only")
	})
	if status.States[0].Sync != fleet.SyncOutOfSync || status.Ready || status.Corrections != 0 {
		t.Errorf("status %+v", status)
	}
	next := r.bundle("shop", nil, configMap("a", "k: w"), configMap("b", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Phase == fleet.PhaseFailed && strings.Contains(x.Message, "read-only")
	})
	open.Store(true)
	for _, name := range []string{"a", "b"} {
		r.m.retry(s.Module, fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: name})
	}
	r.ready(next)
}
