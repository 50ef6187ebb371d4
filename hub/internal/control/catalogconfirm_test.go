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

// TestConfirmOfACatalogIsKnownWhereverTheHubStops: what a person confirmed, and goes later, is known by the hold or by what is kept of the look.
func TestConfirmOfACatalogIsKnownWhereverTheHubStops(t *testing.T) {
	for changes := range 5 {
		t.Run(fmt.Sprint(changes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWatcher(t)
				w.looks(time.Second)
				gone := catalog.Gone{Name: "web", UID: "u1"}
				h := &towlinev1.Hold{Id: "h", Kind: record.HoldConfirm, Project: w.ref.Project, Catalog: w.ref.Name, Digest: "d", Items: []string{catalogItem(gone)}}
				w.leader.put(func(tx store.Writer) {
					tx.Put(store.HoldPrefix+h.GetId(), &storev1.HoldRecord{Hold: h})
					tx.Put(store.ConfirmPrefix+h.GetId(), &storev1.ConfirmRecord{Digest: h.GetDigest()})
				})
				w.writes.plan = catalog.Plan{Waits: true, Goes: []catalog.Gone{gone}, Later: []catalog.Later{{Name: gone.Name, Reason: "InUse"}}}
				w.recurses(2)
				whole := w.o.Store
				w.o.Store = &endingStore{Store: whole, left: changes}
				w.looks(100 * time.Millisecond)
				w.o.Store = whole
				w.restarts()
				w.looks(time.Minute)
				if s := w.storedState(); len(s.GetConfirmed()) != 1 || s.GetStatus().GetHold() != "" || s.GetStatus().GetState() != catalog.Waiting {
					t.Errorf("confirmed is %v: %v", s.GetConfirmed(), s.GetStatus())
				}
				if err := w.view(t.Context(), func(r store.Reader) error {
					if left := catalogHold(r, w.ref); left != nil {
						t.Errorf("asks still, or again: %v", left)
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
