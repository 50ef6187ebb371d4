package worker

import (
	"strings"
	"testing"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// TestPreviewOfAClusterScopedObjectInAModuleWithANamespace: the definition is another module's, so that the hub cannot know that the kind has no
// namespaces. What is there already stays as it is, and what becomes of it by a next revision is said of the object that is there.
func TestPreviewOfAClusterScopedObjectInAModuleWithANamespace(t *testing.T) {
	r := newRig(t)
	defs, s := r.bundle("defs", nil, scopeCluster()), r.bundle("shop", nil, zone, configMap("a", "k: v"))
	r.set([]fleet.Sync{defs})
	r.ready(defs)
	r.says(r.preview(s), "0 unchanged", "Create ConfigMap a", "Create Gadget z")
	r.set([]fleet.Sync{defs, s})
	r.ready(s)
	r.says(r.preview(s), "2 unchanged")
	larger := r.bundle("shop", nil, strings.Replace(zone, "size: 1", "size: 2", 1), configMap("a", "k: v"))
	r.says(r.preview(larger), "1 unchanged", "Change Gadget z /spec/size 1→2")
	reads := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Gadget"}, Namespaces: []string{r.ns}}, ReadOnly: new(true)}} // as the module lists it
	r.says(r.preview(r.bundle("shop", reads, zone, configMap("a", "k: v"))), "1 unchanged", "Release Gadget z")
	r.says(r.preview(r.bundle("shop", nil, configMap("a", "k: v"))), "1 unchanged", "Delete Gadget z")
	elsewhere := strings.Replace(zone, "namespace: $NS", "namespace: elsewhere", 1)
	if p := r.preview(r.bundle("shop", nil, zone, elsewhere)); !strings.Contains(strings.Join(r.said(p), "; "), "Refuse Gadget z "+apply.ReasonInvalid) {
		t.Errorf("the same object twice: %q", r.said(p))
	}

	r.stop()
	r.start()
	r.set([]fleet.Sync{defs, s})
	r.ready(s)
	r.says(r.preview(s), "2 unchanged")
	other := r.preview(r.bundle("other", nil, elsewhere))
	if r.says(other, "0 unchanged", "Refuse Gadget z "+apply.ReasonConflict); !strings.Contains(other.Objects[0].Message, "belongs to module shop") {
		t.Errorf("%+v", other.Objects)
	}
}
