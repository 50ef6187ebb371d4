package control

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
)

// A person pauses the running rollout while the source of the next one is being fetched, for which nobody asked: only a person ends a person's
// pause, so that it waits, and takes what is there when the pause is over. What somebody asked for takes its place.
func TestPauseWhileTheNextIsMade(t *testing.T) {
	pause := func(f *follower) {
		ro := rolloutRecord(1, string(rollout.Paused))
		ro.Rollout.Status.Reason = rollout.ReasonPausedByUser
		f.put(func(w store.Writer) { w.Put(store.RolloutKey(shop, 1), ro) })
	}
	for name, tc := range map[string]struct {
		unasked bool
		when    string
	}{
		"before it is fetched":        {true, "before"},
		"after it was fetched":        {true, "after"},
		"somebody asked, before":      {false, "before"},
		"somebody asked, after fetch": {false, "after"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFollower(t)
			f.source.at("2", "two")
			ro := rolloutRecord(2, string(rollout.Pending))
			ro.Rollout.Revision, ro.Unasked = 0, tc.unasked
			f.put(func(w store.Writer) { w.Put(store.StartKey(shop, 2), ro) })
			if tc.when == "before" {
				pause(f)
			}
			f.must(f.resolve(t.Context(), shop))
			if tc.when == "after" {
				pause(f)
			}
			f.must(f.cutResolved(t.Context(), shop, f.state(shop)))
			state := func(number int64) (s rollout.RunState) {
				f.read(func(r store.Reader) { s = rollouts.StateOf(rollouts.Get(r, shop, number)) })
				return s
			}
			if !tc.unasked {
				if state(1) != rollout.Superseded || f.revisions() != 2 {
					t.Errorf("the rollout is %s, and there are %d revisions", state(1), f.revisions())
				}
				return
			}
			if state(1) != rollout.Paused || state(2) != rollout.Pending || f.revisions() != 1 || f.state(shop).handedOver() != nil {
				t.Fatalf("the paused rollout is %s, the next %s, and there are %d revisions", state(1), state(2), f.revisions())
			}
			f.source.at("3", "three")
			f.end(1, rollout.Progressing)
			f.resolves()
			if state(1) != rollout.Superseded || f.newestRevision().GetRevision().GetResolvedRef() != "main@sha1:3" {
				t.Errorf("after the pause: the rollout is %s, and there is %v", state(1), f.newestRevision())
			}
		})
	}
}

// A look that meets the pause of a person only when it begins the rollout says so, as one does that knew of it.
func TestPauseInTheMomentOfTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.refuse = record.IsPaused(shop)
		f.source.at("2", "two")
		f.lives(6 * time.Minute)
		if rec, _ := f.stored(); rec.GetReason() != follow.ReasonPaused {
			t.Errorf("stored %v", rec)
		}
		if !errors.Is(f.refuse, fleet.ErrPrecondition) {
			t.Error("it is no refusal")
		}
	})
}

// A person asks for what waits only because a person's pause holds it: it begins.
func TestResyncOfWhatAPauseHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		paused, waiting := rolloutRecord(1, string(rollout.Paused)), rolloutRecord(2, string(rollout.Pending))
		paused.Rollout.Status.Reason = rollout.ReasonPausedByUser
		waiting.Rollout.Revision, waiting.Unasked = 0, true
		f.put(func(w store.Writer) {
			w.Put(store.RolloutKey(shop, 1), paused)
			w.Put(store.StartKey(shop, 2), waiting)
		})
		f.source.at("2", "two")
		came, err := f.resync()
		if err != nil || came.Number != 3 || !f.begun[0].Person || f.revisions() != 2 {
			t.Errorf("%+v, %v; begun %v", came, err, f.begun)
		}
	})
}

// While the next rollout waits for its turn, what it would bring back is rolled back or aborted: it does not come by itself.
func TestWhatWasStoppedMeanwhileIsNotBroughtBack(t *testing.T) {
	for _, state := range []rollout.RunState{rollout.RolledBack, rollout.RollingBack, rollout.Aborted} {
		t.Run(string(state), func(t *testing.T) {
			f := newFollower(t)
			ro := rolloutRecord(2, string(rollout.Pending))
			ro.Rollout.Revision, ro.Unasked, ro.Fetched = 0, true, fleet.DigestOf([]byte("what was there")).Bytes()
			ro.Rollout.Status.StartedBy = record.ByFollow
			f.put(func(w store.Writer) { w.Put(store.StartKey(shop, 2), ro) })
			f.end(1, state)
			f.resolves()
			f.read(func(r store.Reader) {
				if s := rollouts.StateOf(rollouts.Get(r, shop, 2)); s != rollout.Failed {
					t.Errorf("it is %s", s)
				}
				if s := rollouts.StateOf(rollouts.Get(r, shop, 1)); s != state {
					t.Errorf("what was stopped is %s", s)
				}
			})
		})
	}
}
