package desired

import (
	"context"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// restore has the store follow another lineage from the next index on, by a new join or by the word of a restored hub.
func restore(t *testing.T, s *Store, join string, to Lineage) {
	t.Helper()
	err := s.Succeed(t.Context(), to)
	if join != "" {
		err = s.Adopt(t.Context(), join)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What was carried out for the hub of before is no word on what the hub of now orders under a number that is not higher.
func TestConfirmIsOfOneLineage(t *testing.T) {
	h, anew := newHub(), Lineage{HubID: home.HubID, Incarnation: "two"}
	old := fleet.Tombstone{Module: ref("old"), Generation: 90, Policy: fleet.DeleteDelete}
	take := func(t *testing.T, s *Store, generation uint64, tombstones ...fleet.Tombstone) {
		t.Helper()
		if r, err := s.Accept(t.Context(), anew, index(generation, nil, tombstones...), h.fetch, alone); err != nil || r.Code != "" || len(r.Refused) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	for name, confirm := range map[string]func(s *Store, between func()){
		"before": func(s *Store, between func()) {
			s.Confirm(ref("old"), fleet.Age{Lineage: 1, Generation: 90})
			between()
		},
		"late": func(s *Store, between func()) {
			between()
			s.Confirm(ref("old"), fleet.Age{Lineage: 1, Generation: 90})
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, newMemory())
			accept(t, s, h, index(100, nil, old))
			confirm(s, func() {
				restore(t, s, "", anew)
				take(t, s, 95, fleet.Tombstone{Module: ref("old"), Generation: 80, Policy: fleet.DeleteDelete})
			})
			take(t, s, 96)
			if got := describe(s); got != "!old@80" {
				t.Errorf("held %q: the tombstone was not carried out yet", got)
			}
			s.Confirm(ref("old"), fleet.Age{Lineage: 2, Generation: 80})
			take(t, s, 97)
			if got := describe(s); got != "" {
				t.Errorf("held %q, after it was carried out", got)
			}
		})
	}
}

// A sync that comes confirmed with the first word of a lineage answers no question of this agent: the store was put back to before
// what is in the cluster now, or the cluster was with another hub meanwhile.
func TestConfirmOfTheFirstWordAnswersNothing(t *testing.T) {
	for name, join := range map[string]string{"restored": "", "joined again": "join-2"} {
		t.Run(name, func(t *testing.T) {
			h, state, anew := newHub(), newMemory(), Lineage{HubID: home.HubID, Incarnation: "two"}
			s := open(t, state)
			sync := func(generation uint64, confirmed bool) fleet.Sync {
				x := h.sync("web", generation, 1, "a")
				x.PruneConfirmed = confirmed
				return x
			}
			accept(t, s, h, index(50, []fleet.Sync{sync(40, false)}))
			accept(t, s, h, index(50, []fleet.Sync{sync(40, true)}))
			confirmed := func(want bool) {
				t.Helper()
				for range 2 { // and after a restart
					if got := s.Held().Assemblage.Syncs[0].PruneConfirmed; got != want {
						t.Errorf("confirmed %t, want %t", got, want)
					}
					s = open(t, state)
				}
			}
			confirmed(true)
			restore(t, s, join, anew)
			for _, step := range []struct{ generation, confirmed, counts uint64 }{
				{30, 1, 0}, // the first word
				{31, 1, 0}, // the same, with other heirs
				{31, 0, 0}, // the hub has heard what waits, and asks
				{31, 1, 1}, // a person's answer
			} {
				in := index(0, []fleet.Sync{sync(step.generation, step.confirmed > 0)})
				if r, err := s.Accept(t.Context(), anew, in, h.fetch, alone); err != nil || r.Code != "" || len(r.Refused) > 0 {
					t.Fatalf("%+v, %v", r, err)
				}
				if _, _, digest := s.Position(); digest.String() != fleet.Digest(in.GetResultsIn()).String() {
					t.Errorf("it says hello with digest %s, the hub's index has %x", digest, in.GetResultsIn())
				}
				confirmed(step.counts > 0)
			}
		})
	}
}

// An order to delete a tracker that comes with the first word of a lineage counts for nothing: who gave it was shown what a store of before, or the
// cluster before it was with another hub, had. A confirm beside it is another word, and ends by itself.
func TestOrderOfTheFirstWordAnswersNothing(t *testing.T) {
	for name, join := range map[string]string{"restored": "", "joined again": "join-2"} {
		t.Run(name, func(t *testing.T) {
			h, state, anew := newHub(), newMemory(), Lineage{HubID: home.HubID, Incarnation: "two"}
			s := open(t, state)
			sync := func(generation uint64, ordered, confirmed bool) fleet.Sync {
				x := h.sync("web", generation, 1, "a")
				if x.PruneConfirmed = confirmed; ordered {
					x.Recycles = []fleet.Recycle{{Revision: 1, Keys: []uint64{7}}}
				}
				return x
			}
			accept(t, s, h, index(50, []fleet.Sync{sync(40, false, false)}))
			accept(t, s, h, index(50, []fleet.Sync{sync(40, true, false)}))
			counts := func(want bool) {
				t.Helper()
				for range 2 { // and after a restart
					if got := s.Held().Assemblage.Syncs[0].Recycles; len(got) != 1 || got[0].Unasked == want {
						t.Errorf("orders %+v, want one that counts: %t", got, want)
					}
					s = open(t, state)
				}
			}
			counts(true)
			restore(t, s, join, anew)
			for _, step := range []struct {
				generation                 uint64
				ordered, counts, confirmed bool
			}{
				{30, true, false, true},  // the first word
				{31, true, false, false}, // the confirm is taken back
				{32, true, false, true},
				{33, false, false, false}, // the hub has heard that it stays, and takes the order back
				{34, true, true, false},   // a person's order
			} {
				in := index(0, []fleet.Sync{sync(step.generation, step.ordered, step.confirmed)})
				if r, err := s.Accept(t.Context(), anew, in, h.fetch, alone); err != nil || r.Code != "" || len(r.Refused) > 0 {
					t.Fatalf("%+v, %v", r, err)
				}
				if _, _, digest := s.Position(); digest.String() != fleet.Digest(in.GetResultsIn()).String() {
					t.Errorf("it says hello with digest %s, the hub's index has %x", digest, in.GetResultsIn())
				}
				if got := s.Held().Assemblage.Syncs[0].PruneConfirmed; got != (step.generation == 32) {
					t.Errorf("at %d confirmed %t", step.generation, got)
				}
				if step.ordered {
					counts(step.counts)
				}
			}
		})
	}
}

// A confirm that comes with the first word of a lineage answers nothing, also if that word on the module could not be taken at first, or came later
// than that on others.
func TestConfirmOfTheFirstWordOnAModule(t *testing.T) {
	for name, first := range map[string]bool{"refused at first": true, "not listed at first": false} {
		t.Run(name, func(t *testing.T) {
			h, anew := newHub(), Lineage{HubID: home.HubID, Incarnation: "two"}
			s := open(t, newMemory())
			accept(t, s, h, index(50, []fleet.Sync{h.sync("web", 40, 3, "new")}))
			restore(t, s, "", anew)
			web := h.sync("web", 30, 1, "old") // of the store that was put back, where a person had confirmed it
			web.PruneConfirmed = true
			lost := web.Bundle
			broken := func(ctx context.Context, all []fleet.Digest) (map[fleet.Digest][]byte, error) {
				for _, d := range all {
					if d == lost {
						return nil, fleet.Errorf(fleet.ErrCorrupt, "content %s is damaged", d.Short())
					}
				}
				return h.fetch(ctx, all)
			}
			var list []fleet.Sync
			if first {
				list = []fleet.Sync{web}
			}
			r, err := s.Accept(t.Context(), anew, index(31, list), broken, alone)
			if err != nil || r.Code != "" || len(r.Refused) != len(list) {
				t.Fatalf("%+v, %v", r, err)
			}
			r, err = s.Accept(t.Context(), anew, index(31, []fleet.Sync{web}), h.fetch, alone)
			if err != nil || r.Code != "" || len(r.Refused) != 0 {
				t.Fatalf("%+v, %v", r, err)
			}
			if got := s.Held().Assemblage.Syncs[0]; got.PruneConfirmed {
				t.Errorf("what web@%d drops goes unasked: the agent was never asked about it in this lineage", got.Generation)
			}
		})
	}
}
