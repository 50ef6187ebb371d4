package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/rollout"
)

// A person aborts a rollout that waits for its revision just before that is cut: there is none, and the rollout that runs goes on.
func TestAbortInTheMomentOfTheCut(t *testing.T) {
	f := newFollower(t)
	f.source.at("2", "two")
	ro := rolloutRecord(2, string(rollout.Pending))
	ro.Rollout.Revision = 0
	f.put(func(w store.Writer) {
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Progressing)))
		w.Put(store.StartKey(shop, 2), ro)
	})
	f.must(f.resolve(t.Context(), shop))
	f.put(func(w store.Writer) {
		w.Put(store.VerbKey(shop, 2, 1), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbAbort, By: "ana"}})
	})
	f.must(f.cut(t.Context(), shop, f.state(shop).handedOver()))
	stands := func(number int64, want rollout.RunState) {
		t.Helper()
		f.read(func(r store.Reader) {
			if s := rollouts.StateOf(rollouts.Get(r, shop, number)); s != want {
				t.Errorf("rollout %d is %s, want %s", number, s, want)
			}
		})
	}
	stands(1, rollout.Progressing)
	stands(2, rollout.Pending)
	if n := f.revisions(); n != 1 {
		t.Errorf("there are %d revisions", n)
	}
	f.must(f.cutResolved(t.Context(), shop, f.state(shop)))
	stands(1, rollout.Progressing)
	stands(2, rollout.Aborted)
}
