package bundle

import (
	"context"
	"fmt"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
)

const (
	// MaxDelta is how many bytes of new contents, compressed, a delta carries (DESIGN §5).
	MaxDelta = 64 << 10
	// maxKept bounds the deltas in memory, by their bytes, and so the patches.
	maxKept = 16 << 20
	// keptCost is what one takes besides.
	keptCost = 512
)

// kept are messages that were made and are made again only when they were too many, the oldest first to go.
type kept[K comparable, V any] struct {
	of    map[K]V
	order []K
	bytes int
	size  func(V) int
}

func keep[K comparable, V any](size func(V) int) kept[K, V] {
	return kept[K, V]{of: map[K]V{}, size: size}
}

func (k *kept[K, V]) add(key K, v V) {
	k.bytes += keptCost + k.size(v)
	for k.bytes > maxKept && len(k.order) > 0 {
		k.bytes -= keptCost + k.size(k.of[k.order[0]])
		delete(k.of, k.order[0])
		k.order = k.order[1:]
	}
	k.of[key] = v
	k.order = append(k.order, key)
}

// makeTime is how long a message may be in the making, whoever waits for it.
const makeTime = time.Minute

// once is what is kept under a key, or else what is made now, for all who want it meanwhile: that the first of them goes is nothing to the others.
func once[K comparable, V any](ctx context.Context, c *Cache, k *kept[K, V], key K, name string, make func(context.Context) (V, error)) (V, error) {
	c.mu.Lock()
	v, known := k.of[key]
	c.mu.Unlock()
	if known {
		return v, nil
	}
	making := c.making.DoChan(name, func() (any, error) {
		own, cancel := context.WithTimeout(context.WithoutCancel(ctx), makeTime)
		defer cancel()
		var v V
		if err := guard.Run(func() (err error) { v, err = make(own); return err }); err != nil { // a panic here would end the process
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if _, known := k.of[key]; !known {
			k.add(key, v)
		}
		return v, nil
	})
	var none V
	select {
	case <-ctx.Done():
		return none, ctx.Err()
	case made := <-making:
		if made.Err != nil {
			return none, made.Err
		}
		return made.Val.(V), nil
	}
}

// move is from one bundle to another; the zero digest is nothing.
type move struct{ from, to fleet.Digest }

// Delta is what is new in a bundle against another one, made once for all agents that make the same move. It is nil where
// that is more than MaxDelta. The message is shared and must not be changed.
func (c *Cache) Delta(ctx context.Context, from, to fleet.Digest) (*agentv1.BundleDelta, error) {
	m := move{from, to}
	return once(ctx, c, &c.deltas, m, string(from[:])+string(to[:]), func(ctx context.Context) (*agentv1.BundleDelta, error) { return c.delta(ctx, m) })
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

// Size is how many bytes of contents a delta carries; none is 0.
func Size(d *agentv1.BundleDelta) int {
	n := len(d.GetManifest())
	for _, o := range d.GetObjects() {
		n += len(o.GetData())
	}
	return n
}
