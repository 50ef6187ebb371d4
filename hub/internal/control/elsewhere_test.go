package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// A module was deleted before another Kubernetes cluster took the name of one of its clusters. Whatever was still to come of it in the one before,
// nothing comes to this one.
func TestNothingOfADeletedModuleComesToAnotherCluster(t *testing.T) {
	for name, had := range map[string]func(l *leader, generation uint64) *storev1.DesiredRecord{
		"a revision that the one before could not have": func(l *leader, generation uint64) *storev1.DesiredRecord {
			return &storev1.DesiredRecord{Sync: l.sync(generation), Rollout: 2, Problem: "no", ProblemGeneration: generation, ProblemRevision: 2}
		},
		"put under the name of another one, and deleted, too": func(l *leader, generation uint64) *storev1.DesiredRecord {
			return &storev1.DesiredRecord{Tombstone: tomb(generation), Final: true, Rollout: 2, NextRevision: 2, NextGeneration: generation}
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			m := moduleRecord()
			l.put(func(w store.Writer) {
				w.Put(store.RevisionKey(shop, 1), l.revision(1))
				w.Put(store.RevisionKey(shop, 2), l.revision(2))
				w.Put(store.ClusterKey("a"), clusterRecord("a"))
				w.Put(store.DesiredKey("a", shop), had(l, record.NextGeneration(w)))
				record.Delete(w, shop, m, fleet.DeleteDelete)
				w.Put(store.ModuleKey(shop), m)
			})
			l.takes("a")
			l.must(l.reconcileDeleting(t.Context(), shop, m))
			if d := l.desired("a"); d != nil {
				t.Errorf("the new one has %v", d)
			}
			l.read(func(r store.Reader) {
				if _, there := r.Get(store.ModuleKey(shop)); there {
					t.Error("the module waits for it")
				}
			})
		})
	}
}

// The record of how often names were taken is damaged: what is deleted then goes from a cluster that took its name before, and what was deleted
// before does not go from one that takes its name then.
func TestDamageOfTheTakesTurnsNoDeletionRound(t *testing.T) {
	taken := func(l *leader) {
		l.takes("a")
		l.put(func(store.Writer) {}) // what is read after this has it
	}
	deleted := func(l *leader) {
		l.put(func(w store.Writer) {
			m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
			record.Delete(w, shop, m, fleet.DeleteDelete)
			w.Put(store.ModuleKey(shop), m)
		})
	}
	for name, tt := range map[string]struct {
		before, after func(*leader)
		goes          bool
	}{
		"deleted after": {taken, deleted, true},
		"taken after":   {deleted, taken, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New()
			l := newLeaderOn(t, b)
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), moduleRecord())
				w.Put(store.RevisionKey(shop, 1), l.revision(1))
				w.Put(store.ClusterKey("a"), clusterRecord("a"))
				w.Put(store.ClusterKey("b"), clusterRecord("b"))
				w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(record.NextGeneration(w))})
			})
			l.takes("b")
			tt.before(l)
			l.damage(b, store.TakenKey)
			tt.after(l)
			l.must(l.reconcileModule(t.Context(), shop))
			if d := l.desired("a"); tt.goes != (d.GetTombstone() != nil) || !tt.goes && d != nil {
				t.Errorf("it goes: %t; the cluster has %v", tt.goes, d)
			}
		})
	}
}
