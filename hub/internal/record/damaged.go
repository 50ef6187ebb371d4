package record

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// damage begins what is said of a record that cannot be read.
const damage = "the hub's record of it is damaged: "

// StandIn is what the hub goes on with when a record cannot be read. The damage of one record must not stop what the
// others are about, and it must never be taken for an order: what an agent said is asked for again, what a cluster should
// run is a problem that says how it is mended, and a freeze that cannot be read ends nowhere. Records of clusters,
// modules, rollouts and identities have no stand-in: nothing is done about them until they can be read.
func StandIn(key string, why error) (value proto.Message, absent bool) {
	switch prefix, rest, _ := strings.Cut(key, "/"); prefix + "/" {
	case store.DesiredPrefix:
		return damagedDesired(key, why), false
	case store.ObservedPrefix:
		return &storev1.ObservedRecord{}, false
	case store.AckPrefix, store.ConditionPrefix:
		return nil, true
	case store.FloorPrefix:
		return &storev1.FloorRecord{Hold: true}, false // until the leader has looked at the holds
	case store.HoldPrefix:
		if !strings.HasPrefix(rest, FreezeID) {
			return nil, true // the leader finds it anew
		}
		return &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: rest, Kind: HoldFreeze,
			Reason: damage + "what it froze stays frozen; end it with: towline unhold " + rest}}, false
	}
	return nil, false
}

func damagedDesired(key string, why error) *storev1.DesiredRecord {
	cluster, ref, _ := store.SplitClusterModule(key)
	text := fmt.Sprintf("%sits agent keeps what it has; to assign it again: towline rollout retry %s --cluster %s (%v)", damage, ref.Display(), cluster, why)
	return &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: ref.String(), Generation: 1}, Problem: text, ProblemGeneration: 1}
}

// Damaged reports that what a cluster should run of a module cannot be read.
func Damaged(d *storev1.DesiredRecord) bool { return strings.HasPrefix(d.GetProblem(), damage) }

// damaged reports that a freeze cannot be read: a sound one names a module or a cluster.
func damaged(h *towlinev1.Hold) bool {
	return h.GetKind() == HoldFreeze && h.GetModule() == "" && h.GetCluster() == ""
}

// unreadable is in Holds when a freeze cannot be read.
const unreadable = "?"

// Freezes is Frozen for what is frozen already or not: while a freeze cannot be read, what was frozen stays so.
func (h Holds) Freezes(ref fleet.ModuleRef, c fleet.ClusterName, was bool) bool {
	return h.Frozen(ref, c) || was && h[unreadable]
}
