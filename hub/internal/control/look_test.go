package control

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// follower is a leader whose module follows a branch. What it begins is cut at once.
type follower struct {
	*leader
	source *branch
	begun  []record.News
	refuse error
	aborts bool // what it begins is aborted before it is cut
}

func newFollower(t *testing.T) *follower {
	f := &follower{leader: newLeader(t), source: &branch{}}
	f.o.Source = f.source
	f.o.News = f.news
	f.source.at("1", "one")
	rec := f.module(1)
	f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
	f.begins(rec, 1, 0)
	return f
}

func (f *follower) module(generation int64) *storev1.ModuleRecord {
	rec := moduleRecord()
	rec.Module.Metadata.Uid, rec.Module.Metadata.Generation = "u1", generation
	rec.Module.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git"}, Follow: &towlinev1.Follow{}}
	digest, err := wire.SpecDigest(rec.Module.Spec)
	f.must(err)
	rec.SpecDigest = digest.Bytes()
	return rec
}

func (f *follower) news(_ context.Context, list []record.News) ([]int64, error) {
	if f.refuse != nil {
		return nil, &record.StartError{Module: list[0].Module, Err: f.refuse}
	}
	n := list[0]
	f.begun = append(f.begun, n)
	if f.aborts {
		f.abortedOf(n.Rollout+1, n.Fetched.Bytes())
		return []int64{n.Rollout + 1}, nil
	}
	var rec *storev1.ModuleRecord
	f.read(func(r store.Reader) { rec, _, _ = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(shop)) })
	f.begins(rec, n.Rollout+1, n.Rollout)
	return []int64{n.Rollout + 1}, nil
}

// begins has a rollout wait for its source, and resolves that.
func (f *follower) begins(rec *storev1.ModuleRecord, number, _ int64) {
	f.t.Helper()
	ro := rolloutRecord(number, string(rollout.Pending))
	ro.Rollout.Revision, ro.Rollout.ModuleGeneration = 0, rec.GetModule().GetMetadata().GetGeneration()
	ro.Rollout.Metadata = &towlinev1.Metadata{CreationTimestamp: timestamppb.Now()}
	f.put(func(w store.Writer) { w.Put(store.StartKey(shop, number), ro) })
	f.resolves()
}

// end puts a rollout into a state.
func (f *follower) end(number int64, state rollout.RunState) {
	f.t.Helper()
	f.put(func(w store.Writer) {
		ro, _, _ := store.Get[*storev1.RolloutRecord](w, store.RolloutKey(shop, number))
		ro.Rollout.Status.State = string(state)
		w.Put(store.RolloutKey(shop, number), ro)
	})
}

// aborted is a rollout that a person ended before it had a revision.
func (f *follower) aborted(number int64) { f.abortedOf(number, nil) }

// abortedOf is one that a look began, of what it fetched.
func (f *follower) abortedOf(number int64, fetched []byte) {
	f.t.Helper()
	ro := rolloutRecord(number, string(rollout.Aborted))
	ro.Rollout.Revision, ro.Fetched = 0, fetched
	ro.Rollout.Metadata = &towlinev1.Metadata{CreationTimestamp: timestamppb.Now()}
	f.put(func(w store.Writer) { w.Put(store.RolloutKey(shop, number), ro) })
}

// looks runs the looks at sources as the controller does until the duration is over.
func (f *follower) lives(d time.Duration) {
	f.t.Helper()
	ctx, stop := context.WithTimeout(f.t.Context(), d)
	defer stop()
	var rec *storev1.ModuleRecord
	f.read(func(r store.Reader) { rec, _, _ = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(shop)) })
	f.must(f.queueLook(f.t.Context(), shop, rec))
	f.looker.loop(ctx)
}

// restarts begins to lead anew, with nothing but what is stored.
func (f *follower) restarts() {
	f.looks.end()
	f.looks.begin(time.Now())
	f.looker = newRunner(1, f.runLook)
}

func (f *follower) stored() (rec *storev1.FollowRecord, mod int64) {
	f.read(func(r store.Reader) {
		var e store.Entry
		rec, e, _ = store.Get[*storev1.FollowRecord](r, store.FollowKey(shop))
		mod = e.ModRevision
	})
	return rec, mod
}

func (f *follower) revisions() (n int) {
	f.read(func(r store.Reader) { n = len(rollouts.Revisions(r, shop)) })
	return n
}

// resync asks as a person does.
func (f *follower) resync() (record.Resynced, error) {
	f.t.Helper()
	ctx, stop := context.WithCancel(f.t.Context())
	over := make(chan struct{})
	go func() { defer close(over); f.looker.loop(ctx) }()
	defer func() { stop(); <-over }()
	return f.Resync(f.t.Context(), shop, record.Ask{By: "ana", Reason: "now"}, nil)
}

// A branch that moves begins a rollout at the next look, which says the commit; one that does not costs nothing but the look.
func TestFollowBeginsWhatHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		put := len(f.source.asked)
		f.lives(26 * time.Minute)
		if n := len(f.source.asked) - put; n < 4 || n > 5 || len(f.begun) != 0 || f.revisions() != 1 {
			t.Fatalf("nothing moved: %d looks in 26 minutes, begun %v, %d revisions", n, f.begun, f.revisions())
		}
		_, first := f.stored()
		f.lives(10 * time.Minute)
		if _, again := f.stored(); again != first {
			t.Error("a look that found nothing new was stored")
		}
		f.lives(2 * time.Hour)
		if rec, again := f.stored(); again == first || time.Since(rec.GetLooked().AsTime()) > 70*time.Minute {
			t.Errorf("the last look that is stored is %s old", time.Since(rec.GetLooked().AsTime()))
		}
		f.source.at("2", "two")
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 || f.begun[0].Ref != "main@sha1:2" || f.begun[0].Ask.By != record.ByFollow || f.revisions() != 2 {
			t.Fatalf("moved: begun %v, %d revisions", f.begun, f.revisions())
		}
		f.source.at("3", "two") // a commit that changes nothing of it
		f.lives(6 * time.Minute)
		if rec, _ := f.stored(); len(f.begun) != 1 || rec.GetResolvedRef() != "main@sha1:3" {
			t.Errorf("the same content: begun %v, stored %v", f.begun, rec)
		}
		f.source.files["README.md"] = "beside what is rendered"
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 || f.revisions() != 2 {
			t.Errorf("the same objects: begun %v", f.begun)
		}
	})
}

// What was rolled back does not come again by itself, but by a person, or when the source has something else.
func TestFollowKeepsWhatWasRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.source.at("2", "broken")
		f.lives(6 * time.Minute)
		f.end(2, rollout.RolledBack)
		f.lives(time.Hour)
		f.restarts()
		f.lives(time.Hour)
		if len(f.begun) != 1 {
			t.Fatalf("it came again by itself: %v", f.begun)
		}
		came, err := f.resync()
		if err != nil || came.Number != 3 || f.begun[1].Ask.By != "ana" {
			t.Fatalf("a person asks: %+v, %v; begun %v", came, err, f.begun)
		}
		f.end(3, rollout.RolledBack)
		f.source.at("4", "mended")
		f.lives(6 * time.Minute)
		if len(f.begun) != 3 || f.begun[2].Ref != "main@sha1:4" {
			t.Fatalf("mended: %v", f.begun)
		}
		f.end(4, rollout.Succeeded)
		if came, err := f.resync(); err != nil || came.Number != 0 || came.Ref != "main@sha1:4" {
			t.Errorf("nothing has changed: %+v, %v", came, err)
		}
	})
}

// folders is an engine whose kustomizations are one file, and one for each component.
type folders struct{}

func (folders) Build(_ context.Context, job render.Job) (render.Built, error) {
	out := map[string][]byte{"a.yaml": job.Files["a.yaml"]}
	for _, name := range job.Kustomize.Components {
		out[name] = job.Files[name+"/c.yaml"]
	}
	return render.Built{Texts: out}, nil
}

// What only clusters are to have that are not there yet is looked at as well: who joins gets what the source has, not what it had when the
// others were given theirs.
func TestFollowSeesWhatNoClusterHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.o.Engine, f.variants = folders{}, newRunner(1, f.runVariants)
		f.end(1, rollout.Succeeded)
		component := func(text string) {
			f.source.files["us/c.yaml"] = "{apiVersion: v1, kind: ConfigMap, metadata: {name: us, namespace: default}, data: {text: " + text + "}}"
		}
		component("one")
		rec := f.module(2)
		rec.Module.Spec.Package = &towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{}}
		rec.Module.Spec.Overrides = []*towlinev1.Override{{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"region": "us"}}, AllowEmpty: true,
			Kustomize: &towlinev1.KustomizeOverride{Components: []string{"us"}}}}
		digest, err := wire.SpecDigest(rec.Module.Spec)
		f.must(err)
		rec.SpecDigest = digest.Bytes()
		f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
		f.begins(rec, 2, 1)
		f.end(2, rollout.Succeeded)
		f.source.files["README.md"] = "beside what is rendered"
		f.lives(6 * time.Minute)
		if len(f.begun) != 0 || f.revisions() != 2 {
			t.Fatalf("nothing changed: begun %v, %d revisions", f.begun, f.revisions())
		}
		component("two")
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 || f.revisions() != 3 {
			t.Fatalf("begun %v, %d revisions", f.begun, f.revisions())
		}
		f.must(f.addVariants(t.Context(), shop, 3, []fleet.Variant{{Overrides: []int32{0}}}))
		objects, err := f.o.Bundles.Get(t.Context(), record.Digest(f.newestRevision().GetVariants()[1].GetBundle()))
		f.must(err)
		content, err := f.o.Bundles.Content(t.Context(), objects.Entries[0].Digest)
		if err != nil || !strings.Contains(string(content), "two") {
			t.Errorf("who joins is given %s, %v", content, err)
		}
		f.end(3, rollout.Succeeded)
		f.lives(time.Hour)
		if len(f.begun) != 1 {
			t.Errorf("begun %v", f.begun)
		}
	})
}

// A rollout that a person aborted before it had a revision does not come again by itself, whether a put began it or the source, nor after a
// start of the hub, but by a person, or when the source has something else.
func TestFollowKeepsWhatWasAborted(t *testing.T) {
	for name, begins := range map[string]func(f *follower){
		"of a put": func(f *follower) {
			rec := f.module(2)
			rec.Module.Spec.Namespace = "other"
			f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
		},
		"of a push": func(f *follower) {
			f.source.at("2", "broken")
			f.aborts = true
			f.lives(6 * time.Minute)
			f.aborts = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFollower(t)
				f.end(1, rollout.Succeeded)
				begins(f)
				f.aborted(2)
				f.begun = nil
				f.lives(time.Hour)
				f.restarts()
				f.lives(time.Hour)
				if len(f.begun) != 0 {
					t.Fatalf("it came again by itself: %v", f.begun)
				}
				f.refuse = fleet.Errorf(fleet.ErrPrecondition, "not now")
				f.source.at("3", "mended")
				f.lives(6 * time.Minute)
				f.refuse = nil
				f.lives(6 * time.Minute)
				if len(f.begun) != 1 || f.begun[0].Ref != "main@sha1:3" {
					t.Fatalf("mended: %v", f.begun)
				}
				f.aborted(4)
				if came, err := f.resync(); err != nil || came.Number != 5 {
					t.Errorf("a person asks: %+v, %v", came, err)
				}
			})
		})
	}
}

// The hub ends between the start of a rollout by a look and the note of what was seen there; the rollout waits, for the one before it or for
// its source, and a person aborts it: it does not come again by itself.
func TestFollowKeepsWhatWasAbortedWhenTheHubWasKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.lives(6 * time.Minute) // a look that finds nothing new
		f.source.at("2", "broken")
		f.aborts = true
		ctx, kill := context.WithTimeout(t.Context(), 12*time.Minute)
		defer kill()
		f.o.News = func(c context.Context, n []record.News) ([]int64, error) {
			number, err := f.news(c, n)
			kill()
			return number, err
		}
		f.looker.loop(ctx)
		if len(f.begun) != 1 {
			t.Fatalf("the push began %v", f.begun)
		}
		f.aborts, f.begun, f.o.News = false, nil, f.news
		f.restarts()
		f.lives(time.Hour)
		if len(f.begun) != 0 {
			t.Errorf("what a person aborted came again by itself: %v", f.begun)
		}
	})
}

// A source that is away changes nothing, is looked at more rarely, and says since when; a start of the hub forgets none of that.
func TestFollowOfASourceThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.source.err = fleet.Errorf(fleet.ErrUnavailable, "source https://git.example.com/shop.git: cannot be reached: refused")
		f.lives(6 * time.Minute)
		rec, _ := f.stored()
		since := rec.GetSince().AsTime()
		if rec.GetReason() != follow.ReasonUnavailable || since.IsZero() || !strings.Contains(rec.GetMessage(), "cannot be reached") {
			t.Fatalf("stored %v", rec)
		}
		f.restarts()
		looks := len(f.source.asked)
		f.lives(2 * time.Hour)
		if n := len(f.source.asked) - looks; n < 7 || n > 11 {
			t.Errorf("%d looks in two hours", n)
		}
		if rec, _ := f.stored(); !rec.GetSince().AsTime().Equal(since) || len(f.begun) != 0 || f.revisions() != 1 {
			t.Errorf("away since %s, was %s; begun %v", rec.GetSince().AsTime(), since, f.begun)
		}
		f.source.at("2", "two")
		f.lives(17 * time.Minute)
		if rec, _ := f.stored(); len(f.begun) != 1 || rec.GetReason() != "" || rec.GetSince() != nil {
			t.Errorf("back: begun %v, stored %v", f.begun, rec)
		}
		f.source.files["a.yaml"] = "{"
		if came, err := f.resync(); err == nil || came.Number != 0 || f.revisions() != 2 {
			t.Errorf("what cannot be rendered: %+v, %v", came, err)
		}
		if rec, _ := f.stored(); rec.GetReason() != follow.ReasonInvalid {
			t.Errorf("what cannot be rendered: %v", rec)
		}
	})
}

// A put whose source was away gets its revision when the source is back; one that waits for its source is left alone.
func TestFollowOfAPutWithoutARevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.source.err = fleet.Errorf(fleet.ErrUnavailable, "away")
		rec := f.module(2)
		rec.Module.Spec.Namespace = "other"
		f.put(func(w store.Writer) { w.Put(store.ModuleKey(shop), rec) })
		f.begins(rec, 2, 1)
		f.read(func(r store.Reader) {
			if s := rollouts.StateOf(rollouts.Last(r, shop)); s != rollout.Failed {
				t.Fatalf("the rollout is %s", s)
			}
		})
		f.source.at("1", "one")
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 || f.revisions() != 2 {
			t.Fatalf("begun %v, %d revisions", f.begun, f.revisions())
		}
		waits := rolloutRecord(4, string(rollout.Pending))
		waits.Rollout.Revision = 0
		f.put(func(w store.Writer) { w.Put(store.StartKey(shop, 4), waits) })
		f.source.at("5", "five")
		f.lives(20 * time.Minute)
		if len(f.begun) != 1 {
			t.Errorf("begun beside one that waits: %v", f.begun)
		}
		if came, err := f.resync(); err != nil || !came.Waits || came.Number != 4 {
			t.Errorf("asked beside one that waits: %+v, %v", came, err)
		}
	})
}

// What may not begin is tried again at the next look, and says so; whoever waits is told; nobody waits for a hub that leads no more.
func TestFollowThatMayNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.refuse = fleet.Errorf(fleet.ErrPrecondition, "rollout shop/1 is Progressing and onSupersede is Reject")
		f.source.at("2", "two")
		f.lives(6 * time.Minute)
		if rec, _ := f.stored(); rec.GetReason() != follow.ReasonRefused {
			t.Errorf("stored %v", rec)
		}
		if _, err := f.resync(); !errors.Is(err, fleet.ErrPrecondition) {
			t.Errorf("asked: %v", err)
		}
		f.refuse = nil
		f.lives(6 * time.Minute)
		if len(f.begun) != 1 {
			t.Errorf("begun %v", f.begun)
		}
		answers := make(chan error)
		go func() {
			_, err := f.Resync(t.Context(), shop, record.Ask{}, nil)
			answers <- err
		}()
		synctest.Wait()
		f.looks.end()
		if err := <-answers; !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("who waited got %v", err)
		}
		if _, err := f.Resync(t.Context(), shop, record.Ask{}, nil); !errors.Is(err, fleet.ErrUnavailable) {
			t.Errorf("nobody leads: %v", err)
		}
	})
}

// Overdue looks of many modules do not all come at the start.
func TestNoHerdOfLooksAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.refuse = fleet.Errorf(fleet.ErrPrecondition, "not now")
		for i := range 100 {
			rec := f.module(1)
			name := fmt.Sprint("m", i)
			rec.Module.Metadata.Name, rec.Module.Metadata.Uid = name, "u"+name
			rec.Module.Spec.Source.Git.Url = "https://git.example.com/" + name + ".git"
			ref := fleet.ModuleRef{Project: shop.Project, Name: name}
			f.put(func(w store.Writer) { w.Put(store.ModuleKey(ref), rec) })
		}
		f.restarts()
		f.source.asked = nil
		f.read(func(r store.Reader) {
			store.Scan(r, store.ModulePrefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
				ref, _ := store.SplitModule(e.Key)
				f.must(f.queueLook(t.Context(), ref, rec))
				return true
			})
		})
		began := time.Now()
		f.lives(5 * time.Minute)
		early := 0
		for _, at := range f.source.asked {
			if at.Sub(began) < 30*time.Second {
				early++
			}
		}
		if len(f.source.asked) < 90 || early > 25 {
			t.Errorf("%d looks, %d of them in the first half minute", len(f.source.asked), early)
		}
	})
}

// Modules of one source that may not begin are looked at each for itself, and not all again for each of them.
func TestModulesOfOneSourceThatMayNotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		const modules = 30
		for i := range modules - 1 {
			rec := f.module(1)
			name := fmt.Sprint("m", i)
			rec.Module.Metadata.Name, rec.Module.Metadata.Uid = name, "u"+name
			ref := fleet.ModuleRef{Project: shop.Project, Name: name}
			f.put(func(w store.Writer) { w.Put(store.ModuleKey(ref), rec) })
		}
		f.refuse = fleet.Errorf(fleet.ErrPrecondition, "not now")
		f.restarts()
		f.source.asked = nil
		f.read(func(r store.Reader) {
			store.Scan(r, store.ModulePrefix, func(rec *storev1.ModuleRecord, e store.Entry) bool {
				ref, _ := store.SplitModule(e.Key)
				f.must(f.queueLook(t.Context(), ref, rec))
				return true
			})
		})
		f.lives(5 * time.Minute)
		if n := len(f.source.asked); n < modules || n > 3*modules {
			t.Errorf("the source of %d modules was asked %d times", modules, n)
		}
	})
}

// Many calls make one look, a moment later; one that comes while the module waits for its source is followed when that is over; and a
// call lifts no rollback.
func TestCallsAskForALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		f.end(1, rollout.Succeeded)
		f.lives(time.Minute)
		looks := len(f.source.asked)
		f.source.at("2", "two")
		for range 20 {
			f.Called(shop)
		}
		f.lives(5 * time.Second)
		if len(f.begun) != 1 || f.begun[0].Ask.By != record.ByWebhook || len(f.source.asked) != looks+2 { // the look, and the cut
			t.Fatalf("begun %v, %d looks", f.begun, len(f.source.asked)-looks)
		}
		f.end(2, rollout.RolledBack)
		f.Called(shop)
		f.lives(time.Minute)
		if len(f.begun) != 1 {
			t.Fatalf("a call lifted a rollback: %v", f.begun)
		}
		waits := rolloutRecord(3, string(rollout.Pending))
		waits.Rollout.Revision, waits.Rollout.ModuleGeneration = 0, 1
		f.put(func(w store.Writer) { w.Put(store.StartKey(shop, 3), waits) })
		f.Called(shop)
		f.lives(15 * time.Second)
		f.resolves()
		f.source.at("3", "three") // after it was fetched
		f.lives(20 * time.Second)
		if len(f.begun) != 2 || f.begun[1].Ref != "main@sha1:3" {
			t.Fatalf("the call is forgotten: %v", f.begun)
		}
	})
}
