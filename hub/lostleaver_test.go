package hub_test

import (
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/rollout"
)

// damage changes a bit of a record while the hub is down.
func (w *world) damage(key string) {
	w.t.Helper()
	w.stopHub()
	found, _, err := w.mortal.store.Get(w.ctx, 0, recordsOf+key)
	must(w.t, err)
	kv := found[recordsOf+key]
	value := slices.Clone(kv.Value)
	value[4] ^= 1 // of the checksum
	_, _, err = w.mortal.store.Commit(w.ctx, []backend.Part{{Then: []backend.Op{{Key: kv.Key, Value: value}}}})
	must(w.t, err)
	w.start()
	w.mortal.lives()
}

// A put takes a module from a cluster of which nobody knows any more what it is to have of it: it leaves there as elsewhere, and a
// person is asked where it would be.
func TestModuleLeavesWhereItsAssignmentIsLost(t *testing.T) {
	w := newMortalWorld(t)
	for _, name := range []string{"a", "b", "c"} {
		w.join(name, nil, nil)
	}
	w.await("base", w.put(listing("base", "b")).GetRevision())
	w.await("shop", w.put(listing("shop", "a")).GetRevision())
	w.damage("desired/a/default/shop")
	w.eventually(func() bool { return w.cluster("a").GetStatus().GetState() == "Ready" })
	narrow := listing("shop", "a")
	narrow.Spec.Placement = &towlinev1.Placement{Clusters: []string{"b", "c"}}
	ro := w.await("shop", w.put(narrow).GetRevision())
	left := slices.ContainsFunc(ro.GetStatus().GetClusters(), func(x *towlinev1.ClusterProgress) bool { return x.GetCluster() == "a" && x.GetState() == "Removed" })
	if ro.GetStatus().GetState() != "Succeeded" || !left {
		t.Errorf("the rollout is %s: %v", ro.GetStatus().GetState(), ro.GetStatus().GetClusters())
	}
	w.eventually(func() bool { // the record goes after what the agent says of the removal is on record
		return !slices.ContainsFunc(w.trackers(nil), func(x *towlinev1.Tracker) bool { return x.GetModule() == "shop" && x.GetCluster() == "a" })
	})
}

// A module waits for another one in a set of clusters of which one cannot be read: nobody knows whether it is in the set, so that nothing begins by what
// the others say.
func TestSetOfWhichAClusterCannotBeReadIsAwaited(t *testing.T) {
	w := newMortalWorld(t)
	for name, role := range map[string]string{"a": "control", "b": "control", "c": "work"} {
		w.join(name, nil, map[string]string{"role": role})
	}
	w.await("crds", w.put(crdsModule("b")).GetRevision())
	w.damage("clusters/b")
	w.eventually(func() bool {
		return w.cluster("c").GetStatus().GetState() == "Ready" && w.cluster("a").GetStatus().GetState() == "Ready"
	})
	ro := w.until("shop", w.put(shopAfter("a", "control")).GetRevision(), func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetReason() == rollout.ReasonAwaitingDependency || r.GetStatus().GetState() == "Succeeded"
	})
	if s := ro.GetStatus(); s.GetState() == "Succeeded" || s.GetFacts().GetCode() != "" || !slices.Equal(s.GetFacts().GetClusters(), []string{"b"}) {
		t.Errorf("it is %s: %v", s.GetState(), s.GetFacts())
	}
	if out, err := w.cli()("", "explain", "rollout/shop"); err != nil || !strings.Contains(out, "the hub's record of cluster b is damaged") {
		t.Errorf("%v\n%s", err, out)
	}
}
