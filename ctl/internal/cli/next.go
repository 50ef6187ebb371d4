package cli

import (
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// moduleArgs is the module as an argument, with -p where it is needed: complete, to be pasted.
func moduleArgs(project, module string) string {
	if project == "" || project == fleet.DefaultProject {
		return module
	}
	return module + " -p " + project
}

// nextCommands are what a person may want to do with a rollout as it stands, the best first.
func nextCommands(r *v1.Rollout) []string {
	s := r.GetStatus()
	on := moduleArgs(r.GetMetadata().GetProject(), r.GetModule())
	rollout := func(verb, flags string) string {
		return strings.TrimSpace("towline rollout " + verb + " " + on + " " + flags)
	}
	explain := "towline explain rollout " + on
	switch s.GetState() {
	case stateSucceeded, stateSuperseded:
		return nil
	case stateRolledBack:
		return []string{explain, rollout("retry", "")}
	case stateFailed, stateAborted:
		return []string{rollout("retry", ""), rollout("rollback", ""), explain}
	case statePaused:
		if s.GetFailed() > 0 {
			return []string{rollout("retry", ""), rollout("rollback", ""), explain}
		}
		return []string{rollout("resume", ""), rollout("abort", ""), explain}
	}
	switch {
	case s.GetReason() == "Approval":
		return append(approvals(s, rollout("approve", "-m WHY")), rollout("reject", "-m WHY"), explain)
	case s.GetReason() == "Soak":
		return []string{rollout("promote", ""), explain}
	case s.GetReason() == "EmptyStage", s.GetReason() == "EmptyOverride", s.GetReason() == "AllDeferred":
		return []string{rollout("promote", ""), rollout("abort", ""), explain}
	case s.GetReason() == "Confirm":
		return []string{confirmCommand(s), explain}
	case s.GetFailed() > 0:
		return []string{rollout("rollback", "--clusters failed"), explain}
	case s.GetState() == stateWaiting:
		return []string{explain}
	}
	return nil
}

// approvals are the commands that lead to an approval. Who may run one stands after " # ", as the hub says it.
func approvals(s *v1.RolloutStatus, approve string) []string {
	r := blockingApproval(s.GetWaitingFor())
	if len(r.GetActions()) == 0 {
		return []string{approve}
	}
	first, more := r.GetActions()[0], r.GetActions()[1:]
	if !strings.HasPrefix(first, "towline rollout approve ") {
		return r.GetActions()
	}
	if _, note, found := strings.Cut(first, noteMark); found {
		approve += noteMark + note
	}
	return append([]string{approve}, more...)
}

// blockingApproval is the approval gate among the reasons that keeps the rollout; nil: there is none.
func blockingApproval(reasons []*v1.Reason) *v1.Reason {
	for _, r := range reasons {
		if r.GetReason() == "Approval" && r.GetBlocks() && len(r.GetActions()) > 0 {
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
		for _, action := range r.GetActions() {
			if strings.HasPrefix(action, "towline confirm ") {
				return action
			}
		}
	}
	return "towline get holds"
}
