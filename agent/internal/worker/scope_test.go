package worker

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// zone is of a kind without namespaces, in a module that puts its objects into one: the hub cannot know.
const zone = "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: z, namespace: $NS}\nspec: {size: 1}\n"

func scopeCluster() string { return strings.Replace(crd, "scope: Namespaced", "scope: Cluster", 1) }

func (r *rig) zone() (size any, uid types.UID) {
	u, err := r.client.Resource(gvr(r.ns+".example.com/v1", "gadgets")).Get(context.Background(), "z", metav1.GetOptions{})
	if err != nil {
		return nil, ""
	}
	spec, _ := u.Object["spec"].(map[string]any)
	return spec["size"], u.GetUID()
}

func (r *rig) zones(verb string) {
	r.t.Helper()
	zones, err := r.client.Resource(gvr(r.ns+".example.com/v1", "gadgets")), error(nil)
	if verb == "delete" {
		err = zones.Delete(context.Background(), "z", metav1.DeleteOptions{})
	} else {
		_, err = zones.Patch(context.Background(), "z", types.MergePatchType, []byte(`{"spec":{"size":7}}`), metav1.PatchOptions{FieldManager: "somebody"})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// kept edits and deletes the object, and sees it put back.
func (r *rig) keptAsWanted() {
	r.t.Helper()
	r.zones("edit")
	r.eventually("the edit is corrected", func() bool { size, _ := r.zone(); return size == int64(1) })
	_, before := r.zone()
	r.zones("delete")
	r.eventually("the object is back", func() bool { size, uid := r.zone(); return size == int64(1) && uid != before })
}

// Scenario 36: what is recorded of a cluster-scoped object with a namespace is the same object as without.
func TestClusterScopedObjectInAModuleWithANamespace(t *testing.T) {
	r := newRig(t)
	defs := r.bundle("defs", nil, scopeCluster())
	r.set([]fleet.Sync{defs})
	r.ready(defs)
	s := r.bundle("shop", nil, zone, configMap("a", "k: v"))
	r.set([]fleet.Sync{defs, s})
	r.ready(s)
	r.keptAsWanted()
	r.ready(s)

	r.stop()
	r.start()
	r.set([]fleet.Sync{defs, s})
	r.ready(s)
	r.keptAsWanted()
	r.ready(s)

	other := r.bundle("other", nil, strings.Replace(zone, "namespace: $NS", "namespace: elsewhere", 1), configMap("b", "k: v"))
	r.set([]fleet.Sync{defs, s, other})
	r.wait("other", "in conflict", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && x.Reason == apply.ReasonConflict && strings.Contains(x.Message, "belongs to module shop")
	})
	if _, uid := r.zone(); uid == "" {
		t.Error("the object is gone")
	}

	less := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{defs, less})
	r.ready(less)
	r.eventually("what the module omits is gone", func() bool { _, uid := r.zone(); return uid == "" })
}

// The definition may come with the object, so that nobody knows the scope when the module begins; and an agent of before may
// have noted the object in a namespace.
func TestScopeThatIsLearnedLate(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, zone, scopeCluster(), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.keptAsWanted()
	r.ready(s)
	if status := r.ready(s); len(status.Extras) > 0 {
		t.Errorf("extras: %+v", status.Extras)
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.crdExists() {
		t.Error("the definition is left though nothing foreign uses it")
	}
}

// One module that lists the same object in two namespaces has it once.
func TestSameClusterScopedObjectTwiceInAModule(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, scopeCluster(), zone, strings.Replace(zone, "namespace: $NS", "namespace: elsewhere", 1))
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && strings.Contains(x.Message, "twice")
	})
}

// A kind that was defined anew with another scope took its objects along. The module's are made again where the kind has
// them now, without a restart, and go with the module.
func TestKindThatIsDefinedAnewWithAnotherScope(t *testing.T) {
	for _, tc := range []struct{ from, to, in string }{{"Namespaced", "Cluster", "$NS"}, {"Cluster", "Namespaced", "$NS"}, {"Cluster", "Namespaced", "'${PLACE}'"}} {
		from, to := tc.from, tc.to
		t.Run("to "+to+", in "+tc.in, func(t *testing.T) {
			r := newRig(t)
			ns := map[string]string{"Namespaced": r.ns}[to]
			define := func(scope string) {
				r.create("apiextensions.k8s.io/v1", "customresourcedefinitions", "", r.object(strings.Replace(crd, "scope: Namespaced", "scope: "+scope, 1)))
			}
			t.Cleanup(func() { r.undefine("gadgets") })
			define(from)
			s := r.bundle("shop", nil, strings.Replace(zone, "namespace: $NS", "namespace: "+tc.in, 1))
			s.Values = map[string]string{"PLACE": r.ns}
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.undefine("gadgets")
			r.eventually("the kind is gone", func() bool { return !r.crdExists() })
			define(to)
			there := func() bool { return r.exists(r.ns+".example.com/v1", "gadgets", ns, "z") }
			r.eventually("it is made again", there)
			r.ready(s)
			r.stop()
			r.forget()
			r.start()
			s = r.again(s)
			r.set([]fleet.Sync{s})
			r.ready(s)
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if there() {
				t.Error("left behind")
			}
		})
	}
}

// What is only recorded of a kind that has another scope by now went with the old definition.
func TestRecordOfAKindThatHasNamespacesNow(t *testing.T) {
	r := newRig(t)
	t.Cleanup(func() { r.undefine("gadgets") })
	r.create("apiextensions.k8s.io/v1", "customresourcedefinitions", "", r.object(scopeCluster()))
	s := r.bundle("shop", nil, zone)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.undefine("gadgets")
	r.eventually("the kind is gone", func() bool { return !r.crdExists() })
	r.create("apiextensions.k8s.io/v1", "customresourcedefinitions", "", r.object(crd))
	r.eventually("the kind is back", func() bool { return r.lists("v1", "gadgets") })
	r.forget()
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}
