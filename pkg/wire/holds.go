package wire

import (
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

func holdsToProto(in []fleet.ObjectHold) (out []*agentv1.ObjectHold) {
	for _, h := range in[:min(len(in), MaxHolds)] {
		out = append(out, &agentv1.ObjectHold{Group: h.ID.Group, Version: h.Version, Kind: h.ID.Kind, Namespace: h.ID.Namespace, Name: h.ID.Name,
			Reason: CutText(h.Reason), By: CutText(h.By), SinceMillis: millis(h.Since), UntilMillis: millis(h.Until), Unread: CutText(h.Unread)})
	}
	return out
}

func holdsFrom(in []*agentv1.ObjectHold) (out []fleet.ObjectHold, err error) {
	if len(in) > MaxHolds {
		return nil, fleet.Invalidf("holds", "%d are too many; at most %d", len(in), MaxHolds)
	}
	for i, h := range in {
		for _, part := range []string{h.GetGroup(), h.GetVersion(), h.GetKind(), h.GetNamespace(), h.GetName()} {
			if !partOfIdentity(part) {
				return nil, fleet.Invalidf(fmt.Sprintf("holds[%d]", i), "%.80q is no part of an identity", part)
			}
		}
		out = append(out, fleet.ObjectHold{ID: fleet.ObjectID{Group: h.GetGroup(), Kind: h.GetKind(), Namespace: h.GetNamespace(), Name: h.GetName()},
			Version: h.GetVersion(), Reason: CutText(h.GetReason()), By: CutText(h.GetBy()), Since: fromMillis(h.GetSinceMillis()),
			Until: fromMillis(h.GetUntilMillis()), Unread: CutText(h.GetUnread())})
	}
	return out, nil
}
