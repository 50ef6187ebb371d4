package control

import (
	"strings"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// A cluster or a module is forgotten, and in that moment something else of it is written: what stayed would be of the next one that has the
// name.
func TestNothingIsLeftOfWhatIsForgotten(t *testing.T) {
	removed := func(l *leader) {
		rec := clusterRecord("a")
		rec.Removing, rec.Revoked = fleet.LeaveKeep, true
		l.put(func(w store.Writer) {
			w.Put(store.ClusterKey("a"), rec)
			w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: tomb(3)})
		})
	}
	deleted := func(l *leader) {
		m := moduleRecord()
		m.Deleting = fleet.DeleteDelete
		l.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), m) })
	}
	for name, tc := range map[string]struct {
		is, happens func(*leader)
	}{
		"a removal of the cluster is carried out": {removed, func(l *leader) { l.must(l.forget(t.Context(), shop, []gone{{"a", 3}})) }},
		"a person holds the cluster":              {removed, func(l *leader) { l.holds(&towlinev1.Hold{Cluster: "a"}) }},
		"its agent says how it is": {removed, func(l *leader) {
			l.writes(func(w store.Writer) { w.Put(store.ConditionKey("a"), &storev1.ConditionsRecord{}) })
		}},
		"its agent reports": {removed, func(l *leader) {
			l.writes(func(w store.Writer) {
				w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Epoch: 1})
				w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: 1})
			})
		}},
		"a person holds the module": {deleted, func(l *leader) { l.holds(&towlinev1.Hold{Project: shop.Project, Module: shop.Name}) }},
	} {
		t.Run(name, func(t *testing.T) {
			b := &meanwhile{Backend: memory.New()}
			l := newLeaderOn(t, b)
			tc.is(l)
			b.happens = func() { tc.happens(l) }
			if _, there := l.module(); there {
				l.must(l.reconcileModule(t.Context(), shop))
				l.must(l.reconcileModule(t.Context(), shop))
			} else {
				l.must(l.reconcileCluster(t.Context(), "a"))
			}
			l.read(func(r store.Reader) {
				r.Scan("", func(e store.Entry) bool {
					if !strings.HasPrefix(e.Key, "meta/") && !strings.HasPrefix(e.Key, "leader") {
						t.Errorf("left: %s", e.Key)
					}
					return true
				})
			})
			if b.happens != nil {
				t.Error("nothing happened")
			}
		})
	}
}

func (l *leader) module() (m *storev1.ModuleRecord, there bool) {
	l.t.Helper()
	l.read(func(r store.Reader) { m, _, there = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(shop)) })
	return m, there
}
