package control

import (
	"testing"

	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A sweep that cannot read what is live deletes nothing, however often it comes.
func TestNothingIsCollectedWhileABundleIsUnreadable(t *testing.T) {
	l := newLeader(t)
	stray, err := l.o.Store.Blobs().Put(t.Context(), []byte("of a revision that the sweep did not come to"))
	l.must(err)
	broken := l.revision(1)
	broken.Bundle = fleet.DigestOf([]byte("lost")).Bytes()
	l.put(func(w store.Writer) { w.Put(store.RevisionKey(shop, 1), broken) })
	for range 3 {
		if err := l.collect(t.Context()); err == nil {
			t.Error("the sweep says nothing of the unreadable bundle")
		}
	}
	if _, err := l.o.Store.Blobs().Get(t.Context(), stray[0]); err != nil {
		t.Errorf("a blob was deleted by a sweep that did not see everything: %v", err)
	}
}

func TestTrimKeepsTheRolloutToGoBackTo(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Succeeded)))
		for n := int64(2); n < 30; n++ {
			w.Put(store.RolloutKey(shop, n), rolloutRecord(n, string(rollout.Failed)))
		}
	})
	l.must(l.trim(t.Context()))
	l.read(func(r store.Reader) {
		if n := rollouts.Standing(r, shop); n != 1 {
			t.Errorf("last succeeded is r%d, want r1", n)
		}
		if n := len(rollouts.List(r, shop)); n != keptRollouts+1 {
			t.Errorf("%d rollouts kept", n)
		}
	})
}
