package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// However often it is asked what a queued put is going to list, a source that is away, is not there, or lacks its secret, is tried more and more
// rarely, and at last each five minutes: each time all of it may be fetched. Who tells of something new has it tried at once, and begin anew.
func TestQueuedSourceThatCannotBeHadIsTriedRarely(t *testing.T) {
	for name, tc := range map[string]struct {
		err        error
		most, hour int
	}{
		"its server is away":      {&source.AwayError{Host: "git.example.com", Err: context.DeadlineExceeded}, 12, 26},
		"its branch is not there": {fleet.Errorf(fleet.ErrNotFound, "no such branch"), 3, 17},
		"it lacks a secret":       {&source.SecretError{Secret: "git", Err: fleet.Errorf(fleet.ErrPrecondition, "there is none")}, 3, 17},
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
				if n := f.source.fetches(); n == 0 || n > tc.most {
					t.Errorf("tried %d times in a minute", n)
				}
				asks(59 * time.Minute)
				if n := f.source.fetches(); n < 12 || n > tc.hour {
					t.Errorf("tried %d times in an hour", n)
				}
				n := f.source.fetches()
				f.draftAgain(&sight{ref: shop, rec: rec, m: m, number: 2}, true)
				synctest.Wait()
				if asks(lastRetry + time.Second); f.source.fetches() < n+2 {
					t.Errorf("somebody has told of something new: tried %d times in half a minute", f.source.fetches()-n)
				}
				f.source.fails(nil)
				if !asks(lastDraftRetry + time.Second) {
					t.Error("it is back, and nobody knows what is queued")
				}
				f.source.fails(tc.err)
				still := proto.CloneOf(rec) // as one that follows nothing, so that its queued put is all that is looked at
				still.Module.Spec.Source.Follow = nil
				soon := func() (coming bool) {
					f.read(func(r store.Reader) { f.lookSoon(r, shop, still) })
					synctest.Wait()
					_, coming = f.drafts.wants(draftOf(m, rec, 2))
					return coming
				}
				if !soon() {
					t.Error("it is fetched though it cannot be had")
				}
				f.source.fails(nil)
				<-time.After(lastRetry)
				if soon() {
					t.Error("what was known before is not fetched once more")
				}
			})
		})
	}
}

// A secret that is set has a source be tried at once that lacked it.
func TestSecretHasAQueuedSourceBeTried(t *testing.T) {
	var x drafts
	key, now := draftKey{rollout: 2}, time.Now()
	for range 20 {
		x.lacks(key, now, lastRetry)
	}
	if x.mayAsk(key, now.Add(lastDraftRetry-time.Second)) || !x.mayAsk(key, now.Add(lastDraftRetry)) {
		t.Errorf("it is not tried again after %s", lastDraftRetry)
	}
	if x.secretSet(); !x.mayAsk(key, now) {
		t.Error("the secret is set, and it is not tried")
	}
	if x.lacks(key, now, lastRetry); !x.mayAsk(key, now.Add(lastRetry)) {
		t.Error("it does not begin anew")
	}
}

// TestDraftIsOfOneModule: two modules of one spec with the source in it may list different objects, for charts render by the module's name.
func TestDraftIsOfOneModule(t *testing.T) {
	var keys []draftKey
	for _, name := range []string{"cache-a", "cache-b"} {
		rec := &storev1.ModuleRecord{SpecDigest: fleet.DigestOf([]byte("one")).Bytes(), Module: &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module",
			Metadata: &towlinev1.Metadata{Name: name, Project: fleet.DefaultProject, Uid: "uid of " + name}, Spec: &towlinev1.ModuleSpec{Namespace: "default", Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}},
				Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}}}}}
		m, err := wire.ModuleFromProto(rec.GetModule())
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, draftOf(m, rec, 2))
	}
	if keys[0] == keys[1] || keys[0].rollout != 0 {
		t.Errorf("%+v", keys)
	}
}
