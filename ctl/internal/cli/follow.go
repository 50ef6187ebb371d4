package cli

import (
	"cmp"
	"strings"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
)

// followCell is in a list how a source is followed: what it came to and when, or what is wrong.
func (a *app) followCell(s *v1.FollowStatus) table.Cell {
	switch {
	case s == nil:
		return text("-")
	case s.GetReason() != "":
		return colored(table.Red, s.GetReason()+" for "+a.since(s.GetSince()))
	case s.GetSuspendedRevision() != 0:
		return colored(table.Yellow, "suspended: "+revision(s.GetSuspendedRevision())+" was rolled back")
	}
	return text(shortRef(s.GetResolvedRef()) + a.lookedText(s))
}

// lookedText is " 3m ago".
func (a *app) lookedText(s *v1.FollowStatus) string {
	if s.GetLooked() == nil {
		return "not looked yet"
	}
	return a.since(s.GetLooked()) + " ago"
}

// shortRef is an exact ref with its digest cut: main@sha1:1f2e3d4c5b6a, and a blank behind it.
func shortRef(ref string) string {
	at := strings.LastIndex(ref, ":")
	if at < 0 {
		return ""
	}
	const few = 12
	return table.Clean(ref[:min(at+1+few, len(ref))]) + " "
}

// describeFollow adds the lines about how a source is followed.
func (a *app) describeFollow(s *sheet, m *v1.Metadata, src *v1.Source, f *v1.FollowStatus) {
	if f == nil {
		return
	}
	every := src.GetFollow().GetInterval()
	if every == "" {
		every = span(follow.DefaultInterval)
	}
	s.line("Follows", "every %s; looked %s; next at %s", every, a.lookedText(f), a.clock(f.GetNext()))
	if src.GetFollow().GetWebhook() {
		s.line("Webhook", "POST /hooks/%s/%s, signed with secret %s", m.GetProject(), m.GetName(), cmp.Or(src.GetFollow().GetSecretName(), follow.DefaultWebhook))
	}
	if f.GetResolvedRef() != "" {
		s.line("Resolved", "%s", f.GetResolvedRef())
	}
	if f.GetReason() != "" {
		s.line("Problem", "%s for %s: %s", f.GetReason(), a.since(f.GetSince()), f.GetMessage())
	}
}

// followSays is why a source is followed or not.
func followSays(reason string, s *v1.ModuleStatus) string {
	switch reason {
	case follow.ReasonFollows:
		return "its source is looked at by itself"
	case follow.ReasonRolledBack:
		if s.GetFollow().GetSuspendedRevision() == 0 {
			return s.GetFollow().GetMessage()
		}
		return revision(s.GetFollow().GetSuspendedRevision()) + " was rolled back, and is not rolled out again before the source has something else, or by: towline resync"
	case rollout.ReasonRestored:
		return "its source is not looked at by itself: " + standsSays
	case follow.ReasonUnavailable, follow.ReasonNotFound, follow.ReasonDenied, follow.ReasonNeedsSecret:
		return "its source cannot be had; what runs stays: " + s.GetFollow().GetMessage()
	case follow.ReasonTooLarge, follow.ReasonInvalid, follow.ReasonUnverified:
		return "what its source has cannot be taken; what runs stays: " + s.GetFollow().GetMessage()
	case follow.ReasonGoesBack:
		return "what its source has is not taken up yet; what runs stays: " + s.GetFollow().GetMessage()
	case follow.ReasonRefused, follow.ReasonPaused:
		return "its source has something new, which may not begin yet: " + s.GetFollow().GetMessage()
	}
	return s.GetFollow().GetMessage()
}

// followTrouble is what is wrong with a source that is followed, for a list; empty: nothing is.
func (a *app) followTrouble(s *v1.FollowStatus) string {
	switch s.GetReason() {
	case "", follow.ReasonRefused, follow.ReasonPaused, follow.ReasonGoesBack:
		return ""
	}
	return "; its source is not followed: " + s.GetReason() + " for " + a.since(s.GetSince())
}

// conditionText is what a condition of a module says.
func (a *app) conditionText(c *v1.Condition, s *v1.ModuleStatus) string {
	switch c.GetType() {
	case follow.Condition:
		return followSays(c.GetReason(), s)
	case fleet.ConditionSpecValid:
		return specSays(c)
	}
	return a.readyText(c.GetReason(), s)
}

// specSays is what is wrong with the spec of a module that is stored.
func specSays(c *v1.Condition) string {
	return "an older hub took what this one and its agents do not take: " + c.GetMessage() + ": mend it and put the module"
}

// followReason is a link of why a module stands as it does.
func followReason(c *v1.Condition, m *v1.Module) *v1.Reason {
	r := &v1.Reason{Subject: about(subjectModule, m.GetMetadata().GetName()), Reason: c.GetReason(), Since: c.GetLastTransitionTime(), Blocks: c.GetStatus() == fleet.ConditionFalse,
		Facts: &v1.Facts{Code: follow.Condition, Detail: followSays(c.GetReason(), m.GetStatus())}}
	return r
}
