package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// unscanned is a view of which nobody reads more than the records that he names.
type unscanned struct {
	store.Reader
	t *testing.T
}

func (r unscanned) Scan(prefix string, fn func(store.Entry) bool) {
	if strings.HasSuffix(prefix, "/") {
		r.t.Errorf("all of %s was read", prefix)
	}
	r.Reader.Scan(prefix, fn)
}

// TestEachLookHasAllThatItsViewHas: while others write, a session that reads only what changed has under each view what is there, the
// changes of many records and of several commits together.
func TestEachLookHasAllThatItsViewHas(t *testing.T) {
	s := newServer(t, &gates{})
	withCluster(t, s)
	known := desired{log: s.o.Log}
	look := func(r store.Reader) error {
		if known.at > 0 {
			r = unscanned{r, t}
		}
		known.follow(r, "a", &s.changes)
		got := known.as(false, 0).assemblage
		all := desired{log: s.o.Log}
		if u, partial := r.(unscanned); partial {
			r = u.Reader
		}
		all.readAll(r, "a")
		if want := all.as(false, 0).assemblage; got.Digest != want.Digest || got.Generation != want.Generation || len(got.Tombstones) != len(want.Tombstones) {
			t.Errorf("revision %d: %+v, want %+v", r.Revision(), got, want)
		}
		if agents := assemble.Digest(plain(got)); got.Digest != agents {
			t.Errorf("revision %d: the digest is %s, that of an agent %s", r.Revision(), got.Digest, agents)
		}
		return nil
	}
	written, looked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looked)
		for last := false; !last; {
			select {
			case <-written:
				last = true
			default:
			}
			if err := s.o.Store.View(context.Background(), 0, look); err != nil {
				t.Error(err)
			}
		}
	}()
	random := rand.New(rand.NewPCG(5, 6))
	for generation := uint64(1); generation < 300; generation++ {
		changeSome(t, s, random, generation, false)
	}
	close(written)
	<-looked
}

// plain is an assemblage that shares nothing.
func plain(a assemble.Listed) (out fleet.Assemblage) {
	for _, x := range a.Syncs {
		out.Syncs = append(out.Syncs, *x)
	}
	for _, x := range a.Tombstones {
		out.Tombstones = append(out.Tombstones, *x)
	}
	return out
}

// at is a view of a revision.
type at struct {
	store.Reader
	revision int64
}

func (r at) Revision() int64 { return r.revision }

// What is kept of the changes is all between two views, or it is not said to be.
func TestChangesAreAllOrNotKnown(t *testing.T) {
	x := &changes{}
	for revision := int64(1); revision <= 3*maxChanges; revision++ {
		for n := range revision%3 + 1 { // some commits have several
			x.add(revision, fmt.Sprintf("%sc%d/p/m%d", store.DesiredPrefix, revision%7, n))
		}
		x.after = revision
	}
	answered := 0
	for from := int64(0); from < 3*maxChanges; from += 997 {
		for to := from; to <= 3*maxChanges+1; to += 1009 {
			keys, known := x.between("c3", from, at{revision: min(to, 3*maxChanges)})
			if !known {
				continue
			}
			answered++
			want := 0
			for revision := from + 1; revision <= to; revision++ {
				if revision%7 == 3 {
					want += int(revision%3) + 1
				}
			}
			if len(keys) != want {
				t.Fatalf("from %d to %d: %d changes, want %d", from, to, len(keys), want)
			}
		}
	}
	if _, known := x.between("c3", 2*maxChanges+maxChanges/2, at{revision: 3 * maxChanges}); !known || answered == 0 {
		t.Error("the newest changes are not known")
	}
	if _, known := x.between("c3", 1, at{revision: 3 * maxChanges}); known {
		t.Error("the oldest changes are said to be known")
	}
	if _, known := x.between("c3", 3*maxChanges, at{revision: 3*maxChanges - 1}); known {
		t.Error("what an older view has is said to be known")
	}
}

// A session that missed more than is kept reads everything.
func TestWhoMissedTooMuchReadsAll(t *testing.T) {
	s := newServer(t, &gates{})
	withCluster(t, s)
	assign(t, s, "web", 1, "[]", "one")
	known := desired{log: s.o.Log}
	follow := func() []*fleet.Sync {
		if err := s.o.Store.View(t.Context(), 0, func(r store.Reader) error {
			known.follow(r, "a", &s.changes)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return known.as(false, 0).assemblage.Syncs
	}
	before := follow()
	assign(t, s, "api", 2, "[]", "two")
	if err := s.changes.follow(); err != nil {
		t.Fatal(err)
	}
	s.changes.recent, s.changes.since = changed{}, s.changes.after // as if there had been more since than are kept
	now := follow()
	if len(now) != 2 || !slices.Contains(now, before[0]) {
		t.Errorf("%v, want api and what web was", now)
	}
}
