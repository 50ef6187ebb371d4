package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// However often it is asked what a queued put is going to list, a source that is away, or lacks its secret, is tried more and more rarely; a
// secret that is set is tried at once.
func TestQueuedSourceThatCannotBeHadIsTriedRarely(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		most int
	}{
		"its server is away":      {&source.AwayError{Host: "git.example.com", Err: context.DeadlineExceeded}, 12},
		"its branch is not there": {fleet.Errorf(fleet.ErrNotFound, "no such branch"), 3},
		"it lacks a secret":       {&source.SecretError{Secret: "git", Err: fleet.Errorf(fleet.ErrPrecondition, "there is none")}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFollower(t)
				runs, waits := rolloutRecord(1, string(rollout.Progressing)), rolloutRecord(2, string(rollout.Pending))
				runs.Rollout.Strategy = &towlinev1.RolloutStrategy{OnSupersede: rollout.SupersedeQueue}
				waits.Rollout.Revision = 0
				var rec *storev1.ModuleRecord
				f.put(func(w store.Writer) {
					w.Put(store.RolloutKey(shop, 1), runs)
					w.Put(store.StartKey(shop, 2), waits)
				})
				f.read(func(r store.Reader) {
					rec, _, _ = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(shop))
					if ro := rollouts.Unresolved(r, shop); ro == nil || !rollouts.Queued(r, shop, ro) {
						t.Fatal("nothing is queued")
					}
				})
				m, err := wire.ModuleFromProto(rec.GetModule())
				f.must(err)
				ctx, stop := context.WithCancel(t.Context())
				over := make(chan struct{})
				go func() { defer close(over); f.fetcher.loop(ctx) }()
				defer func() { stop(); <-over }()
				f.spawn = func(fn func(context.Context)) { go fn(ctx) }
				f.source.err, f.source.asked = tc.err, nil
				asks := func(d time.Duration) (known bool) {
					tick := time.NewTicker(againUnknown)
					defer tick.Stop()
					for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
						known = f.Draft(ctx, m, rec, 2).Known
						synctest.Wait()
					}
					return known
				}
				asks(time.Minute)
				if n := len(f.source.asked); n == 0 || n > tc.most {
					t.Errorf("tried %d times in a minute", n)
				}
				f.source.err = nil
				f.drafts.secretSet()
				if !asks(lastRetry + time.Second) {
					t.Error("it is back, and nobody knows what is queued")
				}
			})
		})
	}
}
