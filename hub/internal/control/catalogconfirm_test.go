package control

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
	"towline.dev/towline/pkg/fleet"
)

// endingStore takes so many changes, and no more: the hub stops there.
type endingStore struct {
	store.Store
	left int
}

func (s *endingStore) Update(ctx context.Context, fn func(store.Writer) error) (int64, error) {
	if s.left--; s.left < 0 {
		return 0, fleet.Errorf(fleet.ErrUnavailable, "the store has ended")
	}
	return s.Store.Update(ctx, fn)
}

// confirmed has a person confirm that a module goes from the catalog's files, which needs it still.
func (w *watcher) confirmed() catalog.Gone {
	gone := catalog.Gone{Name: "web", UID: "u1"}
	h := &towlinev1.Hold{Id: "h", Kind: record.HoldConfirm, Project: w.ref.Project, Catalog: w.ref.Name, Digest: "d", Items: []string{catalogItem(gone)}}
	w.leader.put(func(tx store.Writer) {
		tx.Put(store.HoldPrefix+h.GetId(), &storev1.HoldRecord{Hold: h})
		tx.Put(store.ConfirmPrefix+h.GetId(), &storev1.ConfirmRecord{Digest: h.GetDigest()})
	})
	return gone
}

// stops looks at the catalog until the hub stops after so many changes, and begins to lead anew.
func (w *watcher) stops(changes int) {
	whole := w.o.Store
	w.o.Store = &endingStore{Store: whole, left: changes}
	w.looks(100 * time.Millisecond)
	w.o.Store = whole
	w.restarts()
}

func (w *watcher) hold() (h *towlinev1.Hold) {
	_ = w.view(w.t.Context(), func(r store.Reader) error {
		h = catalogHold(r, w.ref)
		return nil
	})
	return h
}

// TestConfirmOfACatalogIsKnownWhereverTheHubStops: what a person confirmed, and goes later, is known by the hold or by what is kept of the look.
func TestConfirmOfACatalogIsKnownWhereverTheHubStops(t *testing.T) {
	for changes := range 4 {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				w.looks(time.Second)
				gone := w.confirmed()
				w.writes.plan = catalog.Plan{Waits: true, Goes: []catalog.Gone{gone}, Later: []catalog.Later{{Name: gone.Name, Reason: "InUse"}}}
				w.recurses(2)
				w.stops(changes)
				w.looks(time.Minute)
				if s := w.storedState(); len(s.GetConfirmed()) != 1 || s.GetStatus().GetHold() != "" || s.GetStatus().GetState() != catalog.Waiting {
					t.Errorf("confirmed is %v: %v", s.GetConfirmed(), s.GetStatus())
				}
				if left := w.hold(); left != nil {
					t.Errorf("asks still, or again: %v", left)
				}
			})
		})
	}
}

// TestConfirmOfWhatIsListedAgainEndsWhereverTheHubStops: as soon as anything is kept of a look at files that list again what a person confirmed to go,
// the word counts no more for files that drop it once more.
func TestConfirmOfWhatIsListedAgainEndsWhereverTheHubStops(t *testing.T) {
	for changes := 1; changes < 4; changes++ {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				w.looks(time.Second)
				gone := w.confirmed()
				state := w.storedState()
				state.Confirmed = []string{catalogItem(gone)}
				w.leader.put(func(tx store.Writer) { tx.Put(store.CatalogStateKey(w.ref), state) })
				w.restarts()
				files := w.source.files
				w.source.files = manyModules(2000)
				w.recurses(2)
				w.stops(changes)
				w.source.files, w.writes.plan = files, catalog.Plan{Waits: true, Goes: []catalog.Gone{gone}}
				w.recurses(3)
				w.looks(time.Minute)
				if s := w.storedState().GetStatus(); s.GetReason() != catalog.ReasonPrunesMost || w.hold().GetId() == "h" {
					t.Errorf("nobody is asked: %v, %v", s, w.hold())
				}
			})
		})
	}
}

// TestQuestionOfACatalogWhoseRecordIsLost: of a question that nobody can read any more nobody knows what it was about. What goes then is asked about,
// however little it is.
func TestQuestionOfACatalogWhoseRecordIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(t)
		w.looks(time.Second)
		state := w.storedState()
		state.Status.Hold = "h"
		w.leader.put(func(tx store.Writer) { tx.Put(store.CatalogStateKey(w.ref), state) })
		w.restarts()
		files := w.source.files
		w.source.files = map[string]string{"a.yaml": "kind: ["}
		w.recurses(2)
		w.looks(time.Minute)
		w.source.files, w.writes.plan = files, catalog.Plan{Goes: []catalog.Gone{{Name: "web", UID: "u1"}}}
		w.recurses(3)
		w.looks(time.Minute)
		if s := w.storedState().GetStatus(); s.GetReason() != catalog.ReasonPrunesMost || w.hold() == nil || w.hold().GetId() != s.GetHold() {
			t.Errorf("nobody is asked: %v, %v", s, w.hold())
		}
	})
}
