package desired

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func TestBeyond(t *testing.T) {
	at := func(number uint64, incarnation string, generation uint64) HighWater {
		return HighWater{Number: number, Lineage: Lineage{"hub-1", incarnation}, Generation: generation}
	}
	for name, tc := range map[string]struct {
		noted, own HighWater
		want       bool
	}{
		"the same":                      {at(1, "one", 5), at(1, "one", 5), false},
		"noted a little late":           {at(1, "one", 4), at(1, "one", 5), false},
		"put back":                      {at(1, "one", 6), at(1, "one", 5), true},
		"joined anew, not noted yet":    {at(1, "one", 500), at(2, "two", 1), false},
		"put back to before a join":     {at(2, "two", 1), at(1, "one", 500), true},
		"another state of the same age": {at(1, "two", 1), at(1, "one", 500), true},
		"an empty state":                {at(1, "one", 1), HighWater{}, true},
	} {
		if got := tc.noted.beyond(tc.own); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// A state that was put back from a copy is not worked by: what it holds may have been removed since. The hub's word brings
// all of it up to date, and nothing older than what was noted is taken.
func TestStateThatWasPutBack(t *testing.T) {
	state, h := newMemory(), newHub()
	var noted string
	reopen := func() *Store {
		t.Helper()
		s, err := Open(t.Context(), Options{State: state, Noted: func(w HighWater) { noted = w.String() }})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := reopen()
	web, api := h.sync("web", 5, 1, "a"), h.sync("api", 6, 1, "a")
	accept(t, s, h, index(6, []fleet.Sync{web, api}))
	copied := maps.Clone(state.values)
	// api is removed, web moves on.
	gone := fleet.Tombstone{Module: ref("api"), Generation: 8, Policy: fleet.DeleteDelete}
	accept(t, s, h, index(8, []fleet.Sync{h.sync("web", 7, 1, "b")}, gone))
	s.Confirm(ref("api"), fleet.Age{Lineage: 1, Generation: 8})
	newest := index(9, []fleet.Sync{h.sync("web", 9, 1, "c")})
	accept(t, s, h, newest)

	state.values = copied
	s = reopen()
	if behind, err := s.Recall(t.Context(), noted); err != nil || !behind {
		t.Fatalf("behind %t, %v", behind, err)
	}
	for range 2 { // and after a restart, also when nobody knows what was noted
		held := s.Held()
		if got := describe(s); got != "" || !strings.Contains(held.Behind, "generation 6") || !strings.Contains(held.Behind, "generation 9") {
			t.Errorf("held %q, behind %q", got, held.Behind)
		}
		lineage, generation, digest := s.Position()
		if lineage != home || generation != 9 || !digest.IsZero() {
			t.Errorf("says hello with %v, generation %d and digest %s", lineage, generation, digest)
		}
		s = reopen()
		if behind, err := s.Recall(t.Context(), ""); err != nil || !behind {
			t.Fatalf("after a restart: behind %t, %v", behind, err)
		}
	}
	if r := accept(t, s, h, index(8, []fleet.Sync{h.sync("web", 7, 1, "b")})); r.Code != CodeRegressed {
		t.Errorf("an index that is older than what was noted is taken: %+v", r)
	}
	if r := accept(t, s, h, newest); r.Code != "" || len(r.Refused) > 0 {
		t.Fatalf("%+v", r)
	}
	if got := describe(s); got != "web@9" || s.Held().Behind != "" {
		t.Errorf("held %q, behind %q", got, s.Held().Behind)
	}
	s = reopen()
	if behind, err := s.Recall(t.Context(), noted); err != nil || behind || describe(s) != "web@9" {
		t.Errorf("after another restart: behind %t, %v, held %q", behind, err, describe(s))
	}
}

// An agent that begins with an empty state where another one worked goes on counting its lineages.
func TestEmptyStateInAManagedCluster(t *testing.T) {
	state, h := newMemory(), newHub()
	s := open(t, state)
	old := HighWater{Number: 3, Lineage: Lineage{"hub-0", "zero"}, Generation: 700}
	if behind, err := s.Recall(t.Context(), old.String()); err != nil || !behind {
		t.Fatalf("behind %t, %v", behind, err)
	}
	if err := s.Adopt(t.Context(), "join-9"); err != nil {
		t.Fatal(err)
	}
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 2, 1, "a")}))
	if got := numbers(s); got != "4: web@4/2" || s.HighWater() != (HighWater{4, home, 2}) {
		t.Errorf("held %q, high water %s", got, s.HighWater())
	}
	if behind, err := open(t, state).Recall(t.Context(), "{"); !errors.Is(err, fleet.ErrCorrupt) || behind {
		t.Errorf("a note that cannot be read: behind %t, %v", behind, err)
	}
}

// A join that was noted before the agent stopped still counts, whatever stands on the Lease.
func TestJoinBeforeARecall(t *testing.T) {
	for name, prepare := range map[string]func(s *Store, h *hub){
		"with an empty state": func(*Store, *hub) {},
		"after it had left": func(s *Store, h *hub) {
			accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 700, 1, "a")}))
			if err := s.Leave(t.Context(), fleet.Leave{Objects: fleet.LeaveKeep}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			state, h := newMemory(), newHub()
			s := open(t, state)
			prepare(s, h)
			if err := s.Adopt(t.Context(), "join-9"); err != nil {
				t.Fatal(err)
			}
			s = open(t, state)
			noted := HighWater{Number: 1, Lineage: home, Generation: 700}
			if behind, err := s.Recall(t.Context(), noted.String()); err != nil || !behind {
				t.Fatalf("behind %t, %v", behind, err)
			}
			r, err := s.Accept(t.Context(), Lineage{"hub-2", "new"}, index(0, []fleet.Sync{h.sync("web", 2, 1, "a")}), h.fetch, alone)
			if err != nil || r.Code != "" || describe(s) != "web@2" || s.HighWater().Number < 2 {
				t.Errorf("%+v, %v, held %q, high water %s", r, err, describe(s), s.HighWater())
			}
		})
	}
}
