package engine_test

import (
	"slices"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// Where a module is assigned is known without a look at every cluster: what is damaged or written by the update itself counts, and a
// view of before a deletion does not know.
func TestAssigned(t *testing.T) {
	b := memory.New()
	s := storetest.On(t, b, engine.Options{})
	web, db := fleet.ModuleRef{Project: "default", Name: "web"}, fleet.ModuleRef{Project: "default", Name: "db"}
	update := func(fn func(w store.Writer)) (at int64) {
		t.Helper()
		at, err := s.Update(t.Context(), func(w store.Writer) error { fn(w); return nil })
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	expect := func(r store.Reader, m fleet.ModuleRef, want ...fleet.ClusterName) {
		t.Helper()
		got, known := store.Assigned(store.Untracked(r), m)
		if slices.Sort(got); !known || !slices.Equal(got, want) {
			t.Errorf("%s is assigned in %v (known: %v), not in %v", m, got, known, want)
		}
	}
	update(func(w store.Writer) {
		for _, c := range []fleet.ClusterName{"a", "b", "bad"} {
			w.Put(store.DesiredKey(c, web), &storev1.DesiredRecord{Rollout: 1})
		}
		w.Put(store.DesiredKey("c", db), &storev1.DesiredRecord{Rollout: 1})
	})
	storetest.Damage(t, b, store.DesiredKey("bad", web))
	if _, err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := update(func(w store.Writer) {
		w.Put(store.DesiredKey("d", web), &storev1.DesiredRecord{Rollout: 1})
		expect(w, web, "a", "b", "bad", "d")
		expect(store.Dry(w), db, "c")
	})
	err := s.View(t.Context(), at, func(before store.Reader) error {
		expect(before, web, "a", "b", "bad", "d")
		at := update(func(w store.Writer) { w.Delete(store.DesiredKey("a", web)) })
		err := s.View(t.Context(), at, func(after store.Reader) error {
			expect(after, web, "b", "bad", "d")
			return nil
		})
		if got, known := store.Assigned(before, web); known {
			t.Errorf("a view of before the deletion says that it is assigned in %v", got)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
