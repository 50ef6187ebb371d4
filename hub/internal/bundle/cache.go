// Package bundle reads bundles out of the blobs, tells what is new in one against another, and keeps what is in use of
// both. It owns the cache only; it must not know which clusters run which bundle.
package bundle

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/singleflight"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// maxEntries bounds the decoded bundles by their entries, of about 230 bytes each: two revisions of a thousand modules
// with 100 objects are 40 MB, and no bundles are ever more than 100 MB. bundleCost is what a bundle takes besides.
const (
	maxEntries = 500_000
	bundleCost = 2
)

// Cache decodes bundles by digest. It is safe for concurrent use.
type Cache struct {
	blobs store.Blobs
	mu    sync.Mutex
	known map[fleet.Digest]fleet.Bundle
	lists map[fleet.Digest][]fleet.Digest // what each known bundle lists, in order; made when somebody asks
	order []fleet.Digest
	size  int // entries

	deltas  kept[move, *agentv1.BundleDelta] // nil: too large
	patches kept[step, *agentv1.BundlePatch] // nil: there is none, or it is too large
	making  singleflight.Group
}

// New makes a cache over blobs.
func New(blobs store.Blobs) *Cache {
	return &Cache{blobs: blobs, known: map[fleet.Digest]fleet.Bundle{}, lists: map[fleet.Digest][]fleet.Digest{},
		deltas: keep[move](Size), patches: keep[step](patchSize)}
}

// Known returns the bundle if it is in memory.
func (c *Cache) Known(d fleet.Digest) (fleet.Bundle, bool) { return c.lookup(d) }

// Get returns the bundle; its entries are shared and must not be changed.
func (c *Cache) Get(ctx context.Context, d fleet.Digest) (fleet.Bundle, error) {
	if b, ok := c.lookup(d); ok {
		return b, nil
	}
	raw, err := c.blobs.Get(ctx, d)
	if err != nil {
		return fleet.Bundle{}, fmt.Errorf("bundle %s: %w", d.Short(), err)
	}
	b, err := assemble.DecodeBundle(raw)
	if err != nil {
		return fleet.Bundle{}, fmt.Errorf("bundle %s: %w", d.Short(), err)
	}
	c.add(b)
	return b, nil
}

// Content returns what a digest names, whatever it is. It is not kept.
func (c *Cache) Content(ctx context.Context, d fleet.Digest) ([]byte, error) {
	return c.blobs.Get(ctx, d)
}

// Lists reports whether a bundle lists the content of an object.
func (c *Cache) Lists(ctx context.Context, bundle, content fleet.Digest) (bool, error) {
	c.mu.Lock()
	contents, made := c.lists[bundle]
	c.mu.Unlock()
	if !made {
		b, err := c.Get(ctx, bundle)
		if err != nil {
			return false, err
		}
		contents = sorted(b)
		c.mu.Lock()
		if _, known := c.known[bundle]; known {
			c.lists[bundle] = contents
		}
		c.mu.Unlock()
	}
	_, found := slices.BinarySearchFunc(contents, content, compare)
	return found, nil
}

func sorted(b fleet.Bundle) []fleet.Digest {
	out := make([]fleet.Digest, len(b.Entries))
	for i, e := range b.Entries {
		out[i] = e.Digest
	}
	slices.SortFunc(out, compare)
	return out
}

func compare(a, b fleet.Digest) int { return bytes.Compare(a[:], b[:]) }

func (c *Cache) lookup(d fleet.Digest) (fleet.Bundle, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.known[d]
	return b, ok
}

func (c *Cache) add(b fleet.Bundle) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.known[b.Digest]; ok {
		return
	}
	c.size += cost(b)
	for c.size > maxEntries && len(c.order) > 0 {
		c.size -= cost(c.known[c.order[0]])
		delete(c.known, c.order[0])
		delete(c.lists, c.order[0])
		c.order = c.order[1:]
	}
	c.known[b.Digest] = b
	c.order = append(c.order, b.Digest)
}

func cost(b fleet.Bundle) int { return len(b.Entries) + bundleCost }
