package session

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// changeSome writes desired records of cluster a, and its floor, at random; all of them syncs where the fleet is plain, as most are.
func changeSome(t *testing.T, s *Server, random *rand.Rand, generation uint64, plain bool) {
	t.Helper()
	rev, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		for range random.IntN(4) {
			ref := fleet.ModuleRef{Project: "default", Name: fmt.Sprint("m", random.IntN(12))}
			key := store.DesiredKey("a", ref)
			what := random.IntN(6)
			if plain {
				what = 3
			}
			switch what {
			case 0:
				w.Delete(key)
			case 1:
				w.Put(key, &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: ref.String(), Generation: generation, Policy: fleet.DeleteDelete}})
			case 2: // not valid: it has no bundle
				w.Put(key, &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: ref.String(), Generation: generation}})
			default:
				w.Put(key, &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: ref.String(), Generation: generation, Revision: 1,
					Bundle: fleet.DigestOf(fmt.Append(nil, generation)).Bytes()}})
			}
		}
		if random.IntN(4) == 0 {
			w.Put(store.FloorKey("a"), &storev1.FloorRecord{Generation: generation, Hold: random.IntN(2) == 0})
		}
		w.Put(store.DesiredKey("b", fleet.ModuleRef{Project: "default", Name: "m0"}), &storev1.DesiredRecord{Rollout: int64(generation)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.o.Store.View(t.Context(), rev, func(store.Reader) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

// A session that reads only what has changed has the same as one that reads everything, and what did not change stays
// the same value, so that a delta says no more than what changed.
func TestOnlyWhatChangedIsReadAgain(t *testing.T) {
	s := newServer(t, &gates{})
	withCluster(t, s)
	random := rand.New(rand.NewPCG(3, 4))
	changeSome(t, s, random, 1, false)
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	before, err := x.snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.live["a"] = x
	log := s.o.Store.Feed(store.DesiredPrefix)
	told, err := log.Now()
	if err != nil {
		t.Fatal(err)
	}
	for generation := uint64(2); generation < 400; generation++ {
		changeSome(t, s, random, generation, generation > 250)
		var keys []string
		if told, err = log.Since(told.Revision); err != nil {
			t.Fatal(err)
		}
		told.Each(func(_ int64, c store.Change) bool {
			keys = append(keys, c.Key)
			return true
		})
		s.dispatch(keys)
		got, err := x.snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		whole, err := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{}).snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a, b := got.target.assemblage, whole.target.assemblage
		if a.Digest != b.Digest || a.Generation != b.Generation || a.Hold != b.Hold || !slices.Equal(got.target.syncs, whole.target.syncs) ||
			!slices.Equal(got.target.tombstones, whole.target.tombstones) {
			t.Fatalf("after %v: %+v, want %+v", keys, a, b)
		}
		changed, _ := apart(before.target.assemblage.Syncs, a.Syncs)
		for _, was := range changed {
			i := slices.IndexFunc(a.Syncs, func(now *fleet.Sync) bool { return now.Module == was.Module })
			key := store.DesiredKey("a", was.Module)
			if i >= 0 && a.Syncs[i] != was && !slices.Contains(keys, key) {
				t.Fatalf("%s was read again, %v changed", key, keys)
			}
		}
		before = got
	}
}

// TestNoChangeIsSeenWithoutThoseBeforeIt: one module is assigned what another one lets go then. The keys of both are told one by one, in
// the order of their names, and a session looks as soon as it has the first: whoever is told that the one lets go, without being told
// that the other lists it, deletes it.
func TestNoChangeIsSeenWithoutThoseBeforeIt(t *testing.T) {
	s := newServer(t, &gates{})
	withCluster(t, s)
	assign(t, s, "after", 1, "[]", "one")
	x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	if _, err := x.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.live["a"] = x
	assign(t, s, "taker", 2, "[]", "one")
	assign(t, s, "after", 3, "[]", "two")
	s.dispatch([]string{store.DesiredKey("a", fleet.ModuleRef{Project: "default", Name: "after"})})
	sn, err := x.snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(sn.target.assemblage.Syncs); n != 2 || sn.target.assemblage.Generation != 3 {
		t.Errorf("%d syncs at generation %d, want both at 3", n, sn.target.assemblage.Generation)
	}
}

// TestRemovalOfTheClusterBeforeIsNotSent: what was to be removed before another cluster took the name is not in this one, whatever the
// leader has come to by now, and what was deleted by then does not come to it. What is ordered since is, and what was deleted since it has.
func TestRemovalOfTheClusterBeforeIsNotSent(t *testing.T) {
	s := newServer(t, &gates{})
	withCluster(t, s)
	rev, err := storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		rec, _, _ := store.Get[*storev1.ClusterRecord](w, store.ClusterKey("a"))
		rec.AnewGeneration, rec.AnewTake = 5, 2
		w.Put(store.ClusterKey("a"), rec)
		for name, takes := range map[string]uint64{"before": 1, "since": 2} {
			w.Put(store.CatalogKey(fleet.ModuleRef{Project: "default", Name: name}), &storev1.CatalogRecord{Deleting: true, DeletedTakes: new(takes)})
		}
		for name, generation := range map[string]uint64{"before": 5, "since": 6} {
			ref := fleet.ModuleRef{Project: "default", Name: name}
			w.Put(store.DesiredKey("a", ref), &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: ref.String(), Generation: generation, Policy: fleet.DeleteDelete}})
		}
		for name, given := range map[string]struct {
			at      uint64
			deleted *uint64
			with    string // its catalog, that goes
		}{"deleted-before": {4, new(uint64(1)), ""}, "deleted-since": {4, new(uint64(2)), ""}, "given-since": {6, new(uint64(1)), ""}, "there": {4, nil, ""},
			"with-before": {4, nil, "before"}, "with-since": {4, nil, "since"}, "with-given-since": {6, nil, "before"}} {
			ref := fleet.ModuleRef{Project: "default", Name: name}
			m := &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name, Project: "default"}}, DeletedTakes: given.deleted}
			if given.with != "" {
				m.Module.Metadata.Origin = fleet.CatalogOrigin(given.with)
			}
			if given.deleted != nil {
				m.Deleting = fleet.DeleteDelete
			}
			w.Put(store.ModuleKey(ref), m)
			w.Put(store.DesiredKey("a", ref), &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: ref.String(), Generation: given.at, Revision: 1, Bundle: fleet.DigestOf(nil).Bytes(), Policies: fleet.DigestOf(nil).Bytes()}})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.o.Store.View(t.Context(), rev, func(store.Reader) error { return nil }); err != nil {
		t.Fatal(err)
	}
	one := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{})
	told := func() (given []string, a assemble.Listed) {
		t.Helper()
		sn, err := one.snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sn.target.assemblage.Syncs {
			given = append(given, s.Module.Name)
		}
		return given, sn.target.assemblage
	}
	given, all := told()
	if got := all.Tombstones; len(got) != 1 || got[0].Module.Name != "since" {
		t.Errorf("told to remove %v, want what was ordered since", got)
	}
	if want := []string{"deleted-since", "given-since", "there", "with-given-since", "with-since"}; !slices.Equal(given, want) {
		t.Errorf("given %q, want %q", given, want)
	}
	// Before the leader comes to the catalog somebody takes a module of it over, which so stays.
	rev, err = storetest.All(s.o.Store).Update(t.Context(), func(w store.Writer) error {
		key := store.ModuleKey(fleet.ModuleRef{Project: "default", Name: "with-before"})
		m, _, _ := store.Get[*storev1.ModuleRecord](w, key)
		m = proto.CloneOf(m)
		m.Module.Metadata.Origin = fleet.SetOrigin("mine")
		w.Put(key, m)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.o.Store.View(t.Context(), rev, func(store.Reader) error { return nil }); err != nil {
		t.Fatal(err)
	}
	one.takeDirty()
	s.live = map[fleet.ClusterName]*session{"a": one}
	s.dispatch([]string{store.CatalogKey(fleet.ModuleRef{Project: "default", Name: "before"})}) // the leader has come to it
	if one.takeDirty()&dirtyDesired == 0 {
		t.Error("it does not look again when the catalog is gone")
	}
	if given, _ := told(); !slices.Contains(given, "with-before") {
		t.Errorf("given %q, and not what another one has by now", given)
	}
}
