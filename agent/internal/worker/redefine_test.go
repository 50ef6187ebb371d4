package worker

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

// undefine1 takes the first version out of the definition of a kind.
func (r *rig) undefine1(plural, version string) {
	r.t.Helper()
	crds, name := r.client.Resource(gvr("apiextensions.k8s.io/v1", "customresourcedefinitions")), plural+"."+r.group()
	_, err := crds.Patch(context.Background(), name, types.MergePatchType, []byte(`{"status":{"storedVersions":["v2"]}}`), metav1.PatchOptions{}, "status")
	if err == nil {
		_, err = crds.Patch(context.Background(), name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/versions/0"}]`), metav1.PatchOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.eventually(version+" is not served any more", func() bool { return !r.lists(version, plural) })
}

// The version in which objects were written goes from the definition of their kind, and the API server refuses to apply to
// them: what it notes of theirs is in a version that it cannot convert to. They are applied all the same, by their next
// revision, also where only another program wrote in that version.
func TestVersionThatIsNotDefinedAnyMore(t *testing.T) {
	r := newRig(t)
	r.define("gizmos", "Gizmo", "v1", "v2")
	gizmo := func(version, name, spec string) string {
		return "apiVersion: $NS.example.com/" + version + "\nkind: Gizmo\nmetadata: {name: " + name + ", namespace: $NS}\nspec: {" + spec + "}\n"
	}
	applied := func(s fleet.Sync) {
		t.Helper()
		r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied && x.Generation == s.Generation })
	}
	s := r.bundle("shop", nil, gizmo("v1", "old", "size: 1, color: red"), gizmo("v2", "new", "size: 1"))
	r.set([]fleet.Sync{s})
	applied(s)
	for _, name := range []string{"old", "new"} {
		r.patch(r.group()+"/v1", "gizmos", name, "operator", `{"spec":{"node":"a"}}`)
	}
	theirs := r.custom("v1", "Gizmo", r.ns, "theirs")
	theirs["spec"] = map[string]any{"size": int64(1)}
	r.create(r.group()+"/v1", "gizmos", r.ns, theirs)
	r.undefine1("gizmos", "v1")
	next := r.bundle("shop", nil, gizmo("v2", "old", "size: 2"), gizmo("v2", "new", "size: 2"))
	r.set([]fleet.Sync{next})
	applied(next)
	spec := func(name string) map[string]any {
		spec, _, _ := unstructured.NestedMap(r.get(r.group()+"/v2", "gizmos", name).Object, "spec")
		return spec
	}
	if got := spec("old"); got["size"] != int64(2) || got["color"] != nil || got["node"] != "a" {
		t.Errorf("spec %v", got)
	}
	if got := spec("new"); got["size"] != int64(2) || got["node"] != "a" {
		t.Errorf("spec %v", got)
	}
	taken := r.bundle("shop", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, gizmo("v2", "theirs", "size: 3"))
	r.set([]fleet.Sync{taken})
	applied(taken)
	if got := spec("theirs"); got["size"] != int64(3) {
		t.Errorf("spec %v", got)
	}
}
