package desired

import (
	"errors"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// A restored store takes the place of the one that is followed, and of none that came after it: two stores never take a cluster from each
// other.
func TestSucceedTakesARestoredStoreOnce(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	accept(t, s, h, index(50, []fleet.Sync{h.sync("web", 40, 1, "a"), h.sync("api", 41, 1, "a")},
		fleet.Tombstone{Module: ref("old"), Generation: 42, Policy: fleet.DeleteDelete}))
	restored := Lineage{HubID: home.HubID, Incarnation: "two"}
	if err := s.Succeed(t.Context(), Lineage{HubID: "hub-2", Incarnation: "two"}); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("another hub's: %v", err)
	}
	if err := s.Succeed(t.Context(), restored); err != nil {
		t.Fatal(err)
	}
	s = open(t, state) // killed before it met the store again
	if l, generation, d := s.Position(); l != (Lineage{}) || generation != 0 || !d.IsZero() {
		t.Errorf("it stands at %v, %d, %s", l, generation, d)
	}
	if r, err := s.Accept(t.Context(), restored, index(9, []fleet.Sync{h.sync("web", 8, 1, "b")}), h.fetch, alone); err != nil || r.Code != "" || len(r.Refused) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := describe(s); got != "~api@41 web@8" {
		t.Errorf("held %q, want web of the restored store, api as a stray and no tombstone", got)
	}
	if err := s.Succeed(t.Context(), home); !errors.Is(err, fleet.ErrDenied) {
		t.Errorf("the store of before: %v", err)
	}
	if r, _ := s.Accept(t.Context(), home, index(99, nil), h.fetch, alone); r.Code != CodeRegressed {
		t.Error("the store of before is followed again")
	}
}
