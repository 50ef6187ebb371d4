package control

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// slow is a server that takes a second, and is away when it was asked often enough.
type slow struct {
	*branch
	mu          sync.Mutex
	goes        int // how often it answers; 0: always
	asked       int
	now, atOnce int
}

func (s *slow) Fetch(ctx context.Context, project string, src *towlinev1.Source) (source.Artifact, error) {
	s.mu.Lock()
	s.asked++
	away := s.goes > 0 && s.asked > s.goes
	s.now++
	s.atOnce = max(s.atOnce, s.now)
	s.mu.Unlock()
	<-time.After(time.Second)
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
	if away {
		return source.Artifact{}, &source.AwayError{Host: "git.example.com", Err: fleet.Errorf(fleet.ErrUnavailable, "cannot be reached")}
	}
	return s.branch.Fetch(ctx, project, src)
}

// siblings puts modules that follow a repository of the server.
func (f *follower) siblings(n int, repo string) (refs []fleet.ModuleRef) {
	for i := range n {
		rec := f.module(1)
		name := fmt.Sprint(repo, i)
		rec.Module.Metadata.Name, rec.Module.Metadata.Uid = name, "u"+name
		rec.Module.Spec.Source.Git.Url = "https://git.example.com/" + repo + ".git"
		ref := fleet.ModuleRef{Project: shop.Project, Name: name}
		f.put(func(w store.Writer) { w.Put(store.ModuleKey(ref), rec) })
		refs = append(refs, ref)
	}
	return refs
}

// A server that goes away while the modules of a source are looked at together is not asked for each of them; those that are left out for that
// are looked at again soon, one after the other.
func TestServerThatGoesAwayWhileModulesAreLookedAtTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		refs := f.siblings(30, "shop")
		f.source.at("2", "two")
		s := &slow{branch: f.source, goes: 1}
		f.o.Source = s
		f.o.News = func(ctx context.Context, list []record.News) ([]int64, error) {
			s.mu.Lock()
			s.goes = 0 // it is back
			s.mu.Unlock()
			return f.newsOfAll(ctx, list)
		}
		f.call(shop, true)
		f.lives(calledAgain)
		if s.asked > 1+maxFromOrigin+1 || len(f.begun) != 1 { // the look, the others, and the cut
			t.Errorf("asked %d times, begun %v", s.asked, f.begun)
		}
		f.read(func(r store.Reader) {
			for _, ref := range refs {
				if rec, _, _ := store.Get[*storev1.FollowRecord](r, store.FollowKey(ref)); rec.GetReason() != follow.ReasonUnavailable {
					t.Errorf("%s: %v", ref.Name, rec)
				}
			}
		})
		f.lives(time.Minute)
		for _, ref := range refs {
			if rec, _ := f.Followed(ref); rec.GetReason() != "" || rec.GetResolvedRef() != "main@sha1:2" {
				t.Errorf("%s: %v", ref.Name, rec)
			}
		}
	})
}

// A server is asked for few modules at a time, also when those of several of its repositories are looked at; and the files are kept only of
// those that begin with them.
func TestModulesOfOneServerAreLookedAtFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFollower(t)
		const modules = 3 * maxPreparations
		a, b := f.siblings(modules, "a"), f.siblings(modules, "b")
		s := &slow{branch: f.source}
		f.o.Source = s
		var wg sync.WaitGroup
		for _, refs := range [][]fleet.ModuleRef{a, b} {
			wg.Go(func() {
				sight, err := f.sight(t.Context(), refs[0])
				if err != nil {
					t.Error(err)
					return
				}
				others, err := f.judgeOthers(t.Context(), &verdict{s: sight})
				kept := 0
				for _, o := range others {
					if o.artifact.Files != nil || o.variants != nil {
						kept++
					}
					if !o.begins || o.artifact.Digest.IsZero() {
						t.Errorf("%s does not begin", o.s.ref.Name)
					}
				}
				if err != nil || len(others) != modules-1 || kept != maxPreparations {
					t.Errorf("%d others, the files of %d kept: %v", len(others), kept, err)
				}
			})
		}
		wg.Wait()
		if s.atOnce > maxFromOrigin {
			t.Errorf("asked for %d at once", s.atOnce)
		}
	})
}
