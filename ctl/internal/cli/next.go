package cli

import (
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// moduleArgs is the module as an argument, with -p where it is needed: complete, to be pasted.
func moduleArgs(project, module string) string {
	if project == "" || project == fleet.DefaultProject {
		return module
	}
	return module + " -p " + project
}

// nextCommands are what a person may want to do with a rollout as it stands, the best first.
func nextCommands(r *v1.Rollout) []command {
	s := r.GetStatus()
	on := moduleArgs(r.GetMetadata().GetProject(), r.GetModule())
	do := func(verb, flags string) string {
		return strings.TrimSpace("towline rollout " + verb + " " + on + " " + flags)
	}
	explain := "towline explain rollout " + on
	switch s.GetState() {
	case stateSucceeded, stateSuperseded:
		return nil
	case stateAborted:
		if s.GetReason() == rollout.ReasonModuleDeleted {
			return nil
		}
		return commandsOf(do("retry", ""), do("rollback", ""), explain)
	case stateRolledBack:
		return commandsOf(explain, do("retry", ""))
	case stateFailed:
		return commandsOf(do("retry", ""), do("rollback", ""), explain)
	case statePaused:
		if s.GetFailed() > 0 {
			return commandsOf(do("retry", ""), do("rollback", ""), explain)
		}
		return commandsOf(do("resume", ""), do("abort", ""), explain)
	}
	switch s.GetReason() {
	case rollout.ReasonApproval:
		return append(approvals(s, do("approve", "-m WHY")), commandsOf(do("reject", "-m WHY"), explain)...)
	case rollout.ReasonSoak:
		return commandsOf(do("promote", ""), explain)
	case rollout.ReasonEmptyStage, rollout.ReasonEmptyOverride, rollout.ReasonAllDeferred, rollout.ReasonAllAway:
		return commandsOf(do("promote", ""), do("abort", ""), explain)
	case rollout.ReasonHeldUnready:
		return commandsOf("towline get holds"+moduleArgs(r.GetMetadata().GetProject(), ""), do("promote", ""), explain)
	case rollout.ReasonConfirm:
		return commandsOf(confirmCommand(s), explain)
	}
	switch {
	case s.GetFailed() > 0:
		return commandsOf(do("rollback", "--clusters failed"), explain)
	case s.GetState() == stateWaiting:
		return commandsOf(explain)
	}
	return nil
}

// approvals are the commands that lead to an approval, with who may run them.
func approvals(s *v1.RolloutStatus, approve string) []command {
	r := blockingApproval(s.GetWaitingFor())
	if len(r.GetActions()) == 0 {
		return commandsOf(approve)
	}
	var out []command
	for _, x := range r.GetActions() {
		c := commandOf(x, r)
		if x.GetMethod() == rollout.DoApprove { // of the one that waits: its name says nothing more
			c.line = approve
		}
		out = append(out, c)
	}
	return out
}

// blockingApproval is the approval gate among the reasons that keeps the rollout; nil: there is none.
func blockingApproval(reasons []*v1.Reason) *v1.Reason {
	for _, r := range reasons {
		if r.GetReason() == rollout.ReasonApproval && r.GetBlocks() && len(r.GetActions()) > 0 {
			return r
		}
		if found := blockingApproval(r.GetCauses()); found != nil {
			return found
		}
	}
	return nil
}

// confirmCommand is the one among the reasons that releases what waits.
func confirmCommand(s *v1.RolloutStatus) string {
	for _, r := range s.GetWaitingFor() {
		for _, x := range r.GetActions() {
			if x.GetMethod() == rollout.DoConfirm {
				return commandOf(x, r).line
			}
		}
	}
	return "towline get holds"
}
