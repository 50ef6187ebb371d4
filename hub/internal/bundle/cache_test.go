package bundle

import (
	"context"
	"fmt"
	"testing"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// source counts reads of contents that it makes up.
type source struct {
	store.Blobs
	contents map[fleet.Digest][]byte
	reads    int
}

func (s *source) Get(_ context.Context, d fleet.Digest) ([]byte, error) {
	s.reads++
	return s.contents[d], nil
}

func (s *source) GetCompressed(ctx context.Context, d fleet.Digest) ([]byte, error) {
	return s.Get(ctx, d) // whatever its form
}

func (s *source) bundle(name string, objects int) fleet.Digest {
	var entries []fleet.BundleEntry
	for i := range objects {
		entries = append(entries, fleet.BundleEntry{Digest: fleet.Digest{1}, Version: "v1", ID: fleet.ObjectID{Kind: "ConfigMap", Name: fmt.Sprintf("%s-%d", name, i)}})
	}
	d, content := assemble.BundleDigest(entries)
	s.contents[d] = content
	return d
}

// A fleet of many small modules stays in the cache; a few huge bundles do not fill the memory.
func TestCacheIsBoundedByEntries(t *testing.T) {
	s := &source{contents: map[fleet.Digest][]byte{}}
	c := New(s)
	var small []fleet.Digest
	for i := range 3000 {
		small = append(small, s.bundle(fmt.Sprintf("m%d", i), 3))
	}
	for range 2 {
		for _, d := range small {
			if b, err := c.Get(t.Context(), d); err != nil || len(b.Entries) != 3 {
				t.Fatalf("%v, %v", b, err)
			}
		}
	}
	if s.reads != len(small) {
		t.Errorf("%d reads for %d bundles", s.reads, len(small))
	}
	for i := range 30 {
		if _, err := c.Get(t.Context(), s.bundle(fmt.Sprintf("huge%d", i), assemble.MaxBundleObjects)); err != nil {
			t.Fatal(err)
		}
	}
	total := 0
	for _, b := range c.known {
		total += cost(b)
	}
	if total > maxEntries || total != c.size || len(c.known) != len(c.order) || len(c.known) < 20 {
		t.Errorf("%d entries in %d bundles, counted %d, ordered %d", total, len(c.known), c.size, len(c.order))
	}
}
