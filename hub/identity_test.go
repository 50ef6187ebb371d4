package hub

import (
	"errors"
	"strings"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
)

// A hub does not touch a store in which there may be records that it cannot read, and notes in one of an older hub that there are
// some now.
func TestStoreOfAnotherVersion(t *testing.T) {
	s := storetest.New(t)
	write := func(schema uint32) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			w.Put(store.HubKey, &storev1.Hub{HubId: "h", Schema: schema})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	if rec, err := identity(t.Context(), s.As(store.Hub)); err != nil || rec.HubId != "h" || rec.Schema != storeSchema {
		t.Errorf("of an older hub: %v, %v", rec, err)
	}
	write(storeSchema + 1)
	if _, err := identity(t.Context(), s.As(store.Hub)); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "newer hub") {
		t.Errorf("of a newer hub: %v", err)
	}
}
