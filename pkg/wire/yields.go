package wire

import (
	"fmt"
	"slices"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// YieldsFromProto validates the yields of a sync: they are in order, no object is in two, and none is the sync's own.
func YieldsFromProto(in *agentv1.Sync) ([]fleet.Yield, error) {
	if len(in.GetYields()) == 0 {
		return nil, nil
	}
	var bad error
	out := make([]fleet.Yield, len(in.GetYields()))
	taken := map[int]bool{}
	for i, raw := range in.GetYields() {
		y, err := yieldFromProto(raw, in)
		if err == nil && i > 0 && assemble.CompareYields(out[i-1], y) >= 0 {
			err = fleet.Invalid("owner", "is listed twice or out of order")
		}
		for _, o := range y.Ordinals {
			if taken[o] && err == nil {
				err = fleet.Invalidf("ordinals", "%d is listed twice", o)
			}
			taken[o] = true
		}
		if err != nil && bad == nil {
			bad = fleet.Join(fmt.Sprintf("yields[%d]", i), err)
		}
		out[i] = y
	}
	return out, bad
}

// yieldFromProto reads one. Beside an error stands what can be read.
func yieldFromProto(in *agentv1.Yield, of *agentv1.Sync) (y fleet.Yield, bad error) {
	owner, err := moduleFrom(in.GetOwner())
	y = fleet.Yield{Owner: owner, Since: in.GetSince(), Ordinals: make([]int, len(in.GetOrdinals()))}
	switch {
	case err != nil:
		bad = err
	case in.GetOwner() == of.GetModule():
		bad = fleet.Invalid("owner", "is the sync's own module")
	case in.GetSince() == 0:
		bad = fleet.Invalid("since", "is required")
	case len(in.GetOrdinals()) == 0:
		bad = fleet.Invalid("ordinals", "are required")
	}
	for i, o := range in.GetOrdinals() {
		if bad == nil && (o >= of.GetObjects() || i > 0 && o <= in.GetOrdinals()[i-1]) {
			bad = fleet.Invalidf("ordinals", "%d is out of order, or not in the bundle", o)
		}
		y.Ordinals[i] = int(o)
	}
	for i, o := range in.GetEnding() {
		if _, yielded := slices.BinarySearch(y.Ordinals, int(o)); bad == nil && (!yielded || i > 0 && o <= in.GetEnding()[i-1]) {
			bad = fleet.Invalidf("ending", "%d is out of order, or none of the ordinals", o)
		}
		y.Ending = append(y.Ending, int(o))
	}
	return y, bad
}

// YieldsToProto is the wire form of a sync's yields.
func YieldsToProto(list []fleet.Yield) []*agentv1.Yield {
	var out []*agentv1.Yield
	for _, y := range list {
		raw := &agentv1.Yield{Owner: y.Owner.String(), Since: y.Since}
		for _, o := range y.Ordinals {
			raw.Ordinals = append(raw.Ordinals, uint32(o))
		}
		for _, o := range y.Ending {
			raw.Ending = append(raw.Ending, uint32(o))
		}
		out = append(out, raw)
	}
	return out
}
