package worker

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// yielding is the sync with an object that another module owns.
func yielding(s fleet.Sync, owner string, since uint64, ordinals ...int) fleet.Sync {
	s.Yields = []fleet.Yield{{Owner: fleet.ModuleRef{Project: "default", Name: owner}, Since: since, Ordinals: ordinals}}
	return s
}

// renewed is the same sync under a new generation, as the hub gives it when what it yields changes.
func (r *rig) renewed(s fleet.Sync, yields ...fleet.Yield) fleet.Sync {
	r.gen++
	s.Generation, s.Yields = r.gen, yields
	return s
}

func (r *rig) inConflict(s fleet.Sync, owner string) {
	r.t.Helper()
	r.wait(s.Module.Name, "in conflict with "+owner, func(x fleet.SyncStatus) bool {
		said := x.Generation == s.Generation && x.Phase == fleet.PhaseFailed && !x.Ready && strings.Contains(x.Message, "belongs to module "+owner+";")
		return said && slices.ContainsFunc(x.States, func(o fleet.ObjectState) bool { return o.Drift == fleet.DriftConflict && o.Used }) // it does not go with the module
	})
}

// kept checks that a ConfigMap was never deleted and is a module's now.
func (r *rig) kept(name, uid, module string) {
	r.t.Helper()
	r.eventually(name+" is of "+module, func() bool { return r.data(name, "by") == module })
	if now := r.get("v1", "configmaps", name); string(now.GetUID()) != uid {
		r.t.Errorf("%s was deleted and created again", name)
	}
	if counts, paths := r.count.take(); counts["DELETE"] > 0 {
		r.t.Errorf("deleted: %v", paths)
	}
}

func (r *rig) uid(name string) string {
	r.t.Helper()
	u := r.get("v1", "configmaps", name)
	if u == nil {
		r.t.Fatalf("no ConfigMap %s", name)
	}
	return string(u.GetUID())
}

// TestYieldedObjectGoesOver: what another module owns is not written, also when that is not here yet; the rest of the
// module is. When the owner lets it go, in whatever way, it goes over without a request, and to the one that waits
// longest.
func TestYieldedObjectGoesOver(t *testing.T) {
	for name, letGo := range map[string]func(r *rig, rest ...fleet.Sync){
		"dropped":  func(r *rig, rest ...fleet.Sync) { r.set(append(rest, r.bundle("one", nil, configMap("a", "by: one")))) },
		"deleted":  func(r *rig, rest ...fleet.Sync) { r.set(rest, r.tombstone("one", fleet.DeleteDelete)) },
		"orphaned": func(r *rig, rest ...fleet.Sync) { r.set(rest, r.tombstone("one", fleet.DeleteOrphan)) },
		"dropped while the agent was away": func(r *rig, rest ...fleet.Sync) {
			r.stop()
			r.start()
			r.set(append(rest, r.bundle("one", nil, configMap("a", "by: one"))))
		},
		"deleted, and the other was told in the same index": func(r *rig, rest ...fleet.Sync) {
			rest[0] = r.renewed(rest[0])
			r.set(rest, r.tombstone("one", fleet.DeleteDelete))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			two := yielding(r.bundle("two", nil, configMap("b", "by: two"), configMap("m", "by: two")), "one", 2, 1)
			r.set([]fleet.Sync{two})
			r.inConflict(two, "one")
			if r.get("v1", "configmaps", "m") != nil || r.get("v1", "configmaps", "b") == nil {
				t.Fatal("two wrote the object of one, or not its own")
			}
			one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
			late := yielding(r.bundle("late", nil, configMap("m", "by: late")), "one", 9, 0)
			r.set([]fleet.Sync{two, one, late})
			r.ready(one)
			r.inConflict(two, "one")
			r.inConflict(late, "one")
			uid := r.uid("m")
			r.count.take()
			letGo(r, two, late)
			r.eventually("m is of two", func() bool { return r.data("m", "by") == "two" })
			r.wait("two", "ready", func(x fleet.SyncStatus) bool { return x.Ready })
			if now := r.uid("m"); now != uid {
				t.Errorf("m was deleted and created again: UID %s was %s", now, uid)
			}
			if u := r.get("v1", "configmaps", "m"); !strings.Contains(u.GetAnnotations()[fleet.OwnerAnnotation], "default/two@") {
				t.Errorf("owner mark %v", u.GetAnnotations())
			}
			_, paths := r.count.take()
			for _, p := range paths {
				if strings.HasPrefix(p, "DELETE") && strings.HasSuffix(p, "/m") {
					t.Errorf("a delete was sent: %s", p)
				}
			}
			r.inConflict(late, "two")
		})
	}
}

// awaited waits until a module waits for an object which its owner is about to let go: it is not failed, whatever it says of
// the rest.
func (r *rig) awaited(s fleet.Sync, ordinal int, owner string) {
	r.t.Helper()
	x := r.wait(s.Module.Name, "waiting for "+owner, func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && len(x.Exceptions) == 1 && x.Exceptions[0].Ordinal == ordinal && x.Exceptions[0].Reason == "AwaitingOwner"
	})
	want := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthProgressing, Drift: fleet.DriftInSync}
	if x.Phase != fleet.PhaseApplying || x.Ready || x.States[ordinal] != want || !strings.Contains(x.Exceptions[0].Message, "m: waits for module "+owner) {
		r.t.Errorf("%+v", x)
	}
}

// ending has the hub say that the owners are about to let go all that the sync yields.
func ending(s fleet.Sync) fleet.Sync {
	s.Yields = slices.Clone(s.Yields)
	for i := range s.Yields {
		s.Yields[i].Ending = s.Yields[i].Ordinals
	}
	return s
}

// TestAwaitedObjectIsNoFailure: what its owner is about to let go is waited for. It is a conflict when the owner does not do it
// after all, and goes over when it does.
func TestAwaitedObjectIsNoFailure(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	uid := r.uid("m")
	two := ending(yielding(r.bundle("two", nil, configMap("b", "by: two"), configMap("m", "by: two")), "one", 2, 1))
	r.set([]fleet.Sync{one, two})
	r.awaited(two, 1, "one")
	r.eventually("b is there", func() bool { return r.get("v1", "configmaps", "b") != nil })
	two = yielding(r.renewed(two), "one", 2, 1)
	r.set([]fleet.Sync{one, two})
	r.inConflict(two, "one")
	two = ending(yielding(r.renewed(two), "one", 2, 1))
	r.set([]fleet.Sync{one, two})
	r.awaited(two, 1, "one")
	r.count.take()
	r.set([]fleet.Sync{r.bundle("one", nil, configMap("a", "by: one")), two})
	r.kept("m", uid, "two")
	r.ready(two)
}

// TestOwnerThatTakesItsTime: an object that the hub has given to this module, and that the other one cannot let go yet, is
// waited for, too, as long as it takes.
func TestOwnerThatTakesItsTime(t *testing.T) {
	for name, slow := range map[string]func(r *rig) ([]fleet.Sync, []fleet.Tombstone){
		"dropped": func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			s := r.bundle("one", nil, configMap("a", "by: one"))
			s.Hold = true
			return []fleet.Sync{s}, nil
		},
		"deleted": func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			dead := r.tombstone("one", fleet.DeleteDelete)
			dead.Hold = true
			return nil, []fleet.Tombstone{dead}
		},
		"yielded": func(r *rig) ([]fleet.Sync, []fleet.Tombstone) {
			s := yielding(r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one")), "two", 9, 1)
			s.Hold = true
			return []fleet.Sync{s}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
			r.set([]fleet.Sync{one})
			r.ready(one)
			uid := r.uid("m")
			syncs, dead := slow(r)
			two := r.bundle("two", nil, configMap("b", "by: two"), configMap("m", "by: two"))
			r.set(append(syncs, two), dead...)
			r.awaited(two, 1, "one")
			r.count.take()
			for i := range syncs {
				syncs[i] = r.renewed(syncs[i], syncs[i].Yields...)
				syncs[i].Hold = false
			}
			for i := range dead {
				r.gen++
				dead[i].Generation, dead[i].Hold = r.gen, false
			}
			r.set(append(syncs, two), dead...)
			r.eventually("m is of two", func() bool { return r.data("m", "by") == "two" })
			if now := r.uid("m"); now != uid {
				t.Error("m was deleted and created again")
			}
			r.ready(two)
		})
	}
}

// TestAwaitingIsNeverAVerdict: the deadline of the rollout ends a wait, not the number of looks.
func TestAwaitingIsNeverAVerdict(t *testing.T) {
	long := time.Now().Add(-time.Hour)
	it := &item{tries: 1000, fail: &apply.Failure{Reason: apply.ReasonAwaitingOwner, Transient: true, Since: long}}
	if !(&worker{}).passing(it, time.Now()) {
		t.Error("a module that waits for an object counts as failed after a while")
	}
}

// TestObjectIsGivenBack: what a module took over goes back, without a delete, if the hub says that it is another's.
func TestObjectIsGivenBack(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, configMap("m", "by: one"))
	two := yielding(r.bundle("two", nil, configMap("b", "by: two"), configMap("m", "by: two")), "one", 2, 1)
	r.set([]fleet.Sync{one, two})
	r.ready(one)
	uid := r.uid("m")
	r.count.take()
	// Before the hub could tell two that m is its own, one wants it again.
	r.set([]fleet.Sync{two}, r.tombstone("one", fleet.DeleteOrphan))
	r.kept("m", uid, "two")
	again := r.renewed(one)
	r.set([]fleet.Sync{again, two})
	r.kept("m", uid, "one")
	r.ready(again)
	r.inConflict(two, "one")
}

// TestUnreadableModuleHoldsDeletes: what a module lists that cannot be read is not known, so it may be just what another
// one drops.
func TestUnreadableModuleHoldsDeletes(t *testing.T) {
	r := newRig(t)
	one := r.bundle("one", nil, configMap("a", "by: one"), configMap("m", "by: one"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	uid := r.uid("m")
	two := r.bundle("two", nil, configMap("m", "by: two"))
	r.store.mu.Lock()
	bundle := r.store.bundles[two.Bundle]
	delete(r.store.bundles, two.Bundle)
	r.store.mu.Unlock()
	next := r.bundle("one", nil, configMap("a", "by: one"))
	r.set([]fleet.Sync{next, two})
	r.wait("one", "waiting", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Extras) == 1 && x.Extras[0].Reason == "AwaitingModules"
	})
	r.store.mu.Lock()
	r.store.bundles[two.Bundle] = bundle
	r.store.mu.Unlock()
	r.kept("m", uid, "two")
	r.ready(two)
	r.ready(next)
}

// TestConflictIsNotMissing: an object that is another module's, or somebody else's, is there.
func TestConflictIsNotMissing(t *testing.T) {
	r := newRig(t)
	r.foreign("theirs", "k", "theirs")
	one := r.bundle("one", nil, configMap("m", "by: one"))
	two := r.bundle("two", nil, configMap("m", "by: two"), configMap("theirs", "by: two"))
	r.set([]fleet.Sync{one})
	r.ready(one)
	r.set([]fleet.Sync{one, two})
	x := r.wait("two", "in conflict", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && len(x.Exceptions) == 2 })
	for i, s := range x.States {
		if want := (fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftConflict, Used: true}); s != want || x.Exceptions[i].Reason != "Conflict" {
			t.Errorf("%d: %+v, %+v", i, s, x.Exceptions[i])
		}
	}
	if !strings.Contains(x.Exceptions[0].Message, "belongs to module one") {
		t.Errorf("its owner is not said: %s", x.Exceptions[0].Message)
	}
}

// TestNamesWithPlaceholders: an object is the one that its cluster's values name, in requests, records, conflicts and
// deletions.
func TestNamesWithPlaceholders(t *testing.T) {
	r := newRig(t)
	plain := r.bundle("plain", nil, configMap("m-eu", "by: plain"))
	s := r.bundle("shop", nil, configMap(`"a-${REGION}"`, `by: "${REGION}"`), configMap(`"m-${REGION}"`, "by: shop"))
	s.Values = map[string]string{"REGION": "eu"}
	r.set([]fleet.Sync{plain})
	r.ready(plain)
	r.set([]fleet.Sync{plain, s})
	r.inConflict(s, "plain")
	if r.data("a-eu", "by") != "eu" || r.data("m-eu", "by") != "plain" {
		t.Errorf("a-eu %q, m-eu %q", r.data("a-eu", "by"), r.data("m-eu", "by"))
	}
	s = r.renewed(s)
	s.Values = map[string]string{"REGION": "us"}
	r.set([]fleet.Sync{plain, s})
	r.ready(s)
	r.eventually("what the old value named is gone", func() bool { return r.get("v1", "configmaps", "a-eu") == nil })
	if r.data("a-us", "by") != "us" || r.data("m-us", "by") != "shop" || r.data("m-eu", "by") != "plain" {
		t.Error("not as the values say")
	}
	r.set([]fleet.Sync{plain}, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a-us") != nil {
		t.Error("an object is left")
	}
}

// TestNamesakeIsNotTheObject: an owner that keeps a custom resource of the same name in another namespace lets this one go, and
// what it is to be kept for is this one, too.
func TestNamesakeIsNotTheObject(t *testing.T) {
	r := newRig(t)
	there := strings.ReplaceAll(gadget, "namespace: $NS", "namespace: default")
	t.Cleanup(func() {
		_ = r.res(r.ns+".example.com/v1", "gadgets", "default").Delete(context.Background(), "g", metav1.DeleteOptions{})
	})
	def := r.bundle("def", nil, crd)
	r.set([]fleet.Sync{def})
	r.ready(def)
	one := r.bundle("one", nil, gadget, there)
	r.set([]fleet.Sync{def, one})
	r.ready(one)
	next := r.bundle("one", nil, gadget)
	next.Heirs = []fleet.Heir{{Module: fleet.ModuleRef{Project: "default", Name: "two"},
		Keys: []uint64{assemble.HeirKey(fleet.ObjectID{Group: r.ns + ".example.com", Kind: "Gadget", Namespace: "default", Name: "g"})}}}
	r.set([]fleet.Sync{def, next})
	r.awaitsHeir("one", next.Generation, "g", "two")
	next = r.renewed(next)
	next.Hold = true
	two := r.bundle("two", nil, there)
	r.set([]fleet.Sync{def, next, two})
	x := r.wait("two", "told whose it is", func(x fleet.SyncStatus) bool {
		return x.Generation == two.Generation && (x.Phase == fleet.PhaseFailed || len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "AwaitingOwner")
	})
	if x.Phase == fleet.PhaseFailed {
		t.Errorf("what its owner does not list any more: %+v", x)
	}
	next = r.renewed(next)
	next.Hold = false
	r.set([]fleet.Sync{def, next, two})
	r.ready(two)
	r.ready(next)
}
