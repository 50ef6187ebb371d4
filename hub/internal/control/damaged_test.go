package control

import (
	"errors"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// What a rollout decided is not known when its record cannot be read: nothing is moved, back to what an older one gave least
// of all. Deleting the module takes the record along.
func TestDamagedRolloutMovesNothing(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a", "b")
	l.put(func(w store.Writer) { w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Succeeded))) })
	before := l.desired("a")
	if before.GetSync().GetRevision() != 2 {
		t.Fatalf("assigned: %v", before)
	}
	l.damage(b, store.RolloutKey(shop, 2))
	l.state(shop).reset()
	if err := l.reconcileModule(t.Context(), shop); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("it does not say so: %v", err)
	}
	if now := l.desired("a"); now.GetSync().GetRevision() != 2 || now.GetSync().GetGeneration() != before.GetSync().GetGeneration() {
		t.Errorf("moved: %v", now)
	}
	// A newer one goes on from what is there.
	next := rolloutRecord(3, string(rollout.Progressing))
	next.Rollout.FromRevision = 2
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{LastRollout: 3, Module: moduleRecord().GetModule()})
		w.Put(store.RevisionKey(shop, 3), l.revision(3))
		w.Put(store.RolloutKey(shop, 3), next)
	})
	l.must(l.reconcileModule(t.Context(), shop))
	if now := l.desired("a"); now.GetSync().GetRevision() != 3 {
		t.Errorf("by the next: %v", now)
	}
	for _, c := range []fleet.ClusterName{"a", "b"} {
		l.put(func(w store.Writer) { w.Delete(store.DesiredKey(c, shop)) })
	}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{LastRollout: 3, Deleting: fleet.DeleteDelete, Module: moduleRecord().GetModule()})
	})
	l.must(l.reconcileModule(t.Context(), shop))
	l.read(func(r store.Reader) {
		if _, there := r.Get(store.ModuleKey(shop)); there || len(r.Damaged(store.RolloutPrefix)) > 0 {
			t.Errorf("left of the deleted module: %t, %v", there, r.Damaged(store.RolloutPrefix))
		}
	})
}

// A cluster whose record cannot be read stops no other, is given nothing and loses nothing; a module that is in it is not
// deleted before it is dealt with.
func TestDamagedClusterStopsNoOther(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a", "b")
	l.damage(b, store.ClusterKey("a"))
	l.put(func(w store.Writer) { w.Put(store.ClusterKey("c"), clusterRecord("c")) })
	for range 2 {
		l.state(shop).reset()
		l.must(l.reconcileModule(t.Context(), shop))
	}
	if c := l.desired("c"); c.GetSync().GetRevision() == 0 {
		t.Errorf("a cluster that came: %v", c)
	}
	if a := l.desired("a"); a.GetSync().GetRevision() != 2 {
		t.Errorf("what it has: %v", a)
	}

	l.put(func(w store.Writer) {
		for _, c := range []fleet.ClusterName{"b", "c"} {
			w.Delete(store.DesiredKey(c, shop))
		}
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{LastRollout: 2, Deleting: fleet.DeleteDelete, Module: moduleRecord().GetModule()})
	})
	module := func() (there bool) {
		l.must(l.reconcileModule(t.Context(), shop))
		l.read(func(r store.Reader) { _, there = r.Get(store.ModuleKey(shop)) })
		return there
	}
	if !module() {
		t.Error("deleted, with its objects in a cluster that was not told")
	}
	// What `towline cluster remove` puts in its place.
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Removing: "keep", Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "a"}}})
	})
	l.must(l.reconcileCluster(t.Context(), "a"))
	if d := l.desired("a"); d != nil || module() {
		t.Errorf("the cluster is forgotten, and the module is there: %v", d)
	}
}
