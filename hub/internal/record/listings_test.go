package record

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// crowd is a fleet whose assignments change at random.
type crowd struct {
	t        *testing.T
	store    store.Store
	library  library
	bundles  []fleet.Digest
	clusters int
	modules  int
	gen      uint64
	shared   *Shared
	random   *rand.Rand
}

func newCrowd(t *testing.T, clusters, modules int) *crowd {
	x := &crowd{t: t, store: storetest.New(t), library: library{}, shared: NewShared(), clusters: clusters, modules: modules, random: rand.New(rand.NewPCG(1, 2))}
	for i := range modules {
		own := fmt.Sprint("own-", i)
		x.bundles = append(x.bundles, x.library.add(own), x.library.add(own, "shared"), x.library.add(own, fmt.Sprint("own-", i+1)))
	}
	x.bundles = append(x.bundles, x.library.add("of-${ZONE}"), fleet.DigestOf([]byte("lost")))
	return x
}

func (x *crowd) module(i int) fleet.ModuleRef {
	return fleet.ModuleRef{Project: "default", Name: fmt.Sprint("m", i)}
}

func (x *crowd) cluster(i int) fleet.ClusterName { return fleet.ClusterName(fmt.Sprint("c", i)) }

// change assigns n modules anew, each in some cluster: another bundle, a tombstone, or nothing.
func (x *crowd) change(n int) {
	x.t.Helper()
	rev, err := x.store.Update(x.t.Context(), func(w store.Writer) error {
		for range n {
			ref := x.module(x.random.IntN(x.modules))
			key := store.DesiredKey(x.cluster(x.random.IntN(x.clusters)), ref)
			x.gen++
			switch x.random.IntN(6) {
			case 0:
				w.Delete(key)
			case 1:
				w.Put(key, &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: ref.String(), Generation: x.gen, Policy: fleet.DeleteDelete}})
			default:
				s := fleet.Sync{Module: ref, Generation: x.gen, Objects: 1, Bundle: x.bundles[x.random.IntN(len(x.bundles))],
					Values: map[string]string{"ZONE": fmt.Sprint("z", x.random.IntN(2))}}
				if owner := x.module(x.random.IntN(x.modules)); owner != ref && x.random.IntN(3) == 0 {
					s.Yields = []fleet.Yield{{Owner: owner, Since: x.gen, Ordinals: []int{0}}}
				}
				w.Put(key, &storev1.DesiredRecord{Sync: wire.SyncToProto(s)})
			}
		}
		return nil
	})
	if err != nil {
		x.t.Fatal(err)
	}
	if err := x.store.View(x.t.Context(), rev, func(store.Reader) error { return nil }); err != nil {
		x.t.Fatal(err)
	}
}

// forgetful is a library that has nothing of some bundles, as a transaction that is going to be run again.
type forgetful struct {
	Bundles
	random *rand.Rand
}

func (f forgetful) Get(ctx context.Context, d fleet.Digest) (fleet.Bundle, error) {
	if f.random.IntN(2) == 0 {
		return fleet.Bundle{}, nil
	}
	return f.Bundles.Get(ctx, d)
}

// compare holds what the index answers under a view, and what contests know from one another, against a search of all that the
// cluster has.
func (x *crowd) compare(r store.Reader, index *Listings) (narrowed bool) {
	x.t.Helper()
	ref, c := x.module(x.random.IntN(x.modules)), x.cluster(x.random.IntN(x.clusters))
	b, _ := readable(x.t.Context(), x.library, x.bundles[x.random.IntN(len(x.bundles))])
	searching, asking := NewContest(x.library, ref, b), NewContest(x.library, ref, b)
	values := map[string]string{"ZONE": "z1"}
	vain := forgetful{x.library, x.random}
	of, _ := vain.Get(x.t.Context(), b.Digest)
	before := NewContest(vain, ref, of)
	before.Listings, before.Shared = index, x.shared
	if _, err := before.In(x.t.Context(), r, c, x.gen, values); err != nil {
		x.t.Fatal(err)
	}
	asking.Listings, asking.Shared = index, x.shared
	want, err1 := searching.In(x.t.Context(), r, c, x.gen, values)
	got, err2 := asking.In(x.t.Context(), r, c, x.gen, values)
	if err1 != nil || err2 != nil || !reflect.DeepEqual(got, want) {
		x.t.Fatalf("%s in %s at %d: %+v %v, want %+v %v", ref, c, r.Revision(), got, err2, want, err1)
	}
	if got, want := index.Waiting(r, c, ref), waitFor(r, c, ref); len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
		x.t.Fatalf("for %s in %s at %d wait %v, want %v", ref, c, r.Revision(), got, want)
	}
	_, narrowed = asking.few(context.Background(), r, c)
	return narrowed
}

// The index names whoever lists an object of a bundle, or waits for a module, in any view: the newest, one that is held while the
// fleet changes, and one from before it was built.
func TestListingsNameAllThatASearchFinds(t *testing.T) {
	x := newCrowd(t, 3, 12)
	index := NewListings(x.store)
	x.change(40)
	narrowed := 0
	err := x.store.View(t.Context(), 0, func(first store.Reader) error {
		for range 300 {
			x.change(1 + x.random.IntN(3))
			err := x.store.View(t.Context(), 0, func(r store.Reader) error {
				x.change(x.random.IntN(3))
				for range 5 {
					if x.compare(r, index) {
						narrowed++
					}
				}
				x.compare(first, index)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if narrowed < 300 {
		t.Errorf("%d of 1500 looks were narrowed by the index", narrowed)
	}
}

// An index that was not asked for longer than the feed keeps its changes, or that has forgotten what a view still has, answers
// nothing wrong.
func TestListingsThatFellBehind(t *testing.T) {
	x := newCrowd(t, 3, 12)
	index := NewListings(x.store)
	x.change(40)
	if err := x.store.View(t.Context(), 0, func(old store.Reader) error {
		x.compare(old, index)
		for range 200 { // of single changes, each of which may end a use
			for range 30 {
				x.change(1)
			}
			x.compare(old, index)
		}
		if index.since <= old.Revision() {
			t.Error("nothing was forgotten")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		x.change(100)
	}
	if err := x.store.View(t.Context(), 0, func(r store.Reader) error {
		for range 50 {
			x.compare(r, index)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
