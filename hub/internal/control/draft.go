package control

import (
	"context"
	"sync"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// Draft is what a put is going to list that is queued behind a rollout, if its source is all in the module: others are fetched
// when its turn comes, and may say something else by then.
func (c *Controller) Draft(ctx context.Context, m *wire.Module, spec fleet.Digest) ([]fleet.BundleEntry, bool) {
	if m.Source.GetInline() == nil {
		return nil, false
	}
	if entries, known := c.drafts.get(spec); known {
		return entries, entries != nil
	}
	var entries []fleet.BundleEntry
	if x, err := c.makeObjects(ctx, m); err == nil {
		entries = append([]fleet.BundleEntry{}, manifest.ToBundle(x.objects)...) // not nil, should there be none
	}
	c.drafts.put(spec, entries)
	return entries, entries != nil
}

// newSuccession is the succession of a module, with what is known of puts that are queued.
func (c *Controller) newSuccession(ref fleet.ModuleRef) *record.Succession {
	x := record.NewSuccession(c.o.Bundles, ref)
	x.Drafts = c.Draft
	return x
}

// drafts are renderings by the digest of the spec; nil of one that cannot be rendered. All are dropped when there are many: few
// modules have a queue.
type drafts struct {
	mu   sync.Mutex
	list map[fleet.Digest][]fleet.BundleEntry
}

const maxDrafts = 64

func (x *drafts) get(spec fleet.Digest) (entries []fleet.BundleEntry, known bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	entries, known = x.list[spec]
	return entries, known
}

func (x *drafts) put(spec fleet.Digest, entries []fleet.BundleEntry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.list == nil || len(x.list) >= maxDrafts {
		x.list = map[fleet.Digest][]fleet.BundleEntry{}
	}
	x.list[spec] = entries
}
