package session

import (
	"context"
	"slices"
	"sync"

	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/pkg/fleet"
)

// grants are the syncs whose contents an agent may read: those of the index that it was sent last, and of the one before,
// which it may still be fetching, and those of questions that are open.
type grants struct {
	mu                sync.Mutex
	current, previous []*fleet.Sync
	lent              []*fleet.Sync
}

// lend lets the agent read what a sync needs until the returned function is called.
func (g *grants) lend(s *fleet.Sync) (back func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lent = append(slices.Clone(g.lent), s)
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		i := slices.Index(g.lent, s)
		g.lent = slices.Delete(slices.Clone(g.lent), i, i+1)
	}
}

func (g *grants) add(t target) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.previous, g.current = g.current, t.assemblage.Syncs
}

// finder is for one request.
func (g *grants) finder(bundles *bundle.Cache) *finder {
	g.mu.Lock()
	current, previous, lent := g.current, g.previous, g.lent
	g.mu.Unlock()
	f := &finder{cache: bundles, whole: map[fleet.Digest]bool{}}
	for _, syncs := range [][]*fleet.Sync{current, previous, lent} {
		for _, s := range syncs {
			if !s.Policies.IsZero() {
				f.whole[s.Policies] = true
			}
			if !f.whole[s.Bundle] {
				f.whole[s.Bundle] = true
				f.bundles = append(f.bundles, s.Bundle)
			}
		}
	}
	return f
}

// finder tells whether a content is granted. It looks first where it found the last one: an agent asks for what one
// module lists, and then for what the next one does.
type finder struct {
	cache   *bundle.Cache
	whole   map[fleet.Digest]bool // bundles and policies themselves
	bundles []fleet.Digest
}

func (f *finder) find(ctx context.Context, d fleet.Digest) (bool, error) {
	if f.whole[d] {
		return true, nil
	}
	for i, b := range f.bundles {
		lists, err := f.cache.Lists(ctx, b, d)
		if err != nil {
			return false, err
		}
		if lists {
			f.bundles[0], f.bundles[i] = b, f.bundles[0]
			return true, nil
		}
	}
	return false, nil
}
