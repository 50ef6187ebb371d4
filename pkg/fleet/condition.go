package fleet

import (
	"slices"
	"time"
)

// ConditionType names what a condition speaks of.
type ConditionType string

// Types of conditions. An agent may say others, which are kept and shown as they are.
const (
	// ConditionAPIServerReachable is False while the cluster's API server does not answer the agent.
	ConditionAPIServerReachable ConditionType = "APIServerReachable"
	// ConditionStateWritable is False while the agent cannot write its own state.
	ConditionStateWritable ConditionType = "StateWritable"
	// ConditionStateCurrent is False while the agent's own state is older than the cluster, so that nothing is written
	// before the hub has said what is desired.
	ConditionStateCurrent ConditionType = "StateCurrent"
	// ConditionClusterRestored is True for a while after the cluster's store was restored from an older copy.
	ConditionClusterRestored ConditionType = "ClusterRestored"
	// ConditionLocalPolicy is of the policy that the cluster's own people gave its agent: True while the agent goes by it, False
	// while it cannot, so that nothing is changed. Without a policy there is no such condition.
	ConditionLocalPolicy ConditionType = "LocalPolicy"
	// ConditionTwoAgents is True while another process with the same identity was lately seen in the cluster: the agent's state was
	// copied, and the two take turns.
	ConditionTwoAgents ConditionType = "TwoAgents"
	// ConditionOtherHubs is True while the cluster has objects that an agent of another hub wrote, which no agent there keeps any more.
	ConditionOtherHubs ConditionType = "OtherHubs"
	// ConditionReportsAccepted is False while the hub does not keep all that the agent reports. The hub says it, not an agent.
	ConditionReportsAccepted ConditionType = "ReportsAccepted"
)

// Statuses of a condition.
const (
	ConditionTrue    = "True"
	ConditionFalse   = "False"
	ConditionUnknown = "Unknown"
)

// PolicyInForce is the reason of ConditionLocalPolicy while nothing but the policy's rules keeps a change away. The message has its
// digest.
const PolicyInForce = "InForce"

// Condition is something about a cluster as a whole, or about the agent in it, that a person should know. There is none
// for what is as it should be, but for a policy that is in force.
type Condition struct {
	Type   ConditionType
	Status string
	// Reason is a CamelCase word, Message a sentence.
	Reason  string
	Message string
	// Since is from when on it holds. For one that blinds: when the cluster was seen last.
	Since time.Time
}

// Fine reports that nobody has to do anything about it.
func (c Condition) Fine() bool { return c.Type == ConditionLocalPolicy && c.Reason == PolicyInForce }

// Blinds reports that what is known of the cluster's objects is only as last seen while the condition holds (DESIGN §1.11).
func (c Condition) Blinds() bool {
	return c.Type == ConditionAPIServerReachable && c.Status != ConditionTrue
}

// Frozen reports that the cluster's own policy lets nothing be written there.
func Frozen(all []Condition) bool {
	return slices.ContainsFunc(all, func(c Condition) bool { return c.Type == ConditionLocalPolicy && !c.Fine() })
}

// Blinding is the first condition for which the cluster cannot be seen, or nil.
func Blinding(all []Condition) *Condition {
	for i := range all {
		if all[i].Blinds() {
			return &all[i]
		}
	}
	return nil
}
