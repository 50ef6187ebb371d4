package session

import (
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// bootOf is the newest start that the store knows.
func bootOf(hub *storev1.Hub) *agentv1.Boot {
	n := len(hub.GetBoots())
	if n == 0 {
		return nil
	}
	return &agentv1.Boot{Number: hub.GetForgottenBoots() + uint64(n), Id: hub.GetBoots()[n-1]}
}

// knows reports whether the store has seen a start of the hub that an agent met. Of starts that are forgotten it cannot
// be said, and they are older than any copy that is put back.
func knows(hub *storev1.Hub, b *agentv1.Boot) bool {
	if b.GetNumber() <= hub.GetForgottenBoots() {
		return true
	}
	i := b.GetNumber() - hub.GetForgottenBoots() - 1
	return i < uint64(len(hub.GetBoots())) && hub.GetBoots()[i] == b.GetId()
}

// mendable is what an agent is told of a regression, for its log: why, and what a person can do.
func mendable(why string, cluster fleet.ClusterName) string {
	if why == "" {
		return ""
	}
	return fmt.Sprintf("%s: the hub's store is older than the cluster; restore a newer one, or confirm with: towline cluster join %s --reissue", why, cluster)
}

// regression says why the hub's store is older than what the agent has seen of it; empty: it is not. Numbers alone do not
// tell: a store that was put back from a copy counts on, and may have passed what the agent holds by the time of its
// hello. What was found once stays until the agent joins again.
func (x *session) regression(sn snapshot) string {
	h, hub := x.hello, x.server.o.Hub
	switch {
	case h.GetHubId() != hub.GetHubId() || h.GetIncarnation() != hub.GetIncarnation():
		return ""
	case sn.cluster.GetRegressed() != "":
		return sn.cluster.GetRegressed()
	case h.GetGeneration() > sn.generation:
		return fmt.Sprintf("the agent holds generation %d, this hub gave at most %d", h.GetGeneration(), sn.generation)
	case h.GetGeneration() > sn.target.assemblage.Generation:
		return fmt.Sprintf("the agent holds generation %d, this hub gave it %d", h.GetGeneration(), sn.target.assemblage.Generation)
	case h.GetLastEpoch() >= x.epoch:
		return fmt.Sprintf("the agent's last session was %d, and this hub counts it as %d", h.GetLastEpoch(), x.epoch)
	case h.GetBoot() != nil && !knows(hub, h.GetBoot()):
		return fmt.Sprintf("the agent has met start %d of the hub, which this store does not know", h.GetBoot().GetNumber())
	}
	return ""
}
