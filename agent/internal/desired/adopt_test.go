package desired

import (
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// A new join is a person's word for the new lineage: it is taken, and deletes nothing that it does not name.
func TestAdoptTakesTheNextLineage(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	if err := s.Adopt(t.Context(), "join-1"); err != nil {
		t.Fatal(err)
	}
	accept(t, s, h, index(50, []fleet.Sync{h.sync("web", 40, 1, "a"), h.sync("api", 41, 1, "a")},
		fleet.Tombstone{Module: ref("old"), Generation: 42, Policy: fleet.DeleteDelete}))
	restored := Lineage{HubID: "hub-1", Incarnation: "two"}
	in := index(9, []fleet.Sync{h.sync("web", 8, 1, "b")})
	if r, _ := s.Accept(t.Context(), restored, in, h.fetch, alone); r.Code != CodeRegressed {
		t.Fatalf("taken without a word: %+v", r)
	}
	for _, join := range []string{"join-1", "join-2", "join-2"} {
		if err := s.Adopt(t.Context(), join); err != nil {
			t.Fatal(err)
		}
	}
	s = open(t, state)
	if _, _, d := s.Position(); !d.IsZero() {
		t.Error("the hello of an adopting agent claims to hold the new hub's state")
	}
	if r, err := s.Accept(t.Context(), restored, in, h.fetch, alone); err != nil || r.Code != "" || len(r.Refused) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := describe(s); got != "~api@41 web@8" {
		t.Errorf("held %q, want web of the new lineage, api as a stray and no tombstone", got)
	}
	if r, _ := s.Accept(t.Context(), home, index(99, nil), h.fetch, alone); r.Code != CodeRegressed {
		t.Error("the word held for a second lineage")
	}
}

// A cluster that left and joins again begins empty, its contents included: what the last record carried is in no record
// any more, so it must be stored again.
func TestJoinAfterLeavingBeginsEmpty(t *testing.T) {
	h := newHub()
	state := newMemory()
	s := open(t, state)
	in := index(0, []fleet.Sync{h.sync("web", 1, 2, "a")})
	accept(t, s, h, in)
	if err := s.Leave(t.Context(), fleet.Leave{Objects: fleet.LeaveKeep}); err != nil {
		t.Fatal(err)
	}
	s = open(t, state)
	if err := s.Adopt(t.Context(), "join-2"); err != nil {
		t.Fatal(err)
	}
	accept(t, s, h, in)
	again := open(t, state)
	if got := describe(again); got != "web@1" {
		t.Errorf("held %q", got)
	}
	checkContents(t, again)
}

// Packs that a process did not come to file are filed by the next one.
func TestLoosePacksAreFiledAfterARestart(t *testing.T) {
	h := newHub()
	state := newMemory()
	accept(t, open(t, state), h, index(0, []fleet.Sync{h.sync("web", 1, 2, "a")}))
	s := open(t, state)
	if err := s.Tidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names, _ := state.List(t.Context(), contentPrefix); len(names) != 2 {
		t.Errorf("%d packs have files", len(names))
	}
}

// alone is of an index that nothing goes with.
func alone() error { return nil }
