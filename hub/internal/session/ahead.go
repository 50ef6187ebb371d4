package session

import (
	"context"
	"errors"
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/pkg/fleet"
)

// sendAhead sends small new contents ahead of the index that needs them, so that the agent need not ask.
func (x *session) sendAhead(ctx context.Context, st stream, ahead []content) error {
	room := bundle.MaxDelta
	for _, c := range ahead {
		if !c.policies.IsZero() {
			if err := x.sendPolicies(ctx, st, c.policies); err != nil {
				return err
			}
		}
		if c.bundle.IsZero() {
			continue
		}
		d, err := x.server.o.Bundles.Delta(ctx, c.before, c.bundle)
		if isLost(err) {
			continue
		}
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

// isLost reports that a content cannot be had from the store. It keeps back its own module alone, of which the agent says so when it asks
// for the content: without an index nothing else would come to a cluster that has nothing yet.
func isLost(err error) bool {
	return errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt)
}

func (x *session) sendPolicies(ctx context.Context, st stream, d fleet.Digest) error {
	data, err := x.server.o.Store.Blobs().GetCompressed(ctx, d)
	if isLost(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cluster %s: policies %s: %w", x.cluster, d.Short(), err)
	}
	if len(data) > bundle.MaxDelta {
		return nil
	}
	return st.Send(&agentv1.ConnectResponse{Frame: &agentv1.ConnectResponse_BundleDelta{BundleDelta: &agentv1.BundleDelta{
		Objects: []*agentv1.Content{{Digest: d.Bytes(), Data: data}}}}})
}
