package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// strip takes the managedFields of an object away, as tools do that find them too large: all, or only the agent's entry.
func (r *rig) strip(apiVersion, resource, name string, all bool) {
	r.t.Helper()
	patch := `[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`
	if !all {
		r.patch(apiVersion, resource, name, "ana", `{"metadata":{"annotations":{"seen":"by ana"}}}`)
		patch = `[{"op":"remove","path":"/metadata/managedFields/0"}]`
		if m := r.get(apiVersion, resource, name).GetManagedFields(); m[0].Manager != fleet.FieldManager {
			r.t.Fatalf("entries %+v", m)
		}
	}
	if _, err := r.res(apiVersion, resource, r.ns).Patch(context.Background(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{FieldManager: "ana"}); err != nil {
		r.t.Fatal(err)
	}
}

// annotate applies an annotation as somebody else.
func (r *rig) annotate(kind, resource, name string) {
	r.t.Helper()
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"name":%q,"annotations":{"seen":"by bob"}}}`, kind, name)
	if _, err := r.res("v1", resource, r.ns).Patch(context.Background(), name, types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "bob"}); err != nil {
		r.t.Fatal(err)
	}
}

// Who takes the managedFields away makes the API server forget which fields are the module's. What a later revision drops
// goes all the same.
func TestFieldsGoThoughTheServerForgotWhoseTheyAre(t *testing.T) {
	for name, how := range map[string]struct{ all, applied bool }{
		"all entries": {true, false}, "all entries, and somebody applies": {true, true}, "the agent's entry": {false, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Drift: fleet.DriftReport}}
			service := func(port string) string {
				return "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: $NS}\nspec: {selector: {app: web}, ports: [{name: http, port: " + port + "}]}\n"
			}
			s := r.bundle("shop", policies, configMap("a", "k: v, dropped: v"), service("80"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.strip("v1", "configmaps", "a", how.all)
			r.strip("v1", "services", "web", how.all)
			if how.applied { // then the API server notes all that was there as somebody's
				r.annotate("ConfigMap", "configmaps", "a")
				r.annotate("Service", "services", "web")
			}
			r.eventually("the watch has it", func() bool { return r.strippedIn("configmaps", "a") && r.strippedIn("services", "web") })
			next := r.bundle("shop", policies, configMap("a", "k: w"), service("81"))
			r.set([]fleet.Sync{next})
			r.ready(next)
			if got := r.data("a", "dropped"); got != "" {
				t.Errorf("what the revision dropped is still %q", got)
			}
			ports, _, _ := unstructured.NestedSlice(r.get("v1", "services", "web").Object, "spec", "ports")
			if len(ports) != 1 || ports[0].(map[string]any)["port"] != int64(81) {
				t.Errorf("ports %v", ports)
			}
			for _, m := range r.get("v1", "configmaps", "a").GetManagedFields() {
				if m.Manager != fleet.FieldManager && strings.Contains(m.FieldsV1.GetRawString(), "f:k") {
					t.Errorf("%s holds the module's field", m.Manager)
				}
			}
		})
	}
}

// Values that somebody changed before are not taken for the module's.
func TestFieldsOfAChangedObjectAreNotClaimedAgain(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Drift: fleet.DriftReport}}
	s := r.bundle("shop", policies, configMap("a", "k: v, dropped: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"dropped":"hers"}}`)
	r.strip("v1", "configmaps", "a", true)
	r.eventually("the watch has it", func() bool { return r.strippedIn("configmaps", "a") })
	next := r.bundle("shop", policies, configMap("a", "k: w"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if got := r.data("a", "dropped"); got != "hers" {
		t.Errorf("what somebody else set is %q", got)
	}
}

// strippedIn reports that the agent has seen an object at the version that is live now.
func (r *rig) strippedIn(resource, name string) bool {
	live := r.get("v1", resource, name)
	kind := map[string]string{"configmaps": "ConfigMap", "services": "Service"}[resource]
	res, known := r.m.mapper.Known(fleet.ObjectID{Kind: kind}, "v1")
	if !known {
		return false
	}
	f, _ := r.m.watcher.Look(res, r.ns, name)
	return f != nil && live != nil && f.Version == apply.ParseVersion(live.GetResourceVersion())
}

// What a revision drops as a whole, or a removal takes, goes as well: the UID that the agent noted after its own write and the
// marks tell whose it is. A copy that somebody made in its place stays.
func TestObjectGoesThoughTheServerForgotWhoseItIs(t *testing.T) {
	for name, all := range map[string]bool{"all entries": true, "the agent's entry": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Drift: fleet.DriftReport}}
			s := r.bundle("shop", policies, configMap("a", "k: v"), configMap("dropped", "k: v"), configMap("copied", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			for _, name := range []string{"a", "dropped"} {
				r.strip("v1", "configmaps", name, all)
			}
			copied := r.get("v1", "configmaps", "copied")
			r.delete("v1", "configmaps", "copied")
			r.createAs("kubectl-create", "v1", "configmaps", r.ns, r.configMapObject("copied", map[string]any{
				"labels": stringMap(copied.GetLabels()), "annotations": stringMap(copied.GetAnnotations())}, map[string]any{"k": "v"}))
			next := r.bundle("shop", policies, configMap("a", "k: v"))
			r.set([]fleet.Sync{next})
			r.wait("shop", "without leftovers", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && len(x.Extras) == 0 })
			if r.get("v1", "configmaps", "dropped") != nil {
				t.Error("what the revision dropped is still there")
			}
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if r.get("v1", "configmaps", "a") != nil || x.Message != "" {
				t.Errorf("what the module had is still there: %q", x.Message)
			}
			if r.get("v1", "configmaps", "copied") == nil {
				t.Error("a copy was deleted that the agent never wrote")
			}
		})
	}
}
