package bundle

import (
	"context"
	"errors"
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// step is a move whose contents are told with a dictionary or without one.
type step struct {
	move
	dictionary bool
}

// Patch makes one bundle of another one that an agent has, made once for all agents that make the same move. It is nil where they
// list different objects, or where it is more than MaxDelta. Without what the objects were before, it has no dictionary. The
// message is shared and must not be changed.
func (c *Cache) Patch(ctx context.Context, from, to fleet.Digest, dictionary bool) (*agentv1.BundlePatch, error) {
	s := step{move{from, to}, dictionary}
	name := fmt.Sprintf("%s%s%v", from[:], to[:], dictionary)
	return once(ctx, c, &c.patches, s, name, func(ctx context.Context) (*agentv1.BundlePatch, error) { return c.patch(ctx, s) })
}

func (c *Cache) patch(ctx context.Context, s step) (*agentv1.BundlePatch, error) {
	before, err := c.Get(ctx, s.from)
	if err != nil {
		return nil, err
	}
	after, err := c.Get(ctx, s.to)
	if err != nil {
		return nil, err
	}
	ordinals, ok := wire.PatchedOrdinals(before, after)
	if !ok {
		return nil, nil
	}
	var contents [][]byte
	var was []byte
	size, dictionary := 0, s.dictionary
	for _, o := range ordinals {
		e := after.Entries[o]
		b, err := c.blobs.Get(ctx, e.Digest)
		if err != nil {
			return nil, fmt.Errorf("bundle %s: %s: %w", s.to.Short(), e.ID, err)
		}
		if size += len(b); size > wire.MaxPatchBytes {
			return nil, nil
		}
		contents = append(contents, b)
		if !dictionary {
			continue
		}
		old, err := c.blobs.Get(ctx, before.Entries[o].Digest)
		switch {
		case errors.Is(err, fleet.ErrNotFound):
			dictionary, was = false, nil
		case err != nil:
			return nil, fmt.Errorf("bundle %s: %s: %w", s.from.Short(), e.ID, err)
		default:
			was = append(was, old...)
		}
		if len(was) > wire.MaxPatchBytes {
			dictionary, was = false, nil
		}
	}
	out, err := wire.PackPatch(ordinals, contents, was)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", s.to.Short(), err)
	}
	if patchSize(out) > MaxDelta {
		return nil, nil
	}
	return out, nil
}

func patchSize(p *agentv1.BundlePatch) int {
	return len(p.GetContents()) + 8*len(p.GetOrdinals())
}
