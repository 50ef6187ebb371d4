package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
)

// The work on a deletion that began before another module took the name does nothing to that.
func TestDeletionEndsWhereAnotherModuleHasTheName(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		rec := moduleRecord()
		rec.FirstRollout, rec.FirstRevision = 2, 4
		w.Put(store.ModuleKey(shop), rec)
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(3)})
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, "Succeeded"))
		w.Put(store.RolloutKey(shop, 2), rolloutRecord(2, "Progressing"))
		w.Put(store.RevisionKey(shop, 3), l.revision(3))
		w.Put(store.RevisionKey(shop, 4), l.revision(4))
		w.Put(store.VerbKey(shop, 1, 1), &storev1.VerbRecord{})
		w.Put(store.StepKey(shop, 1, 1), &storev1.StepRecord{Revision: 3, Generation: 9, Clusters: []string{"a"}})
	})
	l.must(l.abortActive(t.Context(), shop))
	l.leaves("a", leaving{deleted: true})
	l.must(l.forgetModule(t.Context(), shop, ""))
	l.read(func(r store.Reader) {
		if all := rollouts.List(r, shop); len(all) != 1 || all[0].GetRollout().GetNumber() != 2 {
			t.Errorf("its rollouts are %v", all)
		}
		if rollouts.Standing(r, shop) != 0 || record.Revision(r, shop, 3) != nil || record.Revision(r, shop, 4) == nil || len(rollouts.Revisions(r, shop)) != 1 {
			t.Error("it takes over what the deleted module had done")
		}
	})
	if l.desired("a").GetSync() == nil {
		t.Error("it is taken from the cluster")
	}
	l.must(l.trim(t.Context()))
	l.read(func(r store.Reader) {
		for key, want := range map[string]bool{store.RolloutKey(shop, 1): false, store.RolloutKey(shop, 2): true, store.RevisionKey(shop, 3): false,
			store.RevisionKey(shop, 4): true, store.VerbKey(shop, 1, 1): false, store.StepKey(shop, 1, 1): false} {
			if _, there := r.Get(key); there != want {
				t.Errorf("%s is there: %t, want %t", key, there, want)
			}
		}
	})
}

// What waited for the end of a removal is made with a generation above all before it, so that the agent takes it.
func TestWhatWaitsForARemovalHasItsTurn(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.GenerationKey, &storev1.Counter{Value: 20})
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Rollout: 1, Tombstone: tomb(15), Final: true, NextRevision: 1, NextGeneration: 17})
	})
	l.read(func(r store.Reader) {
		got, _ := record.Track(r, "a", shop, true)
		if got.Tracker.Removing || got.Tracker.Removed || got.Tracker.Reason != "RemovingFirst" || got.Revision() != 1 || got.Generation() != 17 {
			t.Errorf("before its turn: %+v", got.Tracker)
		}
	})
	l.must(l.forget(t.Context(), shop, []gone{{"a", 14}}))
	if l.desired("a").GetTombstone() == nil {
		t.Fatal("another tombstone's end is taken for this one's")
	}
	l.must(l.forget(t.Context(), shop, []gone{{"a", 15}}))
	d := l.desired("a")
	if s := d.GetSync(); s.GetRevision() != 1 || s.GetGeneration() <= 20 || d.GetTombstone() != nil || d.GetFinal() || d.GetRollout() != 1 {
		t.Errorf("in its turn: %v", d)
	}
}
