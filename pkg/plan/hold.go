package plan

import (
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Limits of what is kept of annotations, which may be long.
const (
	maxHoldReason = 200
	maxHoldUntil  = 40
)

// HoldOf is the hold that an object's annotations put; nil: they put none. Whatever the value says is the reason, also nothing and
// "false": who meant to end the hold takes the annotation away. An end that is no time ends nothing.
func HoldOf(annotations map[string]string) *fleet.ObjectHold {
	reason, held := annotations[fleet.HoldAnnotation]
	if !held {
		return nil
	}
	h := &fleet.ObjectHold{Reason: fleet.Clip(fleet.CleanText(reason), maxHoldReason)}
	end, ends := annotations[fleet.HoldUntilAnnotation]
	if !ends {
		return h
	}
	until, err := time.Parse(time.RFC3339, end)
	if err != nil {
		h.Unread = fleet.Clip(fleet.CleanText(end), maxHoldUntil)
		if h.Unread == "" {
			h.Unread = "-"
		}
		return h
	}
	h.Until = until.UTC()
	return h
}
