package control

import (
	"context"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// Propose renders a module as a put of it would, and stores what agents need to say what it would do: nobody refers to that, so that
// it is collected as garbage. Nothing else is changed.
func (c *Controller) Propose(ctx context.Context, m *wire.Module, spec fleet.Digest) (record.Proposal, error) {
	x, err := c.makeObjects(ctx, m)
	if err != nil {
		return record.Proposal{}, err
	}
	r, err := c.keep(ctx, m, x)
	if err != nil {
		return record.Proposal{}, err
	}
	out := record.Proposal{Plan: record.Plan(spec, r.named(), r.policies)}
	for i, v := range r.variants {
		out.Variants = append(out.Variants, record.Proposed{Overrides: v.overrides, Capabilities: v.capabilities, Bundle: v.bundle, Policies: v.policies, Entries: manifest.ToBundle(x.variants[i].objects),
			Waits: m.WavesOf(x.variants[i].objects) != ""})
	}
	if !r.asks {
		return out, nil
	}
	out.Can = map[fleet.ClusterName]fleet.Digest{}
	return out, c.view(ctx, func(r store.Reader) error {
		for _, cl := range record.Selected(r, m) {
			out.Can[cl.Name] = record.Digest(record.CapabilitiesSum(r, cl.Name).GetDigest())
		}
		return nil
	})
}
