package engine_test

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
)

// What is read untracked shows the update's own changes, passes over what cannot be read, and makes no commit depend on it.
func TestUntrackedReads(t *testing.T) {
	b := memory.New()
	s := storetest.On(t, b, engine.Options{})
	put := func(w store.Writer, c string, rollout int64) {
		w.Put(store.DesiredPrefix+c+"/default/web", &storev1.DesiredRecord{Rollout: rollout})
	}
	if _, err := s.Update(t.Context(), func(w store.Writer) error {
		put(w, "a", 1)
		put(w, "b", 1)
		put(w, "bad", 1)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	storetest.Damage(t, b, store.DesiredPrefix+"bad/default/web")
	if _, err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := func(r store.Reader, c string) int64 {
		d, _, _ := store.Get[*storev1.DesiredRecord](store.Untracked(store.Untracked(r)), store.DesiredPrefix+c+"/default/web")
		return d.GetRollout()
	}
	runs := 0
	if _, err := s.Update(t.Context(), func(w store.Writer) error {
		runs++
		if a, bad, none := read(w, "a"), read(w, "bad"), read(w, "none"); a == 0 || bad != 0 || none != 0 {
			t.Errorf("read %d, %d, %d", a, bad, none)
		}
		if runs == 1 {
			if _, err := s.Update(t.Context(), func(other store.Writer) error { put(other, "a", 2); return nil }); err != nil {
				return err
			}
		}
		put(w, "c", 3)
		w.Delete(store.DesiredPrefix + "b/default/web")
		if c, b := read(w, "c"), read(w, "b"); c != 3 || b != 0 {
			t.Errorf("its own changes: %d, %d", c, b)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if runs != 1 {
		t.Errorf("it ran %d times: it depends on what it read", runs)
	}
}
