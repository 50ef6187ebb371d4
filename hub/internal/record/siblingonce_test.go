package record

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// reads counts how often each record is read.
type reads struct {
	store.Reader
	of map[string]int
}

func (x reads) Get(key string) (store.Entry, bool) {
	x.of[key]++
	return x.Reader.Get(key)
}

func (x reads) Peek(key string) (store.Entry, bool) { return x.Get(key) }

// TestSiblingIsReadOnceForAllClusters: whoever lets something go in many clusters does not read for each of them, and for each module that may
// have that, who looked at what.
func TestSiblingIsReadOnceForAllClusters(t *testing.T) {
	s := storetest.New(t)
	one, two := fleet.ModuleRef{Project: "default", Name: "one"}, fleet.ModuleRef{Project: "default", Name: "two"}
	src := &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git", Ref: &towlinev1.GitRef{Branch: "main"}}, Follow: &towlinev1.Follow{}}
	rec := func(ref fleet.ModuleRef) *storev1.ModuleRecord {
		return &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: "u" + ref.Name, Generation: 1},
			Spec: &towlinev1.ModuleSpec{Source: src, Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}}
	}
	rev, err := s.Update(t.Context(), func(w store.Writer) error {
		w.Put(store.HubKey, &storev1.Hub{Incarnation: "i"})
		for _, ref := range []fleet.ModuleRef{one, two} {
			w.Put(store.ModuleKey(ref), rec(ref))
			w.Put(store.FollowKey(ref), &storev1.FollowRecord{ModuleUid: "u" + ref.Name, Generation: 1, Incarnation: "i"})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.View(t.Context(), rev, func(r store.Reader) error {
		count := reads{r, map[string]int{}}
		x := NewSuccession(library{}, one)
		x.Unlooked(t.Context(), count, two, rec(two))
		once := count.of[store.FollowKey(two)]
		for range 100 { // clusters
			x.Unlooked(t.Context(), count, two, rec(two))
			x.Away(t.Context(), count, two, rec(two))
		}
		if got := count.of[store.FollowKey(two)]; once == 0 || got != once {
			t.Errorf("read %d times, want %d", got, once)
		}
		if !x.Asks(two) || x.Asks(two) {
			t.Error("a module is to be asked about once")
		}
		if x.by = x.by.and(decision{since: 7}); !x.Asks(two) {
			t.Error("a cluster lets go by something else: it is to be asked about once more")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
