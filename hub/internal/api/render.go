package api

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/wire"
)

// RenderModule renders a module as a put of it would, and sends its objects.
func (a *API) RenderModule(req *towlinev1.RenderModuleRequest, st grpc.ServerStreamingServer[towlinev1.RenderModuleResponse]) error {
	ctx := st.Context()
	m, err := readModule(req.GetModule())
	if err != nil {
		return err
	}
	in, _, err := a.settle(ctx, m, req.GetModule())
	if err != nil {
		return named("module", m.Ref.Display(), err)
	}
	p, err := a.propose(ctx, m, in)
	if err != nil {
		return named("module", m.Ref.Display(), err)
	}
	put, err := a.valuesFor(ctx, m, p, req.GetCluster())
	if err != nil {
		return named("module", m.Ref.Display(), err)
	}
	for _, e := range p.Entries {
		raw, err := a.o.Store.Blobs().Get(ctx, e.Digest)
		if err == nil {
			raw, err = masked(e.ID, raw)
		}
		if err == nil {
			raw, err = put(raw)
		}
		if err != nil {
			return named("module", m.Ref.Display(), fmt.Errorf("%s: %w", e.ID, err))
		}
		if err := st.Send(&towlinev1.RenderModuleResponse{Object: raw}); err != nil {
			return err
		}
	}
	return nil
}

// valuesFor puts the values of a cluster into an object; without a cluster placeholders stay.
func (a *API) valuesFor(ctx context.Context, m *wire.Module, p record.Proposal, name string) (func([]byte) ([]byte, error), error) {
	if name == "" {
		return func(raw []byte) ([]byte, error) { return raw, nil }, nil
	}
	var values map[string]string
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) (err error) {
		for _, rec := range record.Clusters(r) {
			c := record.Cluster(rec)
			if string(c.Name) != name || rec.GetRemoving() != "" {
				continue
			}
			if !assemble.Places(m.Placement, c, record.Has(r, c.Name, m.Ref)) {
				return fleet.Invalidf("cluster", "the placement does not select %q", name)
			}
			values, err = assemble.Values(m.Bindings, c)
			return err
		}
		return fleet.Errorf(fleet.ErrNotFound, "cluster %s: does not exist", name)
	}); err != nil {
		return nil, err
	}
	content, err := a.o.Store.Blobs().Get(ctx, p.Policies)
	if err != nil {
		return nil, err
	}
	set, err := wire.PolicySetFromContent(content)
	if err != nil {
		return nil, err
	}
	return func(raw []byte) ([]byte, error) {
		obj, err := manifest.Decode(raw)
		if err != nil {
			return nil, err
		}
		if err := manifest.Substitute(obj, values, set.Substitution, manifest.MaxObjectBytes-len(raw)); err != nil {
			return nil, err
		}
		return manifest.Canonical(obj), nil
	}, nil
}
