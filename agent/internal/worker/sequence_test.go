package worker

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

func moduleOf(names ...string) (out []fleet.ModuleRef) {
	for _, n := range names {
		out = append(out, fleet.ModuleRef{Project: "default", Name: n})
	}
	return out
}

// awaits waits until a module says that it waits for others, and what it says has this in it.
func (r *rig) awaits(module, reason, what string) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(module, "waiting", func(x fleet.SyncStatus) bool { return x.Reason == reason && strings.Contains(x.Message, what) })
}

// keyOf is what a ConfigMap has under k; empty: it is not there.
func (r *rig) keyOf(name string) string {
	u := r.get("v1", "configmaps", name)
	if u == nil {
		return ""
	}
	k, _ := u.Object["data"].(map[string]any)["k"].(string)
	return k
}

// TestModuleWaitsForWhatComesFirst: nothing of a module is written before what it depends on is here and ready; then it begins by itself.
// A next revision waits again, and what the module has is kept meanwhile as far as both say the same.
func TestModuleWaitsForWhatComesFirst(t *testing.T) {
	r := newRig(t)
	shop := r.bundle("shop", nil, configMap("a", "k: one"), configMap("b", "k: one"))
	shop.Revision, shop.DependsOn = 1, moduleOf("base")
	r.set([]fleet.Sync{shop})
	r.awaits("shop", "AwaitingDependency", "waits for module base: is not in this cluster")
	base := r.gated(r.bundle("base", nil, gate("db", "1")))
	base.Revision = 1
	r.set([]fleet.Sync{base, shop})
	r.awaits("shop", "AwaitingDependency", "waits for module base: not ready (")
	if s := r.wait("shop", "applying", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplying }); s.Ready || r.keyOf("a") != "" {
		t.Fatalf("something is there already: %q, %+v", r.keyOf("a"), s)
	}
	r.sets("db", "1")
	r.ready(base)
	r.ready(shop)

	base = r.gated(r.bundle("base", nil, gate("db", "2")))
	next := r.bundle("shop", nil, configMap("a", "k: two"), configMap("b", "k: one"), configMap("c", "k: two"))
	base.Revision, next.Revision, next.DependsOn = 2, 2, shop.DependsOn
	r.set([]fleet.Sync{base, next})
	r.awaits("shop", "AwaitingDependency", "not ready (")
	r.patch("v1", "configmaps", "b", "ana", `{"data":{"k":"changed"}}`)
	r.eventually("what both revisions say is kept", func() bool { return r.keyOf("b") == "one" })
	if r.keyOf("a") != "one" || r.keyOf("c") != "" {
		t.Fatalf("begun: %q %q", r.keyOf("a"), r.keyOf("c"))
	}
	r.sets("db", "2")
	r.ready(next)
	if r.keyOf("a") != "two" || r.keyOf("c") != "two" {
		t.Errorf("%q %q", r.keyOf("a"), r.keyOf("c"))
	}
	// What is begun goes on, whatever becomes of what it depends on.
	r.sets("db", "down")
	r.wait("base", "not ready", func(x fleet.SyncStatus) bool { return !x.Ready })
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"changed"}}`)
	r.eventually("it is kept as it is", func() bool { return r.keyOf("a") == "two" })
}

// TestBegunIsNotAskedAgain: a revision that was begun goes on after a restart of the agent, although what it depends on is not ready; one
// that was not waits on.
func TestBegunIsNotAskedAgain(t *testing.T) {
	r := newRig(t)
	base := r.gated(r.bundle("base", nil, gate("db", "1")))
	shop := r.bundle("shop", nil, configMap("a", "k: one"), "apiVersion: example.com/v1\nkind: Nothing\nmetadata: {name: x, namespace: $NS}\n")
	later := r.bundle("later", nil, configMap("z", "k: one"))
	shop.DependsOn, later.DependsOn = moduleOf("base"), moduleOf("shop")
	r.set([]fleet.Sync{base, shop, later})
	r.awaits("later", "AwaitingDependency", "module shop: not ready")
	r.wait("base", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	r.sets("db", "1")
	r.eventually("begun", func() bool { return r.keyOf("a") == "one" })
	r.sets("db", "down")
	r.wait("base", "not ready", func(x fleet.SyncStatus) bool { return !x.Ready })
	r.stop()
	if err := r.res("v1", "configmaps", r.ns).Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.m.Set(r.current, nil)
	r.eventually("it goes on", func() bool { return r.keyOf("a") == "one" })
	r.awaits("later", "AwaitingDependency", "module shop: not ready")
	if r.keyOf("z") != "" {
		t.Error("what was not begun did not wait")
	}
}

// TestWhatDependsGoesFirst: of modules that go together the one that others depend on goes last, and says for what it waits; also over a
// restart. It waits for what hangs at a finalizer, and not if what it has is left in the cluster.
func TestWhatDependsGoesFirst(t *testing.T) {
	r := newRig(t)
	base, shop := r.bundle("base", nil, configMap("b", "k: one")), r.bundle("shop", nil, configMap("a", "k: one"))
	shop.DependsOn = moduleOf("base")
	r.set([]fleet.Sync{base, shop})
	r.ready(shop)
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"finalizers":["example.com/slow"]}}`)
	dead, deadBase := r.tombstone("shop", fleet.DeleteDelete), r.tombstone("base", fleet.DeleteDelete)
	dead.DependsOn = shop.DependsOn
	r.set(nil, deadBase, dead)
	r.awaits("base", "DependentsFirst", "waits for module shop, which depends on it, to be gone (ConfigMap "+r.ns+"/a: is being deleted; finalizers")
	r.awaits("shop", "Removing", "")
	r.stop()
	r.start()
	r.m.Set(r.current, nil)
	r.awaits("base", "DependentsFirst", "module shop")
	if u := r.get("v1", "configmaps", "b"); u == nil || u.GetDeletionTimestamp() != nil {
		t.Fatal("base went first")
	}
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"finalizers":null}}`)
	for _, m := range []string{"shop", "base"} {
		r.wait(m, "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	}
}

// TestRemovalThatWaitsForNobody: a module whose dependents stay, or that is left in the cluster, goes at once; and so does one whose
// dependent leaves what it has to another module only.
func TestRemovalThatWaitsForNobody(t *testing.T) {
	for name, tc := range map[string]func(r *rig, shop fleet.Sync) ([]fleet.Sync, fleet.Tombstone, []fleet.Tombstone){
		"dependents stay": func(r *rig, shop fleet.Sync) ([]fleet.Sync, fleet.Tombstone, []fleet.Tombstone) {
			return []fleet.Sync{shop}, r.tombstone("base", fleet.DeleteDelete), nil
		},
		"left in the cluster": func(r *rig, shop fleet.Sync) ([]fleet.Sync, fleet.Tombstone, []fleet.Tombstone) {
			dead := r.tombstone("shop", fleet.DeleteDelete)
			dead.DependsOn, dead.Hold = shop.DependsOn, true
			return nil, r.tombstone("base", fleet.DeleteOrphan), []fleet.Tombstone{dead}
		},
		"dependent waits for an heir": func(r *rig, shop fleet.Sync) ([]fleet.Sync, fleet.Tombstone, []fleet.Tombstone) {
			dead := r.tombstone("shop", fleet.DeleteDelete)
			dead.DependsOn, dead.Heirs = shop.DependsOn, r.heirs("third", "a")
			return nil, r.tombstone("base", fleet.DeleteDelete), []fleet.Tombstone{dead}
		},
		"each depends on the other": func(r *rig, shop fleet.Sync) ([]fleet.Sync, fleet.Tombstone, []fleet.Tombstone) {
			dead, base := r.tombstone("shop", fleet.DeleteDelete), r.tombstone("base", fleet.DeleteDelete)
			dead.DependsOn, base.DependsOn = shop.DependsOn, moduleOf("shop")
			return nil, base, []fleet.Tombstone{dead}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			base, shop := r.bundle("base", nil, configMap("b", "k: one")), r.bundle("shop", nil, configMap("a", "k: one"))
			shop.DependsOn = moduleOf("base")
			r.set([]fleet.Sync{base, shop})
			r.ready(shop)
			syncs, dead, others := tc(r, shop)
			r.set(syncs, append(others, dead)...)
			r.wait("base", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
		})
	}
}

// TestWaitingModuleHoldsNobodyUp: what a module that waits is to drop goes over to the module that comes first, what it lists as well is
// made at once where that one waits for it, and what others let go for it is not deleted meanwhile.
func TestWaitingModuleHoldsNobodyUp(t *testing.T) {
	r := newRig(t)
	shop, other := r.bundle("shop", nil, configMap("a", "k: one")), r.bundle("other", nil, configMap("o", "k: one"))
	r.set([]fleet.Sync{shop, other})
	r.ready(shop)
	r.ready(other)
	base := r.gated(r.bundle("base", nil, configMap("a", "k: base"), gate("db", "1")))
	base.Yields = []fleet.Yield{{Owner: shop.Module, Since: base.Generation, Ordinals: []int{0}, Ending: []int{0}}}
	shop = r.bundle("shop", nil, configMap("o", "k: shop"))
	shop.DependsOn = moduleOf("base")
	other = r.bundle("other", nil, configMap("p", "k: other"))
	uid := r.get("v1", "configmaps", "o").GetUID()
	r.set([]fleet.Sync{base, shop, other})
	r.eventually("handed over", func() bool { return r.keyOf("a") == "base" })
	r.ready(other)
	r.awaits("shop", "AwaitingDependency", "module base: not ready")
	if r.keyOf("o") != "one" {
		t.Errorf("o is %q", r.keyOf("o"))
	}
	r.sets("db", "1")
	r.ready(shop)
	if r.get("v1", "configmaps", "o").GetUID() != uid {
		t.Error("what went over was made anew")
	}
}
