package cli

import (
	"slices"
	"strconv"
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

// rollbackLine takes a rollout back, and names it: without a number the word would be for the one that decides by then, which may be
// another.
func rollbackLine(project, module, id, flags string) string {
	if of, err := fleet.ParseRolloutID(id); err == nil {
		module += "/" + strconv.FormatInt(of.Number, 10)
	}
	return strings.TrimSpace("towline rollout rollback " + moduleArgs(project, module) + " " + flags)
}

// offered reports that the hub takes a word to the rollout, as its explanation says.
func offered(reasons []*v1.Reason, method string) bool {
	return slices.ContainsFunc(reasons, func(r *v1.Reason) bool {
		return slices.ContainsFunc(r.GetActions(), func(x *v1.Action) bool { return x.GetMethod() == method && x.GetCluster() == "" }) ||
			offered(r.GetCauses(), method)
	})
}

// mayRollBack reports that a rollout has moved what can be taken back. Of one that has ended only the hub knows whether it still
// decides anything.
func mayRollBack(r *v1.Rollout) bool {
	s := r.GetStatus()
	switch s.GetState() {
	case stateAborted:
		return offered(s.GetWaitingFor(), rollout.DoRollBack)
	case stateFailed, stateSucceeded, stateSuperseded, stateRolledBack, string(rollout.RollingBack):
		return false
	}
	back := slices.ContainsFunc(s.GetWaitingFor(), func(x *v1.Reason) bool { return x.GetSubject().GetKind() == rollout.AboutRollback })
	return !back && s.GetReason() != rollout.ReasonRollbackFailed && r.GetRevision() != 0 && r.GetFromRevision() != 0 && r.GetFromRevision() != r.GetRevision()
}

// nextCommands are what a person may want to do with a rollout as it stands, the best first.
func nextCommands(r *v1.Rollout) []command {
	s := r.GetStatus()
	on := moduleArgs(r.GetMetadata().GetProject(), r.GetModule())
	do := func(verb, flags string) string {
		return strings.TrimSpace("towline rollout " + verb + " " + on + " " + flags)
	}
	back := func(flags string) (none []string) {
		if !mayRollBack(r) {
			return none
		}
		return []string{rollbackLine(r.GetMetadata().GetProject(), r.GetModule(), r.GetId(), flags)}
	}
	of := "" // the revision that was looked at: another one may wait for the same word when that is said
	if r.GetRevision() > 0 {
		of = "--revision " + revision(r.GetRevision()) + " "
	}
	explain := "towline explain rollout " + on
	switch s.GetState() {
	case stateSucceeded, stateSuperseded:
		if offered(s.GetWaitingFor(), rollout.DoConfirm) { // clusters are to leave it since
			return commandsOf(confirmCommand(s), explain)
		}
		return nil
	case stateAborted, stateFailed, stateRolledBack:
		return nextOfEnded(r, do("retry", ""), back(""), explain)
	case statePaused:
		if s.GetFailed() > 0 {
			again := do("retry", "")
			if len(s.GetWaitingFor()) > 0 && !offered(s.GetWaitingFor(), rollout.DoRetry) { // who failed is away by now, or cordoned
				again = do("resume", "")
			}
			return commandsOf(slices.Concat([]string{again}, back(""), []string{explain})...)
		}
		return commandsOf(do("resume", ""), do("abort", ""), explain)
	}
	switch awaited(s) {
	case rollout.ReasonApproval:
		return append(approvals(s, do("approve", of+"-m WHY")), commandsOf(do("reject", of+"-m WHY"), explain)...)
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
		return commandsOf(append(back("--clusters failed"), explain)...)
	case s.GetState() == stateWaiting, waitsForPerson(s):
		return commandsOf(explain)
	}
	return nil
}

// nextOfEnded are those of a rollout that has ended in another way than it was begun for. One without a revision has no explanation that
// could offer a retry, which begins another.
func nextOfEnded(r *v1.Rollout, retry string, back []string, explain string) []command {
	s := r.GetStatus()
	if s.GetReason() == rollout.ReasonModuleDeleted {
		return nil
	}
	var again []string
	if r.GetRevision() == 0 || offered(s.GetWaitingFor(), rollout.DoRetry) {
		again = []string{retry}
	}
	if s.GetState() == stateRolledBack {
		return commandsOf(append([]string{explain}, again...)...)
	}
	return commandsOf(slices.Concat(again, back, []string{explain})...)
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
