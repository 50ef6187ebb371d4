package simagent

import (
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// Held is the assemblage that the agent has.
func (a *Agent) Held() fleet.Assemblage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// Acked reports that the hub has all that the agent has told it.
func (a *Agent) Acked() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent.sequence > 0 && a.acked.sequence == a.sent.sequence
}

// Leave is the newest order to leave the fleet, or nil.
func (a *Agent) Leave() *agentv1.Leave {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leave
}
