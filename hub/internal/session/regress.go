package session

import (
	"fmt"
	"slices"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
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

// elsewhere reports whether the agent follows another store of this hub.
func (x *session) elsewhere() bool {
	h, hub := x.hello, x.server.o.Hub
	return h.GetHubId() == hub.GetHubId() && h.GetIncarnation() != "" && h.GetIncarnation() != hub.GetIncarnation()
}

// followed is the incarnation of the store, if the agent follows that, or none yet.
func (s *Server) followed(h *agentv1.Hello) string {
	hub := s.o.Hub
	if h.GetIncarnation() == "" || h.GetHubId() == hub.GetHubId() && h.GetIncarnation() == hub.GetIncarnation() {
		return hub.GetIncarnation()
	}
	return ""
}

// succession decides whether an agent that follows another store of this hub goes on with this one, which was restored from a backup:
// succeeds is then the incarnation that this one takes the place of, and else why says what is in the way. Without a person's word it
// does only if it follows the store that the backup is of, and has seen nothing of what came after. Both are empty if the store was not
// restored, or the agent cannot go on in this way: then it refuses what it is told itself.
func (x *session) succession(sn snapshot) (succeeds, why string) {
	h, r := x.hello, sn.restore
	switch {
	case !x.elsewhere() || r == nil || !slices.Contains(h.GetFeatures(), wire.FeatureSuccession):
		return "", ""
	case sn.accepted:
		return h.GetIncarnation(), ""
	case sn.cluster.GetRegressed() != "":
		return "", sn.cluster.GetRegressed()
	case h.GetIncarnation() != r.GetIncarnation():
		return "", "the agent follows another store of this hub than the one of which the backup was restored"
	case h.GetGeneration() > r.GetGeneration():
		return "", fmt.Sprintf("the agent holds generation %d, and the backup was taken at %d", h.GetGeneration(), r.GetGeneration())
	case h.GetBoot() != nil && !knows(sn.hub, h.GetBoot()):
		return "", fmt.Sprintf("the agent has met start %d of the hub, which the backup does not know", h.GetBoot().GetNumber())
	}
	return h.GetIncarnation(), ""
}

// mendable is what an agent is told of a regression, for its log: why, and what a person can do.
func mendable(why string, cluster fleet.ClusterName, restored bool) string {
	if why == "" {
		return ""
	}
	if restored {
		return why + ": the hub's store was restored from a backup that is older than the cluster; accept it for all with: towline restore accept"
	}
	return fmt.Sprintf("%s: the hub's store is older than the cluster; restore a newer one, or confirm with: towline cluster join %s --reissue", why, cluster)
}

// regression says why the hub's store is older than what the agent has seen of it; empty: it is not. Numbers alone do not
// tell: a store that was put back from a copy counts on, and may have passed what the agent holds by the time of its
// hello. What was found once stays until the agent joins again.
func (x *session) regression(sn snapshot) string {
	h, hub := x.hello, sn.hub
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
