package worker

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

// createAs makes an object as another program would.
func (r *rig) createAs(manager, apiVersion, resource, ns string, obj map[string]any) {
	r.t.Helper()
	_, err := r.res(apiVersion, resource, ns).Create(context.Background(), &unstructured.Unstructured{Object: obj}, metav1.CreateOptions{FieldManager: manager})
	if err != nil {
		r.t.Fatal(err)
	}
}

// configMapObject is what configMap says, in the rig's namespace.
func (r *rig) configMapObject(name string, metadata, data map[string]any) map[string]any {
	meta := map[string]any{"name": name, "namespace": r.ns}
	maps.Copy(meta, metadata)
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
}

// object reads YAML with the rig's namespace in it.
func (r *rig) object(text string) map[string]any {
	r.t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(text, "$NS", r.ns)))
	if err != nil {
		r.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		r.t.Fatal(err)
	}
	return u.Object
}

func (r *rig) loseState() {
	r.stop()
	r.store.mu.Lock()
	r.store.files = map[string][]byte{}
	r.store.mu.Unlock()
	r.start()
}

// restored makes a copy under another name, as a backup tool does that puts the managedFields back, too.
func (r *rig) restored(name, as string) {
	r.t.Helper()
	live := r.get("v1", "configmaps", name)
	meta := map[string]any{"labels": stringMap(live.GetLabels()), "annotations": stringMap(live.GetAnnotations())}
	data, _, _ := unstructured.NestedMap(live.Object, "data")
	r.createAs("velero-server", "v1", "configmaps", r.ns, r.configMapObject(as, meta, data))
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": live.GetManagedFields()}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.patch("v1", "configmaps", as, "velero-server", string(body))
}

func stringMap(m map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// Whoever loses the inventory has nothing but what stands on the objects: copies carry all of it but their own name.
func TestCopiesAreNotOurs(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("gone", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.restored("a", "of-a-backup")
	live := r.get("v1", "configmaps", "a")
	marks := map[string]any{"labels": stringMap(live.GetLabels()), "annotations": stringMap(live.GetAnnotations())}
	r.createAs("kubectl-create", "v1", "configmaps", r.ns, r.configMapObject("of-kubectl", marks, map[string]any{"k": "v"}))
	// Released, and given the marks again by hand: our manager has an entry, and wrote none of them.
	released := r.bundle("other", nil, configMap("released", "k: v"))
	r.set([]fleet.Sync{s, released})
	r.ready(released)
	pasted, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": r.get("v1", "configmaps", "released").GetLabels(),
		"annotations": r.get("v1", "configmaps", "released").GetAnnotations()}})
	if err != nil {
		t.Fatal(err)
	}
	r.set([]fleet.Sync{s}, r.tombstone("other", fleet.DeleteOrphan))
	r.wait("other", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.patch("v1", "configmaps", "released", "kubectl-edit", string(pasted))

	r.loseState()
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete), r.tombstone("other", fleet.DeleteDelete))
	for _, module := range []string{"shop", "other"} {
		r.wait(module, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	}
	for _, name := range []string{"of-a-backup", "of-kubectl", "released"} {
		if r.get("v1", "configmaps", name) == nil {
			t.Errorf("%s was deleted, which the agent never wrote", name)
		}
	}
	if r.get("v1", "configmaps", "a") != nil || r.get("v1", "configmaps", "gone") != nil {
		t.Error("what was ours is left")
	}
}

func TestObjectsOfOthersAreNotAdopted(t *testing.T) {
	r := newRig(t)
	r.foreign("parent", "k", "v")
	controller := []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "parent", "uid": string(r.get("v1", "configmaps", "parent").GetUID()), "controller": true}}
	for name, metadata := range map[string]map[string]any{
		"controlled": {"ownerReferences": controller},
		"helm":       {"annotations": map[string]any{"meta.helm.sh/release-name": "prom", "meta.helm.sh/release-namespace": "x"}},
		"hub":        {"labels": map[string]any{fleet.HubLabel: "another"}},
		"plain":      {"labels": map[string]any{"app.kubernetes.io/managed-by": "Helm"}},
	} {
		r.createAs("somebody", "v1", "configmaps", r.ns, r.configMapObject(name, metadata, map[string]any{"k": "v"}))
	}
	objects := []string{configMap("controlled", "k: v"), configMap("helm", "k: v"), configMap("hub", "k: v"), configMap("plain", "k: v")}
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && len(x.Exceptions) == 3 })
	for i, want := range []string{`controlled by ConfigMap "parent"`, `Helm release "prom"`, `hub "another"`} {
		if e := status.Exceptions[i]; e.Reason != "Conflict" || !strings.Contains(e.Message, want) || !strings.Contains(e.Message, "adopt: Always") {
			t.Errorf("exception %+v, want %s", e, want)
		}
	}
	if !r.marked("plain") {
		t.Error("an object that nobody keeps was not adopted")
	}

	always := []fleet.Policy{{Adopt: fleet.AdoptAlways}}
	s = r.bundle("shop", always, objects...)
	r.set([]fleet.Sync{s})
	r.wait("shop", "all but what is controlled", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed && len(x.Exceptions) == 1 && strings.Contains(x.Message, "match.kinds")
	})
	always[0].Match.Kinds = []string{"ConfigMap"}
	s = r.bundle("shop", always, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
}

// What our own field manager left behind is taken up again as if it had never been let go.
func TestOwnLeftoversAreTakenUpAgain(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: old, dropped: x"), configMap("b", "k: old, other: v"), deployment("web", 1))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	uid := r.get("v1", "configmaps", "a").GetUID()

	s = r.bundle("shop", nil, configMap("a", "k: new"), configMap("b", "k: new, other: v"), strings.ReplaceAll(deployment("web", 2), "nginx:1", "nginx:2"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	if now := r.get("v1", "configmaps", "a"); now.GetUID() != uid || r.data("a", "k") != "new" || r.data("a", "dropped") != "" || !r.marked("a") {
		t.Errorf("a is %v", now.Object)
	}

	// The cluster leaves the fleet, and joins it again with an empty state.
	r.m.Leave(fleet.Leave{Objects: fleet.LeaveKeep})
	r.wait("shop", "left", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.patch("v1", "configmaps", "b", "kubectl-edit", `{"data":{"k":"hers"}}`)
	r.loseState()
	s = r.bundle("shop", nil, configMap("a", "k: newer"), configMap("b", "k: newer, other: v"), deployment("web", 1))
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "failed", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && r.marked("a") && r.replicas("web") == 1
	})
	if e := status.Exceptions[0]; e.Field != "/data/k" || e.ChangedBy != "kubectl-edit" || r.data("b", "k") != "hers" {
		t.Errorf("what a person changed meanwhile is %s: %+v", r.data("b", "k"), status.Exceptions)
	}
}

// What another program wrote without server-side apply is the module's alone once it is adopted: what a later revision
// drops is gone, and what the module never listed stays as it is.
func TestFieldsOfAdoptedObjectsCanBeDropped(t *testing.T) {
	r := newRig(t)
	const applied = "kubectl.kubernetes.io/last-applied-configuration"
	r.createAs("kubectl-client-side-apply", "v1", "configmaps", r.ns, r.configMapObject("kubectl",
		map[string]any{"annotations": map[string]any{applied: "{}"}}, map[string]any{"kept": "1", "dropped": "2", "hers": "3"}))
	r.createAs("somebody", "v1", "configmaps", r.ns, r.configMapObject("unknown", nil, map[string]any{"kept": "1", "dropped": "2"}))
	full := `
apiVersion: apps/v1
kind: Deployment
metadata: {name: helm, namespace: $NS, labels: {app.kubernetes.io/managed-by: Helm, dropped: x}}
spec:
  replicas: 1
  strategy: {rollingUpdate: {maxSurge: 1}}
  selector: {matchLabels: {app: helm}}
  template:
    metadata: {labels: {app: helm}}
    spec:
      containers:
      - {name: main, image: "nginx:1", env: [{name: A, value: "1"}, {name: B, value: "2"}], livenessProbe: {httpGet: {path: /, port: 80}}}
      - {name: aside, image: "nginx:1", resources: {limits: {cpu: 1}}}
`
	r.createAs("helm", "apps/v1", "deployments", r.ns, r.object(full))

	s := r.bundle("shop", nil, configMap("kubectl", "kept: '1', dropped: '2'"), configMap("unknown", "kept: '1', dropped: '2'"), full)
	r.set([]fleet.Sync{s})
	r.ready(s)
	if _, has := r.get("v1", "configmaps", "kubectl").GetAnnotations()[applied]; has {
		t.Error("kubectl's annotation is left: its next apply would take away what only it knew of")
	}
	less := strings.NewReplacer(", dropped: x", "", `, {name: B, value: "2"}`, "", ", livenessProbe: {httpGet: {path: /, port: 80}}", "",
		"      - {name: aside, image: \"nginx:1\", resources: {limits: {cpu: 1}}}\n", "").Replace(full)
	s = r.bundle("shop", nil, configMap("kubectl", "kept: '1'"), configMap("unknown", "kept: '1'"), less)
	r.set([]fleet.Sync{s})
	r.ready(s)
	for _, name := range []string{"kubectl", "unknown"} {
		if r.data(name, "kept") != "1" || r.data(name, "dropped") != "" {
			t.Errorf("%s: %v", name, r.get("v1", "configmaps", name).Object["data"])
		}
	}
	if r.data("kubectl", "hers") != "3" {
		t.Error("a field that the module never listed is gone")
	}
	live := r.get("apps/v1", "deployments", "helm")
	containers, _, _ := unstructured.NestedSlice(live.Object, "spec", "template", "spec", "containers")
	if live.GetLabels()["dropped"] != "" || len(containers) != 1 {
		t.Fatalf("labels %v, containers %v", live.GetLabels(), containers)
	}
	main := containers[0].(map[string]any)
	if env, _ := main["env"].([]any); len(env) != 1 || main["livenessProbe"] != nil {
		t.Errorf("container %v", main)
	}
}

// A co-owner that came later keeps nothing either: a person who made the change first, in whichever console, before the module did.
func TestFieldThatAPersonWroteFirstCanBeDropped(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	for _, manager := range []string{"kubectl-edit", "node-fetch", "Mozilla", "rancher"} {
		r.patch("v1", "configmaps", "a", manager, `{"data":{"hotfix":"1"}}`)
		for _, data := range []string{"k: v, hotfix: '1'", "k: v"} {
			s = r.bundle("shop", nil, configMap("a", data))
			r.set([]fleet.Sync{s})
			r.ready(s)
		}
		if got := r.data("a", "hotfix"); got != "" {
			t.Errorf("%s: hotfix is %s though no revision lists it", manager, got)
		}
	}
}

// What a tool applied server-side is the module's alone, too, when that takes it: Flux, Helm 4 and kubectl do not come again to
// let go of what a later revision drops.
func TestFieldsOfAnObjectThatWasAppliedCanBeDropped(t *testing.T) {
	always := []fleet.Policy{{Adopt: fleet.AdoptAlways}}
	for manager, tc := range map[string]struct {
		marks    string
		policies []fleet.Policy
	}{
		"kustomize-controller": {", labels: {kustomize.toolkit.fluxcd.io/name: apps, kustomize.toolkit.fluxcd.io/namespace: flux-system}", always},
		"helm":                 {", annotations: {meta.helm.sh/release-name: shop, meta.helm.sh/release-namespace: shop}", always},
		"argocd-controller":    {", annotations: {argocd.argoproj.io/tracking-id: shop}", always},
		"kubectl":              {"", nil},
	} {
		t.Run(manager, func(t *testing.T) {
			r := newRig(t)
			full := configMap("a", "kept: '1', dropped: '2'")
			r.appliedBy(manager, strings.Replace(full, "name: a", "name: a"+tc.marks, 1))
			r.appliedBy("labeller", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: $NS, labels: {team: a}}\n")
			for _, text := range []string{full, configMap("a", "kept: '1'")} {
				s := r.bundle("shop", tc.policies, text)
				r.set([]fleet.Sync{s})
				r.ready(s)
			}
			live := r.get("v1", "configmaps", "a")
			if r.data("a", "kept") != "1" || r.data("a", "dropped") != "" || live.GetLabels()["team"] != "a" {
				t.Errorf("labels %v, data %v", live.GetLabels(), live.Object["data"])
			}
		})
	}
}

// TestAdoptionThatIsOvertaken: between the apply that takes an object from a tool and the patch that takes the tool's marks off, a
// controller writes the object, as it does to a Deployment that changes, or the agent is killed, and may find another revision when it
// starts again. The tool keeps nothing of it.
func TestAdoptionThatIsOvertaken(t *testing.T) {
	always := []fleet.Policy{{Adopt: fleet.AdoptAlways}}
	for name, tc := range map[string]struct{ killed, next bool }{"a controller writes": {}, "the agent is killed": {killed: true},
		"the agent is killed, and another revision comes": {killed: true, next: true}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			full := configMap("a", "kept: '1', dropped: '2'")
			r.appliedBy("kustomize-controller", strings.Replace(full, "name: a", "name: a, labels: {kustomize.toolkit.fluxcd.io/name: apps}", 1))
			var writes atomic.Int64
			r.count.upset(func(q *http.Request) error {
				if q.Header.Get("Content-Type") != string(types.JSONPatchType) || !strings.HasSuffix(q.URL.Path, "/configmaps/a") {
					return nil
				}
				if n := writes.Add(1); tc.killed {
					return errors.New("killed")
				} else if n == 1 {
					r.patch("v1", "configmaps", "a", "controller", `{"metadata":{"annotations":{"seen":"1"}}}`)
				}
				return nil
			})
			s := r.bundle("shop", always, full)
			r.set([]fleet.Sync{s})
			r.eventually("the marks are to be taken off", func() bool { return writes.Load() > 0 })
			if tc.killed {
				r.stop()
				r.count.upset(nil)
				r.start()
			}
			if !tc.next {
				r.set([]fleet.Sync{s})
				r.ready(s)
			}
			s = r.bundle("shop", always, configMap("a", "kept: '2'"), configMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			if r.data("a", "kept") != "2" || r.data("a", "dropped") != "" {
				t.Errorf("data %v", r.get("v1", "configmaps", "a").Object["data"])
			}
			s = r.bundle("shop", always, configMap("b", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.eventually("what the module drops is gone", func() bool { return r.get("v1", "configmaps", "a") == nil })
		})
	}
}

// TestWhatAPersonPutsIntoAnItemOutlivesWhatWasBesideIt: what somebody adds with kubectl inside of a container of the module, and the
// module does not list, stays as it is, also when a revision drops the last field of the module's that was beside it. With the
// container it goes.
func TestWhatAPersonPutsIntoAnItemOutlivesWhatWasBesideIt(t *testing.T) {
	r := newRig(t)
	text := func(image, resources, more string) string {
		return `
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: $NS}
spec:
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec: {containers: [{name: main, image: "` + image + `"` + resources + `}` + more + `]}
`
	}
	const requests = `, resources: {requests: {cpu: 100m}}, env: [{name: A, value: "1"}]`
	const side = `, {name: side, image: "example.com/side:1"}`
	put := func(text string) {
		t.Helper()
		s := r.bundle("shop", nil, text)
		r.set([]fleet.Sync{s})
		r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
	}
	put(text("example.com/a:1", requests, side))
	strategic(t, r, "kubectl-set", `{"spec":{"template":{"spec":{"containers":[{"name":"main","resources":{"limits":{"memory":"1Gi"}},"env":[{"name":"DEBUG","value":"1"}]},
		{"name":"side","resources":{"limits":{"memory":"1Gi"}}}]}}}}`)
	put(text("example.com/a:2", requests, side))
	put(text("example.com/a:3", "", ""))
	live := r.get("apps/v1", "deployments", "a")
	containers, _, _ := unstructured.NestedSlice(live.Object, "spec", "template", "spec", "containers")
	if len(containers) != 1 {
		t.Fatalf("containers %v", containers)
	}
	main := containers[0].(map[string]any)
	memory, _, _ := unstructured.NestedString(main, "resources", "limits", "memory")
	cpu, _, _ := unstructured.NestedString(main, "resources", "requests", "cpu")
	if env, _ := main["env"].([]any); memory != "1Gi" || cpu != "" || len(env) != 1 {
		t.Errorf("resources %v, env %v", main["resources"], main["env"])
	}
}

func strategic(t *testing.T, r *rig, manager, body string) {
	t.Helper()
	_, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), "a", types.StrategicMergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager})
	if err != nil {
		t.Fatal(err)
	}
}
