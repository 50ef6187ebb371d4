package wire

import (
	"fmt"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// Stopped reports that one of the holds, as the API lists them, lets a rollout pass the cluster by at that time, and until when; zero:
// until somebody ends it. What annotations and a policy in the cluster say counts while its agent is connected, as with the hub.
func Stopped(c *towlinev1.Cluster, ref fleet.ModuleRef, holds []*towlinev1.Hold, connected bool, at time.Time) (until time.Time, stopped bool) {
	if connected && frozenThere(c) {
		return time.Time{}, true
	}
	for _, h := range holds {
		switch {
		case !freezes(h, ref, c.GetMetadata().GetName()), h.GetSource() == fleet.HoldOfAnnotation && !connected:
		case h.GetUntil() == nil:
			return time.Time{}, true
		case !h.GetUntil().AsTime().Before(at):
			stopped = true
			if end := h.GetUntil().AsTime(); end.After(until) {
				until = end
			}
		}
	}
	return until, stopped
}

// freezes reports that a hold is one of the module in the cluster, of an object of it there, or of all of either.
func freezes(h *towlinev1.Hold, ref fleet.ModuleRef, cluster string) bool {
	return h.GetKind() == "Freeze" && h.GetModule()+h.GetCluster() != "" && (h.GetCluster() == "" || h.GetCluster() == cluster) &&
		(h.GetModule() == "" || h.GetModule() == ref.Name && h.GetProject() == ref.Project)
}

// frozenThere reports that the cluster's own policy lets nothing be written.
func frozenThere(c *towlinev1.Cluster) bool {
	for _, x := range c.GetStatus().GetConditions() {
		if fleet.Frozen([]fleet.Condition{{Type: fleet.ConditionType(x.GetType()), Reason: x.GetReason()}}) {
			return true
		}
	}
	return false
}

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
