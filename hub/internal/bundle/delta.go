package bundle

import (
	"context"
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

const (
	// MaxDelta is how many bytes of new contents, compressed, a delta carries (DESIGN §5).
	MaxDelta = 64 << 10
	// maxDeltas bounds the deltas in memory, by their bytes.
	maxDeltas = 16 << 20
	// deltaCost is what a delta takes besides.
	deltaCost = 512
)

// move is from one bundle to another; the zero digest is nothing.
type move struct{ from, to fleet.Digest }

// Delta is what is new in a bundle against another one, made once for all agents that make the same move. It is nil where
// that is more than MaxDelta. The message is shared and must not be changed.
func (c *Cache) Delta(ctx context.Context, from, to fleet.Digest) (*agentv1.BundleDelta, error) {
	m := move{from, to}
	c.mu.Lock()
	d, known := c.deltas[m]
	c.mu.Unlock()
	if known {
		return d, nil
	}
	made, err, _ := c.making.Do(string(from[:])+string(to[:]), func() (any, error) {
		d, err := c.delta(ctx, m)
		if err == nil {
			c.keepDelta(m, d)
		}
		return d, err
	})
	if err != nil {
		return nil, err
	}
	return made.(*agentv1.BundleDelta), nil
}

func (c *Cache) delta(ctx context.Context, m move) (*agentv1.BundleDelta, error) {
	had := map[fleet.Digest]bool{}
	if !m.from.IsZero() {
		b, err := c.Get(ctx, m.from)
		if err != nil {
			return nil, err
		}
		for _, e := range b.Entries {
			had[e.Digest] = true
		}
	}
	b, err := c.Get(ctx, m.to)
	if err != nil {
		return nil, err
	}
	out := &agentv1.BundleDelta{FromBundle: m.from.Bytes(), ToBundle: m.to.Bytes()}
	if out.Manifest, err = c.blobs.GetCompressed(ctx, m.to); err != nil {
		return nil, fmt.Errorf("bundle %s: %w", m.to.Short(), err)
	}
	size := len(out.Manifest)
	for _, e := range b.Entries {
		if had[e.Digest] {
			continue
		}
		had[e.Digest] = true
		data, err := c.blobs.GetCompressed(ctx, e.Digest)
		if err != nil {
			return nil, fmt.Errorf("bundle %s: %s: %w", m.to.Short(), e.ID, err)
		}
		if size += len(data); size > MaxDelta {
			return nil, nil
		}
		out.Objects = append(out.Objects, &agentv1.Content{Digest: e.Digest.Bytes(), Data: data})
	}
	return out, nil
}

func (c *Cache) keepDelta(m move, d *agentv1.BundleDelta) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deltaBytes += deltaCost + Size(d)
	for c.deltaBytes > maxDeltas && len(c.moves) > 0 {
		c.deltaBytes -= deltaCost + Size(c.deltas[c.moves[0]])
		delete(c.deltas, c.moves[0])
		c.moves = c.moves[1:]
	}
	c.deltas[m] = d
	c.moves = append(c.moves, m)
}

// Size is how many bytes of contents a delta carries; none is 0.
func Size(d *agentv1.BundleDelta) int {
	n := len(d.GetManifest())
	for _, o := range d.GetObjects() {
		n += len(o.GetData())
	}
	return n
}
