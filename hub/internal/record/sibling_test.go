package record

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
)

// What a push moves from one module to another is not let go before the other has looked at that push, whatever brought it to the first; and
// no longer than until it has looked.
func TestBehindUntilItHasLooked(t *testing.T) {
	cut := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	branch := func(name string) *towlinev1.Source {
		return &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git", Ref: &towlinev1.GitRef{Branch: name}}, Follow: &towlinev1.Follow{}}
	}
	file := func() *towlinev1.Source {
		return &towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://files.example.com/all.yaml"}, Follow: &towlinev1.Follow{}}
	}
	without := func(src *towlinev1.Source) *towlinev1.Source {
		src.Follow = nil
		return src
	}
	x, y := fleet.DigestOf([]byte("x")).Bytes(), fleet.DigestOf([]byte("y")).Bytes()
	looked := func(after time.Duration, ref string) *storev1.FollowRecord {
		return &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(after)), ResolvedRef: ref, Fetched: x}
	}
	invalid := func() *storev1.FollowRecord {
		return &storev1.FollowRecord{Looked: timestamppb.New(cut), ResolvedRef: "z", Reason: follow.ReasonInvalid}
	}
	for name, tc := range map[string]struct {
		src              *towlinev1.Source // of the other
		took             *towlinev1.Source // that its newest revision is of, if that is another one
		two              *towlinev1.Source // of the module
		has              string            // what the revision of the module is of
		looked           *storev1.FollowRecord
		fails            bool          // its source came to nothing
		put              time.Duration // when the put was that its revision is of
		retried          time.Duration // when the rollout of that was begun anew, if it was
		behind, unlooked bool
	}{
		"nobody has looked":                       {src: branch("main"), two: branch("main"), has: "x", behind: true, unlooked: true},
		"it was looked at before":                 {src: branch("main"), two: branch("main"), has: "x", looked: looked(-time.Minute, "x"), behind: true, unlooked: true},
		"it was cut of that, and looked before":   {src: branch("main"), two: branch("main"), has: "y", looked: looked(-time.Minute, "x")},
		"it was looked at, which changed nothing": {src: branch("main"), two: branch("main"), has: "x", looked: looked(-time.Minute, "y")},
		"the branch was set back":                 {src: branch("main"), two: branch("main"), has: "x", looked: looked(time.Minute, "x")},
		"it follows another branch":               {src: branch("main"), two: branch("next"), has: "x"},
		"it follows nothing":                      {src: branch("main"), two: without(branch("main")), has: "x"},
		"the other follows nothing":               {src: without(branch("main")), two: branch("main"), has: "x", behind: true, unlooked: true},
		"the other comes from elsewhere":          {src: branch("main"), took: branch("next"), two: branch("main"), has: "x"},
		"its source failed":                       {src: branch("main"), two: branch("main"), has: "x", fails: true, behind: true},
		"it cannot be rendered": {src: branch("main"), two: branch("main"), has: "x", behind: true,
			looked: invalid()},
		"it could not be rendered, and was put since": {src: branch("main"), two: branch("main"), has: "y", put: time.Minute, looked: invalid()},
		"it was put since, of something else":         {src: branch("main"), two: branch("main"), has: "x", put: time.Minute, looked: invalid(), behind: true, unlooked: true},
		"it could not be rendered, and its old one was retried": {src: branch("main"), two: branch("main"), has: "x", put: -time.Minute, retried: 2 * time.Minute, behind: true,
			looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(time.Minute)), ResolvedRef: "y", Reason: follow.ReasonInvalid}},
		"a file":                     {src: file(), two: file(), behind: true, unlooked: true},
		"a file, looked at before":   {src: file(), two: file(), looked: looked(-time.Minute, ""), behind: true, unlooked: true},
		"a file, looked at after":    {src: file(), two: file(), looked: looked(time.Minute, "")},
		"a file, which it has, too":  {src: file(), two: file(), looked: &storev1.FollowRecord{Looked: timestamppb.New(cut.Add(-time.Minute)), Fetched: y}},
		"a file, of another address": {src: file(), two: branch("main")},
	} {
		t.Run(name, func(t *testing.T) {
			s := storetest.New(t)
			one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
			rec := func(name string, src *towlinev1.Source) *storev1.ModuleRecord {
				return &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name, Project: "default", Uid: "u" + name, Generation: 1},
					Spec: &towlinev1.ModuleSpec{Source: src}}}
			}
			took := tc.src
			if tc.took != nil {
				took = tc.took
			}
			to := "y"
			if took.GetHttp() != nil {
				to = ""
			}
			rev, err := s.Update(t.Context(), func(w store.Writer) error {
				w.Put(store.ModuleKey(one), rec("one", tc.src))
				w.Put(store.ModuleKey(two), rec("two", tc.two))
				w.Put(store.RevisionKey(one, 2), &storev1.RevisionRecord{Artifact: y, Revision: &towlinev1.Revision{Number: 2, ResolvedRef: to,
					Spec: &towlinev1.ModuleSpec{Source: took}, Metadata: &towlinev1.Metadata{CreationTimestamp: timestamppb.New(cut)}}})
				w.Put(store.RevisionKey(two, 1), &storev1.RevisionRecord{Artifact: x, Revision: &towlinev1.Revision{Number: 1, ResolvedRef: tc.has,
					Spec: &towlinev1.ModuleSpec{Source: tc.two}, Metadata: &towlinev1.Metadata{CreationTimestamp: timestamppb.New(cut.Add(-time.Hour))}}})
				ro := &towlinev1.Rollout{Number: 1, Revision: 1, Metadata: &towlinev1.Metadata{CreationTimestamp: timestamppb.New(cut.Add(tc.put))}, Status: &towlinev1.RolloutStatus{State: "Succeeded"}}
				if tc.fails {
					ro = &towlinev1.Rollout{Number: 1, Status: &towlinev1.RolloutStatus{State: "Failed"}}
				}
				w.Put(store.RolloutKey(two, 1), &storev1.RolloutRecord{Rollout: ro})
				if tc.retried != 0 {
					again := proto.CloneOf(ro)
					again.Number, again.Metadata.CreationTimestamp = 2, timestamppb.New(cut.Add(tc.retried))
					w.Put(store.RolloutKey(two, 2), &storev1.RolloutRecord{Rollout: again})
				}
				if tc.looked != nil {
					tc.looked.ModuleUid, tc.looked.Generation = "utwo", 1
					w.Put(store.FollowKey(two), tc.looked)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.View(t.Context(), rev, func(r store.Reader) error {
				m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(two))
				if behind, unlooked := Behind(r, two, m, one), NewSuccession(library{}, one).Unlooked(t.Context(), r, two, m); behind != tc.behind || unlooked != tc.unlooked {
					t.Errorf("behind %v, unlooked %v", behind, unlooked)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
