package control

import (
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// narrowed is a module that r1 has in all clusters, which have it, and r2 only in those that are named. Another module stays
// everywhere, so that nobody is asked for a confirm. The clusters are cordoned: the rollout of r2 has begun and moved nobody.
func (l *leader) narrowed(to []string, clusters ...string) {
	l.t.Helper()
	base := moduleRecord()
	base.Module.Metadata.Name, base.LastRollout = "base", 0
	narrow := moduleRecord()
	narrow.LastRollout, narrow.Module.Spec.Placement = 2, &towlinev1.Placement{Clusters: to}
	r2 := l.revision(2)
	r2.Revision.Spec = proto.CloneOf(narrow.Module.Spec)
	ro := rolloutRecord(2, string(rollout.Progressing))
	ro.Rollout.FromRevision = 1
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(fleet.ModuleRef{Project: "default", Name: "base"}), base)
		w.Put(store.ModuleKey(shop), narrow)
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		w.Put(store.RevisionKey(shop, 2), r2)
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Succeeded)))
		w.Put(store.RolloutKey(shop, 2), ro)
		w.Put(store.GenerationKey, &storev1.Counter{Value: 5})
		for _, c := range clusters {
			w.Put(store.ClusterKey(fleet.ClusterName(c)), cordoned(c, true))
			w.Put(store.DesiredKey(fleet.ClusterName(c), shop), &storev1.DesiredRecord{Sync: l.sync(5), Rollout: 1})
		}
	})
	l.must(l.reconcileModule(l.t.Context(), shop))
}

func cordoned(name string, yes bool) *storev1.ClusterRecord {
	c := clusterRecord(name)
	c.Cluster.Spec = &towlinev1.ClusterSpec{Cordoned: yes}
	return c
}

// again has the module look at clusters that were changed.
func (l *leader) again(change func(w store.Writer)) {
	l.t.Helper()
	l.put(change)
	l.state(shop).markAll()
	l.must(l.reconcileModule(l.t.Context(), shop))
}

// A rollback that has nothing to move back ends in the decision that begins it. A cluster that was to leave by the new placement
// stays by the older one.
func TestRollbackThatMovesNothingTakesNothingAway(t *testing.T) {
	l := newLeader(t)
	l.narrowed([]string{"a"}, "a", "c")
	l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbPause})
	l.again(func(w store.Writer) { w.Put(store.ClusterKey("c"), cordoned("c", false)) })
	l.verb(2, &towlinev1.VerbRecord{Verb: rollout.VerbRollback})
	if s := l.rollout(2).State; s.State != rollout.RolledBack || s.PlacedBy() != 1 {
		t.Fatalf("state: %+v", s.Head)
	}
	if d := l.desired("c"); d.GetTombstone() != nil || d.GetSync().GetGeneration() != 5 {
		t.Errorf("c: %v, want it as it was", d)
	}
}
