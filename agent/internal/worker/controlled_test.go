package worker

import (
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// A controller takes an object of the module over, as an ExternalSecret does with the Secret that a revision replaces by it. The
// object is the controller's from then on: the revision that drops it, and the removal of the module, let it go.
func TestObjectThatAControllerTookOverStays(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"), configMap("c", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "owner", "namespace": r.ns}})
	owner := r.get("v1", "configmaps", "owner").GetUID()
	for _, name := range []string{"a", "b"} {
		r.patch("v1", "configmaps", name, "controller", fmt.Sprintf(
			`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q,"controller":true}]}}`, owner))
	}
	next := r.bundle("shop", nil, configMap("b", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "rid of a and c", func(x fleet.SyncStatus) bool {
		return x.Ready && x.Generation == next.Generation && len(x.Extras) == 0
	})
	if a := r.get("v1", "configmaps", "a"); a == nil || a.GetLabels()[fleet.HubLabel] != "" {
		t.Errorf("a is %v", a)
	}
	if r.get("v1", "configmaps", "c") != nil {
		t.Error("c is there")
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	status := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if b := r.get("v1", "configmaps", "b"); b == nil || b.GetLabels()[fleet.HubLabel] != "" {
		t.Errorf("b is %v", b)
	}
	if !strings.Contains(status.Message, "/b (left to its controller, ConfigMap owner)") {
		t.Errorf("status %+v", status)
	}
}
