package wire

import (
	"fmt"
	"slices"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// maxHeirKeys is two for each object: where only the cluster knows whether a kind has namespaces, an object has two keys.
const maxHeirKeys = 2 * assemble.MaxBundleObjects

// checkKeys checks keys of objects: there are some, in order.
func checkKeys(keys []uint64) error {
	switch {
	case len(keys) == 0:
		return fleet.Invalid("keys", "are required")
	case len(keys) > maxHeirKeys:
		return fleet.Invalidf("keys", "%d are too many; at most %d", len(keys), maxHeirKeys)
	case !slices.IsSorted(keys):
		return fleet.Invalid("keys", "are out of order")
	}
	return nil
}

// checkOrder checks keys of objects of which there may be none.
func checkOrder(field string, keys []uint64) error {
	if len(keys) > maxHeirKeys || !slices.IsSorted(keys) {
		return fleet.Invalidf(field, "%d keys are too many, or out of order; at most %d", len(keys), maxHeirKeys)
	}
	return nil
}

// HeirsFromProto validates the heirs of a sync or a tombstone: they are in order, each once. Beside an error stands what can be read.
func HeirsFromProto(in []*agentv1.Heir) ([]fleet.Heir, error) {
	if len(in) == 0 {
		return nil, nil
	}
	var bad error
	out := make([]fleet.Heir, len(in))
	for i, raw := range in {
		m, err := moduleFrom(raw.GetModule())
		switch {
		case err != nil:
		case i > 0 && raw.GetModule() <= in[i-1].GetModule():
			err = fleet.Invalid("module", "is listed twice or out of order")
		default:
			err = checkKeys(raw.GetKeys())
		}
		if err != nil && bad == nil {
			bad = fleet.Join(fmt.Sprintf("heirs[%d]", i), err)
		}
		out[i] = fleet.Heir{Module: m, Unknown: raw.GetUnknown(), Keys: raw.GetKeys()}
	}
	return out, bad
}

// HeirsToProto is the wire form of heirs.
func HeirsToProto(list []fleet.Heir) []*agentv1.Heir {
	if len(list) == 0 {
		return nil
	}
	out := make([]*agentv1.Heir, len(list))
	for i, h := range list {
		out[i] = &agentv1.Heir{Module: h.Module.String(), Unknown: h.Unknown, Keys: h.Keys}
	}
	return out
}
