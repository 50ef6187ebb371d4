package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

func (r *rig) foreign(name, key, value string) {
	r.t.Helper()
	r.create("v1", "configmaps", r.ns, map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "namespace": r.ns}, "data": map[string]any{key: value}})
}

func (r *rig) marked(name string) bool {
	u := r.get("v1", "configmaps", name)
	return u != nil && (u.GetLabels()[fleet.HubLabel] != "" || u.GetAnnotations()[fleet.OwnerAnnotation] != "")
}

func TestForeignObjectsAreNotTouched(t *testing.T) {
	r := newRig(t)
	r.foreign("differs", "k", "theirs")
	r.foreign("equal", "k", "want")
	r.foreign("never", "k", "want")
	r.foreign("always", "k", "theirs")
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"never"}}, Adopt: fleet.AdoptNever},
		{Match: fleet.PolicyMatch{Names: []string{"always"}}, Adopt: fleet.AdoptAlways}}
	s := r.bundle("shop", policies, configMap("differs", "k: want"), configMap("equal", "k: want"), configMap("never", "k: want"),
		configMap("always", "k: want"), configMap("new", "k: want"))
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && len(x.Exceptions) == 2 })
	if r.marked("differs") || r.data("differs", "k") != "theirs" || r.marked("never") {
		t.Error("a foreign object was touched")
	}
	if !r.marked("equal") || !r.marked("new") || r.data("always", "k") != "want" {
		t.Error("objects that could be adopted or created were not")
	}
	if e := status.Exceptions[0]; e.Reason != "Conflict" || !strings.Contains(e.Message, `made by "somebody"`) || !strings.Contains(e.Message, "/data/k") {
		t.Errorf("exception %+v", e)
	}

	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.data("differs", "k") != "theirs" || r.data("never", "k") != "want" {
		t.Error("a foreign object was deleted")
	}
	if r.get("v1", "configmaps", "new") != nil || r.get("v1", "configmaps", "equal") != nil {
		t.Error("own objects are left")
	}
}

func TestTwoModulesOneObject(t *testing.T) {
	r := newRig(t)
	a := r.bundle("first", nil, configMap("x", "k: first"), configMap("own", "k: first"))
	r.set([]fleet.Sync{a})
	r.ready(a)
	b := r.bundle("second", nil, configMap("x", "k: second"))
	r.set([]fleet.Sync{a, b})
	status := r.wait("second", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
	if !strings.Contains(status.Message, "belongs to module first") || r.data("x", "k") != "first" {
		t.Errorf("status %+v, x is %s", status, r.data("x", "k"))
	}
	uid := r.get("v1", "configmaps", "x").GetUID()
	a2 := r.bundle("first", nil, configMap("own", "k: first"))
	r.set([]fleet.Sync{a2, b})
	r.ready(b)
	r.ready(a2)
	if now := r.get("v1", "configmaps", "x"); now.GetUID() != uid || r.data("x", "k") != "second" {
		t.Errorf("x was deleted, or is %s", r.data("x", "k"))
	}
	r.set([]fleet.Sync{b}, r.tombstone("first", fleet.DeleteDelete))
	r.wait("first", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.data("x", "k") != "second" {
		t.Error("the object of the second module went with the first")
	}
}

// What keeps an object from being deleted does not keep it from moving to the module that lists it.
func TestKeptObjectMovesToAnotherModule(t *testing.T) {
	r := newRig(t)
	pvc := "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: $NS}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"
	never := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"kept"}}, Prune: fleet.PruneNever}}
	a := r.bundle("first", never, pvc, configMap("kept", "k: first"), configMap("own", "k: v"))
	r.set([]fleet.Sync{a})
	applied := func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied }
	r.wait("first", "applied", applied)
	uid := r.get("v1", "persistentvolumeclaims", "data").GetUID()

	b := r.bundle("second", nil, pvc, configMap("kept", "k: second"))
	a = r.bundle("first", never, configMap("own", "k: v"))
	r.set([]fleet.Sync{a, b})
	r.wait("second", "applied", applied)
	r.wait("first", "without what moved", func(x fleet.SyncStatus) bool {
		return x.Generation == a.Generation && x.Ready && len(x.Extras) == 0
	})
	if now := r.get("v1", "persistentvolumeclaims", "data"); now.GetUID() != uid || r.data("kept", "k") != "second" {
		t.Errorf("claim %s was %s, kept is %s", now.GetUID(), uid, r.data("kept", "k"))
	}
}

func TestPrune(t *testing.T) {
	r := newRig(t)
	pvc := "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: $NS}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"), pvc)
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	next := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "pruned, with a word for what stays", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Ready && len(x.Extras) == 1 && x.Extras[0].Reason == "Kept"
	})
	if r.get("v1", "configmaps", "b") != nil {
		t.Error("b is still there, and is not listed any more")
	}
	if r.get("v1", "persistentvolumeclaims", "data") == nil {
		t.Error("a claim goes")
	}
	r.set([]fleet.Sync{next})
	r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") == nil || r.marked("a") {
		t.Error("an orphaned object is gone or still marked")
	}
}

func TestPruneWaits(t *testing.T) {
	r := newRig(t)
	stuck := strings.ReplaceAll(deployment("web", 1), "nginx:1", "never-ready:1")
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", nil, configMap("a", "k: v"), stuck)
	r.set([]fleet.Sync{next})
	r.wait("shop", "progressing", func(x fleet.SyncStatus) bool { // what was to be said before the rest was applied may be heard first
		return x.Generation == next.Generation && x.Phase == fleet.PhaseApplied && len(x.Extras) == 1 && x.Extras[0].Reason == "AwaitingReady"
	})
	if r.get("v1", "configmaps", "b") == nil {
		t.Error("pruned before the rest is ready")
	}
	bad := r.bundle("shop", nil, configMap("a", "k: v"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Bad_Name, namespace: $NS}\n")
	r.set([]fleet.Sync{bad})
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool {
		return x.Generation == bad.Generation && x.Phase == fleet.PhaseFailed && len(x.Extras) == 2 && x.Extras[0].Reason == "AwaitingApply"
	})
	if r.get("v1", "configmaps", "b") == nil {
		t.Error("pruned although an apply failed")
	}
}

func TestPruneGuard(t *testing.T) {
	r := newRig(t)
	var objects []string
	for i := range 24 {
		objects = append(objects, configMap(fmt.Sprintf("cm-%02d", i), "k: v"))
	}
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	next := r.bundle("shop", nil, objects[:8]...)
	r.set([]fleet.Sync{next})
	status := r.wait("shop", "waiting for a confirm", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() > 0 })
	if status.Waiting() != 16 || r.get("v1", "configmaps", "cm-20") == nil {
		t.Errorf("held: %v", status.Held())
	}
	next.PruneConfirmed = true
	r.set([]fleet.Sync{next})
	r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Ready && x.Waiting() == 0 && len(x.Extras) == 0 })
	if r.get("v1", "configmaps", "cm-20") != nil || r.get("v1", "configmaps", "cm-02") == nil {
		t.Error("what was confirmed is not what went")
	}
}

func TestSilenceDeletesNothing(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.set(nil)
	r.wait("shop", "unlisted", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseStray && len(x.Extras) == 1 })
	r.m.Set(fleet.Assemblage{}, []fleet.Sync{s})
	r.wait("shop", "stray", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseStray && len(x.States) == 1 && x.States[0].Fine()
	})
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	r.eventually("a stray is corrected", func() bool { return r.data("a", "k") == "v" })
	r.stop()
	r.start()
	r.m.Set(fleet.Assemblage{}, nil)
	r.wait("shop", "unlisted", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseStray && x.Reason == "Unlisted" })
	if r.data("a", "k") != "v" {
		t.Error("an object went without a tombstone")
	}
	r.m.Leave(fleet.Leave{Objects: fleet.LeaveKeep})
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.data("a", "k") != "v" || r.marked("a") {
		t.Error("leaving the fleet deleted an object, or left marks")
	}
}

func TestReplacedObjectIsForeign(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.delete("v1", "configmaps", "a")
	r.foreign("a", "k", "theirs")
	r.wait("shop", "missing", func(x fleet.SyncStatus) bool { return x.States[0].Health == fleet.HealthMissing })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.data("a", "k") != "theirs" {
		t.Error("an object with another UID was deleted")
	}
}

func TestCrashBetweenIntentAndOwned(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.store.mu.Lock()
	for n := range r.store.files { // only the first segment, the intents, survives
		if n != fmt.Sprintf("inventory-%020d", 1) {
			delete(r.store.files, n)
		}
	}
	r.store.mu.Unlock()
	uid := r.get("v1", "configmaps", "a").GetUID()
	r.start()
	next := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return len(x.Extras) == 0 && x.Ready })
	if got := r.get("v1", "configmaps", "a"); got == nil || got.GetUID() != uid {
		t.Error("a was not taken up again")
	}
	if r.get("v1", "configmaps", "b") != nil {
		t.Error("b was ours, is not wanted, and is still there")
	}
}

func TestNothingIsWrittenWithoutInventory(t *testing.T) {
	r := newRig(t)
	r.store.fail.Store(true)
	s := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "without inventory", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "InventoryUnavailable"
	})
	if r.get("v1", "configmaps", "a") != nil {
		t.Error("written before the intent was durable")
	}
	r.store.fail.Store(false)
	r.ready(s)
}

// A module writes what another one handed over when that is on record, or the object would be nobody's should the agent be
// killed in between: the one that had it finds another module's mark, and the one that has it knows nothing of it.
func TestHandedOverIsOnRecordBeforeItIsWritten(t *testing.T) {
	r := newRig(t)
	one, two := r.bundle("one", nil, configMap("x", "by: one")), r.bundle("two", nil, configMap("b", "by: two"))
	r.set([]fleet.Sync{one, two})
	r.ready(one)
	r.ready(two)
	r.store.fail.Store(true)
	one, two = r.bundle("one", nil), r.bundle("two", nil, configMap("b", "by: two"), configMap("x", "by: two"))
	r.set([]fleet.Sync{one, two})
	r.wait("two", "without inventory", func(x fleet.SyncStatus) bool {
		return x.Generation == two.Generation && slices.ContainsFunc(x.Exceptions, func(e fleet.ObjectException) bool { return e.Reason == "InventoryUnavailable" })
	})
	if by := r.data("x", "by"); by != "one" {
		t.Errorf("written by %s before the record was durable", by)
	}
	r.store.fail.Store(false)
	r.ready(two)
	if by := r.data("x", "by"); by != "two" {
		t.Errorf("it is of %s", by)
	}
}

func (r *rig) namespaces(name string) bool {
	_, err := r.client.Resource(gvr("v1", "namespaces")).Get(context.Background(), name, metav1.GetOptions{})
	return err == nil
}

func TestInventoryLost(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.store.mu.Lock()
	r.store.files = map[string][]byte{}
	r.store.mu.Unlock()
	r.start()
	next := r.bundle("shop", nil, configMap("a", "k: new"))
	r.set([]fleet.Sync{next})
	status := r.wait("shop", "waiting for a confirm", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Ready && x.Waiting() == 1
	})
	if r.get("v1", "configmaps", "b") == nil || r.data("a", "k") != "new" {
		t.Errorf("status %+v", status)
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") != nil || r.get("v1", "configmaps", "b") != nil {
		t.Error("a tombstone left what carries our marks")
	}
}

func TestDriftWhileAway(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"k":"other"}}`)
	r.delete("v1", "configmaps", "b")
	r.start()
	r.set([]fleet.Sync{s})
	r.wait("shop", "corrected", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 2 })
	if r.data("a", "k") != "v" || r.data("b", "k") != "v" {
		t.Error("not corrected")
	}
}

func TestWorkloadSaysWhatHoldsItUp(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, strings.ReplaceAll(deployment("web", 1), "nginx:1", "never-ready:1"))
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "diagnosed", func(x fleet.SyncStatus) bool { return x.Reason == "ImagePullBackOff" })
	if !strings.Contains(status.Message, "Deployment.apps "+r.ns+"/web: pod web-") || !strings.Contains(status.Message, "never-ready:1") {
		t.Errorf("message %q", status.Message)
	}
}

// Whoever takes the label off an object has its module let it go. No module has it then, and it may be taken.
func TestObjectThatWasLetGoByHandIsTaken(t *testing.T) {
	r := newRig(t)
	first := r.bundle("first", nil, configMap("a", "k: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{first})
	r.ready(first)
	r.stop()
	r.patch("v1", "configmaps", "a", "ana", `{"metadata":{"labels":{"towline.dev/hub":null}}}`)
	r.start()
	first = r.bundle("first", nil, configMap("b", "k: v"))
	r.set([]fleet.Sync{first})
	r.wait("first", "without the object", func(x fleet.SyncStatus) bool {
		return x.Ready && x.Generation == first.Generation && len(x.Extras) == 0
	})
	second := r.bundle("second", nil, configMap("a", "k: w"))
	r.set([]fleet.Sync{first, second})
	if status := r.failed(second); status.Reason != apply.ReasonConflict || strings.Contains(status.Message, "belongs to") || !strings.Contains(status.Message, "adopt: Always") {
		t.Errorf("status %+v", status)
	}
	second = r.bundle("second", []fleet.Policy{{Adopt: fleet.AdoptAlways}}, configMap("a", "k: w"))
	r.set([]fleet.Sync{first, second})
	r.ready(second)
}

// A token that somebody made for the ServiceAccount default is his, and lost with the namespace.
func TestTokenThatSomebodyMadeKeepsTheNamespace(t *testing.T) {
	r := newRig(t)
	ns := r.ns + "-own"
	s := r.bundle("shop", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("the ServiceAccount is there", func() bool { return r.exists("v1", "serviceaccounts", ns, "default") })
	r.create("v1", "secrets", ns, map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
		"metadata": map[string]any{"name": "ci", "annotations": map[string]any{"kubernetes.io/service-account.name": "default"}}})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	status := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !r.exists("v1", "secrets", ns, "ci") || !strings.Contains(status.Message, "Secret ci") {
		t.Errorf("went with the namespace: %+v", status)
	}
	_ = r.res("v1", "namespaces", "").Delete(context.Background(), ns, metav1.DeleteOptions{})
}
