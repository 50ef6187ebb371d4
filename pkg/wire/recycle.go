package wire

import (
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// RecyclesFromProto validates the orders to delete trackers of a sync: they are in order, each revision once.
func RecyclesFromProto(in []*agentv1.Recycle) ([]fleet.Recycle, error) {
	if len(in) == 0 {
		return nil, nil
	}
	var bad error
	out := make([]fleet.Recycle, len(in))
	for i, raw := range in {
		var err error
		switch {
		case raw.GetRevision() < 0:
			err = fleet.Invalidf("revision", "%d is below 0", raw.GetRevision())
		case i > 0 && raw.GetRevision() <= in[i-1].GetRevision():
			err = fleet.Invalid("revision", "is listed twice or out of order")
		default:
			err = checkKeys(raw.GetKeys())
		}
		if err != nil && bad == nil {
			bad = fleet.Join(fmt.Sprintf("recycles[%d]", i), err)
		}
		out[i] = fleet.Recycle{Revision: raw.GetRevision(), Keys: raw.GetKeys()}
	}
	return out, bad
}

// RecyclesToProto is the wire form of orders to delete trackers.
func RecyclesToProto(list []fleet.Recycle) []*agentv1.Recycle {
	if len(list) == 0 {
		return nil
	}
	out := make([]*agentv1.Recycle, len(list))
	for i, x := range list {
		out[i] = &agentv1.Recycle{Revision: x.Revision, Keys: x.Keys}
	}
	return out
}
