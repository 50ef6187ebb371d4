package control

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
)

// midway notes what the store says of a catalog while its modules are put.
type midway struct {
	planned
	read func() *storev1.CatalogState
	saw  *storev1.CatalogState
	err  error
	done record.CatalogDone
}

func (m *midway) ApplyCatalog(context.Context, record.CatalogLook, catalog.Plan) (record.CatalogDone, error) {
	m.saw = m.read()
	return m.done, m.err
}

// leftOutBy are the modules of which a state says that they are put later.
func leftOutBy(s *storev1.CatalogState) (out []string) {
	for _, name := range []string{"a", "b", "c", "d"} {
		if record.LeavesOut(s.GetStatus(), name) {
			out = append(out, name)
		}
	}
	return out
}

// Before the first put of a look the store says which modules are put later, those that were to be so far among them, and that the look has to be
// made by a hub that leads before it has ended. What is not put by a look that comes to nothing stays said.
func TestCatalogSaysBeforeItPutsWhatIsPutLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		m := &midway{read: func() *storev1.CatalogState { return w.storedState() }}
		w.o.Catalogs = m
		paused := func(name string) catalog.Conflict {
			return catalog.Conflict{Name: name, At: name + ".yaml:1", Reason: catalog.Paused}
		}
		puts := func(names ...string) (out []catalog.Put) {
			for _, name := range names {
				out = append(out, catalog.Put{Name: name})
			}
			return out
		}
		look := func(plan catalog.Plan, midway, after []string) {
			t.Helper()
			m.plan, m.saw = plan, nil
			w.looks(5*time.Minute + time.Second)
			if m.saw != nil && m.saw.GetStatus().GetObservedGeneration() != 0 {
				t.Error("a hub that leads now does not look")
			}
			if got := leftOutBy(m.saw); midway != nil && !slices.Equal(got, midway) {
				t.Errorf("while it puts: %v, want %v", got, midway)
			}
			if s := w.storedState(); !slices.Equal(leftOutBy(s), after) || s.GetStatus().GetObservedGeneration() != 1 {
				t.Errorf("after that: %v, want %v: %v", leftOutBy(s), after, s)
			}
		}
		look(catalog.Plan{Puts: puts("a", "c")}, []string{}, nil)
		look(catalog.Plan{Puts: puts("a"), Conflicts: []catalog.Conflict{paused("b"), paused("c")}}, []string{"b", "c"}, []string{"b", "c"})
		look(catalog.Plan{Puts: puts("b"), Refused: []string{"module x is needed"}}, nil, []string{"b"})
		look(catalog.Plan{Puts: puts("b"), Waits: true, Goes: []catalog.Gone{{Name: "x"}, {Name: "y"}}}, nil, []string{"b"})
		m.err, m.done = &record.CatalogProblems{List: []string{"b.yaml:1: is refused"}}, record.CatalogDone{Configured: []string{"a"}}
		look(catalog.Plan{Puts: puts("a", "b"), Later: []catalog.Later{{Name: "d", At: "d.yaml:1", Reason: catalog.Running}}}, []string{"b", "d"}, []string{"b", "d"})
		m.err = fleet.Errorf(fleet.ErrConflict, "another one by now")
		m.plan = catalog.Plan{Puts: puts("a", "b"), Conflicts: []catalog.Conflict{paused("c")}}
		w.looks(5*time.Minute + time.Second)
		if got := leftOutBy(w.storedState()); !slices.Equal(got, []string{"b", "c", "d"}) {
			t.Errorf("a look that has not ended says %v", got)
		}
		m.err, m.done = nil, record.CatalogDone{Configured: []string{"a", "b"}}
		w.restarts()
		m.plan = catalog.Plan{Puts: puts("a", "b")}
		if n := w.looks(time.Second); n != 1 || len(leftOutBy(w.storedState())) != 0 {
			t.Errorf("a hub that leads now looks %d times, and says %v", n, leftOutBy(w.storedState()))
		}
	})
}

func (w *watcher) storedState() (out *storev1.CatalogState) {
	_ = w.view(w.t.Context(), func(r store.Reader) error {
		out, _, _ = store.Get[*storev1.CatalogState](r, store.CatalogStateKey(w.ref))
		return nil
	})
	return out
}
