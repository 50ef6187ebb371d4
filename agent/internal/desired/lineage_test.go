package desired

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// numbers is what is held with the numbers of lineages: name@lineage/generation.
func numbers(s *Store) string {
	h := s.Held()
	var out []string
	for _, x := range slices.Concat(h.Assemblage.Syncs, h.Strays) {
		out = append(out, fmt.Sprintf("%s@%d/%d", x.Module.Name, x.Lineage, x.Generation))
	}
	for _, x := range h.Assemblage.Tombstones {
		out = append(out, fmt.Sprintf("!%s@%d/%d", x.Module.Name, x.Lineage, x.Generation))
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(strings.Trim(a, "!"), strings.Trim(b, "!")) })
	return fmt.Sprintf("%d: %s", h.Assemblage.Lineage, strings.Join(out, " "))
}

// A hub that was joined anew counts from one. What it says is newer than all that was held before, also of modules that it
// did not list at first, and what it refuses to say keeps the number of its own time.
func TestNewJoinCountsAnew(t *testing.T) {
	state, h := newMemory(), newHub()
	s := open(t, state)
	dead := func(name string, generation uint64) fleet.Tombstone {
		return fleet.Tombstone{Module: ref(name), Generation: generation, Policy: fleet.DeleteDelete}
	}
	say := func(want string) {
		t.Helper()
		for range 2 { // and after a restart
			if got := numbers(s); got != want {
				t.Errorf("held %q, want %q", got, want)
			}
			s = open(t, state)
		}
	}
	if err := s.Adopt(t.Context(), "join-1"); err != nil {
		t.Fatal(err)
	}
	accept(t, s, h, index(0, []fleet.Sync{h.sync("web", 500, 1, "a"), h.sync("api", 501, 1, "a"), h.sync("db", 502, 1, "a"), h.sync("bad", 503, 1, "a")}, dead("old", 504)))
	say("1: api@1/501 bad@1/503 db@1/502 !old@1/504 web@1/500")

	if err := s.Adopt(t.Context(), "join-2"); err != nil {
		t.Fatal(err)
	}
	say("2: api@1/501 bad@1/503 db@1/502 !old@1/504 web@1/500")

	again := Lineage{HubID: "hub-1", Incarnation: "two"}
	take := func(syncs []fleet.Sync, tombstones ...fleet.Tombstone) string {
		t.Helper()
		r, err := s.Accept(t.Context(), again, index(0, syncs, tombstones...), h.fetch, alone)
		if err != nil || r.Code != "" {
			t.Fatal(r, err)
		}
		return refusals(r)
	}
	broken := h.corrupt(h.sync("bad", 4, 1, "broken"))
	if got := take([]fleet.Sync{h.sync("web", 3, 1, "b"), broken}); got != "bad@4:DIGEST_MISMATCH" {
		t.Errorf("refused %q", got)
	}
	say("2: api@1/501 bad@1/503 db@1/502 web@2/3")

	// A stray is taken up, another one is let go, what was refused comes in order, and older numbers count within the new time.
	if got := take([]fleet.Sync{h.sync("web", 2, 1, "c"), h.sync("api", 5, 1, "b"), h.sync("bad", 6, 1, "b")}, dead("db", 7)); got != "web@2:STALE" {
		t.Errorf("refused %q", got)
	}
	say("2: api@2/5 bad@2/6 !db@2/7 web@2/3")

	// What the agent confirms late of the time before is no word on a tombstone of now.
	s.Confirm(ref("db"), fleet.Age{Lineage: 1, Generation: 504})
	take([]fleet.Sync{h.sync("web", 8, 1, "b"), h.sync("api", 5, 1, "b"), h.sync("bad", 6, 1, "b")})
	say("2: api@2/5 bad@2/6 !db@2/7 web@2/8")

	if hubs := s.Held().Hubs; !slices.Equal(hubs, []string{"hub-1", "hub-1"}) {
		t.Errorf("hubs %q", hubs)
	}
	if err := s.Adopt(t.Context(), "join-3"); err != nil {
		t.Fatal(err)
	}
	again = Lineage{HubID: "hub-2", Incarnation: "three"}
	take(nil, dead("api", 1))
	say("3: !api@3/1 bad@2/6 web@2/8") // a new hub does not carry out what an old one ordered
	if hubs := s.Held().Hubs; !slices.Equal(hubs, []string{"hub-1", "hub-1", "hub-2"}) {
		t.Errorf("hubs %q", hubs)
	}
}
