package session

import (
	"fmt"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
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

// regression says why the hub's store is older than what the agent has seen of it; empty: it is not. Numbers alone do not
// tell: a store that was put back from a copy counts on, and may have passed what the agent holds by the time of its
// hello. What was found once stays until the agent joins again.
func (x *session) regression(sn snapshot) string {
	h, hub := x.hello, x.server.o.Hub
	const mend = "the hub's store is older than the cluster; restore a newer one, or confirm with: towline cluster join %s --reissue"
	say := func(format string, args ...any) string {
		return fmt.Sprintf(format, args...) + ": " + fmt.Sprintf(mend, x.cluster)
	}
	switch {
	case h.GetHubId() != hub.GetHubId() || h.GetIncarnation() != hub.GetIncarnation():
		return ""
	case sn.cluster.GetRegressed() != "":
		return sn.cluster.GetRegressed()
	case h.GetGeneration() > sn.generation:
		return say("the agent holds generation %d, this hub gave at most %d", h.GetGeneration(), sn.generation)
	case h.GetGeneration() > sn.target.assemblage.Generation:
		return say("the agent holds generation %d, this hub gave it %d", h.GetGeneration(), sn.target.assemblage.Generation)
	case h.GetLastEpoch() >= x.epoch:
		return say("the agent's last session was %d, and this hub counts it as %d", h.GetLastEpoch(), x.epoch)
	case h.GetBoot() != nil && !knows(hub, h.GetBoot()):
		return say("the agent has met start %d of the hub, which this store does not know", h.GetBoot().GetNumber())
	}
	return ""
}
