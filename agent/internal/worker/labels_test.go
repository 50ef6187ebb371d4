package worker

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

const withoutLabel = `{"metadata":{"labels":{"towline.dev/hub":null}}}`

// hubLabel is the field that tells the watches of an object.
const hubLabel = "/metadata/labels/towline.dev~1hub"

// eventOf waits for the Event about a correction of a ConfigMap.
func (r *rig) eventOf(name string) string {
	r.t.Helper()
	var message string
	r.eventually("an Event about "+name, func() bool {
		list, err := r.res("v1", "events", r.ns).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil || len(list.Items) == 0 {
			return false
		}
		message, _, _ = unstructured.NestedString(list.Items[0].Object, "message")
		return true
	})
	return message
}

// The watches do not see an object without our label. That it is not seen does not mean that it is gone.
func TestRemovedLabelIsNoDeletion(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.get("v1", "configmaps", "a").GetUID()
	r.patch("v1", "configmaps", "a", "kubectl-label", withoutLabel)
	r.eventually("the label is back", func() bool { return r.get("v1", "configmaps", "a").GetLabels()[fleet.HubLabel] == r.hub })
	r.wait("shop", "ready after 1 correction", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 1 })
	if message := r.eventOf("a"); !strings.Contains(message, hubLabel+" removed by somebody") {
		t.Errorf("told as %q", message)
	}
	if heard := r.heard.String(); strings.Contains(heard, "was deleted") || r.get("v1", "configmaps", "a").GetUID() != uid {
		t.Errorf("a status calls it deleted: %s", heard)
	}
	r.delete("v1", "configmaps", "b")
	r.wait("shop", "ready after 2 corrections", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 2 })
	if message := r.eventOf("b"); !strings.Contains(message, "was deleted; created again") {
		t.Errorf("told as %q", message)
	}
}

func TestRemovedLabelIsReported(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	before := len(r.heard.String()) // what is not applied yet is missing
	r.patch("v1", "configmaps", "a", "kubectl-label", withoutLabel)
	status := r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted })
	if status.States[0].Health != fleet.HealthHealthy {
		t.Errorf("health %s", status.States[0].Health)
	}
	wantDrift(t, status, fleet.ObjectException{Field: hubLabel, Want: `"` + r.hub + `"`, Seen: 1})
	r.stop()
	r.statuses = map[fleet.ModuleRef]fleet.SyncStatus{}
	r.start()
	r.set([]fleet.Sync{s})
	status = r.wait("shop", "drifted after a restart", func(x fleet.SyncStatus) bool { return len(x.States) == 1 && x.States[0].Drift == fleet.DriftDrifted })
	if status.States[0].Health != fleet.HealthHealthy {
		t.Errorf("health %s after a restart", status.States[0].Health)
	}
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"labels":{"towline.dev/hub":"`+r.hub+`"}}}`)
	r.wait("shop", "in sync", func(x fleet.SyncStatus) bool { return x.Ready && x.States[0].Drift == fleet.DriftInSync })
	if slices.Contains(strings.Fields(r.heard.String()[before:]), "Health:Missing") {
		t.Error("it was called missing")
	}
}

// What happens to an object that the watches do not see is found out by looking at it now and then.
func TestUnseenObjectIsLookedAt(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.recheck = 50 * time.Millisecond
	r.start()
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "kubectl-label", withoutLabel)
	r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted })
	r.delete("v1", "configmaps", "a")
	r.wait("shop", "missing", func(x fleet.SyncStatus) bool { return x.States[0].Health == fleet.HealthMissing })
}
