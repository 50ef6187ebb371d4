package session

import (
	"context"
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/pkg/fleet"
)

// sendDeltas sends small new contents ahead of the index that needs them, so that the agent need not ask. It does so only
// where it knows what the agent has: what this session has sent before, or nothing at all.
func (x *session) sendDeltas(ctx context.Context, st stream, sn snapshot) error {
	if !x.index.sentAny && x.hello.GetGeneration() != 0 {
		return nil
	}
	before := map[fleet.ModuleRef]fleet.Digest{}
	sent := map[fleet.Digest]bool{}
	for _, a := range x.index.current {
		before[a.module] = a.bundle
		sent[a.bundle], sent[a.policies] = true, true
	}
	room := bundle.MaxDelta
	for _, s := range sn.assemblage.Syncs {
		if !s.Policies.IsZero() && !sent[s.Policies] {
			sent[s.Policies] = true
			if err := x.sendPolicies(ctx, st, s.Policies); err != nil {
				return err
			}
		}
		if sent[s.Bundle] {
			continue
		}
		sent[s.Bundle] = true
		d, err := x.server.o.Bundles.Delta(ctx, before[s.Module], s.Bundle)
		if err != nil {
			return fmt.Errorf("cluster %s: %w", x.cluster, err)
		}
		if room -= bundle.Size(d); d == nil || room < 0 {
			return nil // the agent asks for the rest
		}
		if err := st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_BundleDelta{BundleDelta: d}}); err != nil {
			return err
		}
	}
	return nil
}

func (x *session) sendPolicies(ctx context.Context, st stream, d fleet.Digest) error {
	data, err := x.server.o.Store.Blobs().GetCompressed(ctx, d)
	if err != nil {
		return fmt.Errorf("cluster %s: policies %s: %w", x.cluster, d.Short(), err)
	}
	if len(data) > bundle.MaxDelta {
		return nil
	}
	return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_BundleDelta{BundleDelta: &agentv1.BundleDelta{
		Objects: []*agentv1.Content{{Digest: d.Bytes(), Data: data}}}}})
}
