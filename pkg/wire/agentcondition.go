package wire

import (
	"fmt"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
)

// MaxConditions is how many conditions of a cluster there may be.
const MaxConditions = 16

// maxConditionWord bounds the words of a condition.
const maxConditionWord = 63

// ConditionsToProto is the wire form of conditions: sentences cut to MaxMessageBytes, at most MaxConditions.
func ConditionsToProto(all []fleet.Condition) []*agentv1.Condition {
	var out []*agentv1.Condition
	for _, c := range all[:min(len(all), MaxConditions)] {
		out = append(out, &agentv1.Condition{Type: string(c.Type), Status: c.Status, Reason: c.Reason, Message: CutText(c.Message),
			SinceMillis: millis(c.Since)})
	}
	return out
}

// ConditionsFromProto validates conditions. A status that is none reads as Unknown, and a since that is yet to come, by an
// agent's clock that goes ahead, as now.
func ConditionsFromProto(in []*agentv1.Condition, now time.Time) ([]fleet.Condition, error) {
	if len(in) > MaxConditions {
		return nil, fleet.Invalidf("conditions", "%d are too many; at most %d", len(in), MaxConditions)
	}
	var out []fleet.Condition
	seen := map[string]bool{}
	for i, c := range in {
		path := fmt.Sprintf("conditions[%d]", i)
		switch {
		case !conditionWord(c.GetType()):
			return nil, fleet.Invalidf(path+".type", "%.80q is no CamelCase word", c.GetType())
		case c.GetReason() != "" && !conditionWord(c.GetReason()):
			return nil, fleet.Invalidf(path+".reason", "%.80q is no CamelCase word", c.GetReason())
		case seen[c.GetType()]:
			return nil, fleet.Invalidf(path+".type", "%s is there twice", c.GetType())
		}
		seen[c.GetType()] = true
		status := c.GetStatus()
		if status != fleet.ConditionTrue && status != fleet.ConditionFalse {
			status = fleet.ConditionUnknown
		}
		since := fromMillis(c.GetSinceMillis())
		if since.After(now) {
			since = now
		}
		out = append(out, fleet.Condition{Type: fleet.ConditionType(c.GetType()), Status: status, Reason: c.GetReason(),
			Message: CutText(c.GetMessage()), Since: since})
	}
	return out, nil
}

func conditionWord(s string) bool {
	if s == "" || len(s) > maxConditionWord {
		return false
	}
	for _, r := range s {
		if (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') {
			return false
		}
	}
	return true
}
