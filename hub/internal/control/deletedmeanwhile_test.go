package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A module is deleted, and perhaps another one has its name, between the look on which a decision rests and its commit, or while a
// large step is carried out: no cluster is given what the deleted one was.
func TestNothingIsGivenOfAModuleThatWasDeletedMeanwhile(t *testing.T) {
	deleted := func(m *storev1.ModuleRecord) { m.Deleting = fleet.DeleteDelete }
	another := func(m *storev1.ModuleRecord) { m.FirstRollout, m.FirstRevision = 2, 2 }
	decision := func(l *leader) error { return l.reconcileModule(t.Context(), shop) }
	step := func(l *leader) error {
		_, err := l.finishSteps(t.Context(), &rollouts.Run{Module: shop, Number: 1, Plan: &rollout.Plan{}})
		return err
	}
	for name, tc := range map[string]struct {
		happens func(*storev1.ModuleRecord)
		work    func(*leader) error
	}{
		"a decision, and it is deleted":            {deleted, decision},
		"a decision, and another one has its name": {another, decision},
		"a step, and it is deleted":                {deleted, step},
		"a step, and another one has its name":     {another, step},
	} {
		t.Run(name, func(t *testing.T) {
			b := &meanwhile{Backend: memory.New()}
			l := newLeaderOn(t, b)
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), moduleRecord())
				w.Put(store.RevisionKey(shop, 1), l.revision(1))
				w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Progressing)))
				w.Put(store.ClusterKey("a"), clusterRecord("a"))
			})
			if name[:6] == "a step" {
				l.put(func(w store.Writer) {
					w.Put(store.StepKey(shop, 1, 1), &storev1.StepRecord{Generation: 9, Revision: 1, Clusters: []string{"a"}})
				})
			}
			b.happens = func() {
				if _, err := l.all.Update(t.Context(), func(w store.Writer) error {
					m := moduleRecord()
					tc.happens(m)
					w.Put(store.ModuleKey(shop), m)
					return nil
				}); err != nil {
					t.Error(err)
				}
			}
			_ = tc.work(l)
			if d := l.desired("a"); d.GetSync() != nil {
				t.Errorf("a is given r%d of the deleted module", d.GetSync().GetRevision())
			}
		})
	}
}

// TestStepIsNoLastWordOfADeletedModule: a step that takes a module from clusters is carried out when somebody has deleted the module
// and had its objects stay.
func TestStepIsNoLastWordOfADeletedModule(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RevisionKey(shop, 1), nowhere(l.revision(1)))
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Progressing)))
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(5)})
	})
	b.happens = func() {
		l.writes(func(w store.Writer) {
			m := moduleRecord()
			m.Deleting = fleet.DeleteOrphan
			w.Put(store.ModuleKey(shop), m)
		})
	}
	_, _ = l.leave(t.Context(), shop, []fleet.ClusterName{"a"}, leaving{policy: fleet.DeleteDelete, generation: 9, rollout: 1})
	if d := l.desired("a"); d.GetTombstone() != nil {
		t.Errorf("the tombstone says %s", d.GetTombstone().GetPolicy())
	}
}

// nowhere is a revision that places the module nowhere.
func nowhere(rev *storev1.RevisionRecord) *storev1.RevisionRecord {
	rev.Revision.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "no"}}}
	return rev
}
