package worker

import (
	"fmt"
	"slices"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// inVersions is the definition of the rig's kind Gadget with some versions, the last of which is the stored one.
func inVersions(served ...string) string {
	text := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: gadgets.$NS.example.com}\n" +
		"spec:\n  group: $NS.example.com\n  scope: Namespaced\n  names: {kind: Gadget, plural: gadgets}\n  versions:\n"
	for i, v := range []string{"v1", "v2"} {
		stored := v == served[len(served)-1]
		if stored || i == 0 {
			text += fmt.Sprintf("  - {name: %s, served: %t, storage: %t, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}\n",
				v, slices.Contains(served, v), stored)
		}
	}
	return text
}

// TestVersionThatComesWithTheModule: a revision brings a version of a kind, has its object in it, and does not serve the older one any more. The
// object is changed, as the preview says, and not made anew; there is no way back to before the version, and nothing is lost by trying.
func TestVersionThatComesWithTheModule(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { r.undefine("gadgets") })
	in := func(version, size string) string {
		return "apiVersion: $NS.example.com/" + version + "\nkind: Gadget\nmetadata: {name: g, namespace: $NS}\nspec: {size: " + size + "}\n"
	}
	one := r.bundle("shop", nil, inVersions("v1"), in("v1", "1"))
	r.says(r.preview(one), "0 unchanged", "Create CustomResourceDefinition gadgets.$NS.example.com", "Create Gadget g Unchecked")
	r.set([]fleet.Sync{one})
	r.ready(one)
	uid := r.uidOf(r.group()+"/v1", "gadgets", "g")
	two := r.bundle("shop", nil, inVersions("v2"), in("v2", "2"))
	if said := r.said(r.preview(two)); !slices.Contains(said, "Change Gadget g Unchecked") {
		t.Errorf("the preview says %q of an object that is there", said)
	}
	r.neverFails("with the version", two)
	is := func() {
		t.Helper()
		u := r.get(r.group()+"/v2", "gadgets", "g")
		if u == nil || u.GetUID() != uid || fmt.Sprint(u.Object["spec"]) != "map[size:2]" {
			t.Fatalf("the object is %v, was %s", u, uid)
		}
	}
	is()
	back := r.again(one)
	r.set([]fleet.Sync{back})
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return x.Generation == back.Generation && len(x.Exceptions) > 0 })
	is()
	r.stop()
	r.start()
	again := r.again(two)
	r.set([]fleet.Sync{again})
	r.ready(again)
	is()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", isRemoved)
	if r.crdExists() {
		t.Error("the definition is left")
	}
}
