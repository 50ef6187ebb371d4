package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"towline.dev/towline/ctl/internal/table"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// waitOptions say how long a command stays with a rollout and what counts as its end.
type waitOptions struct {
	timeout    time.Duration
	failOnWait bool
	strict     bool
}

func (o *waitOptions) flags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "give up after this time, with exit code 4; 0: never")
	cmd.Flags().BoolVar(&o.failOnWait, "fail-on-wait", false, "end with exit code 3 when it waits for a person")
	cmd.Flags().BoolVar(&o.strict, "strict", false, "deferred clusters make it exit code 1")
}

// deadline bounds ctx by --timeout.
func (o *waitOptions) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if o.timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, o.timeout)
}

// States and reasons of rollouts that decide how a command ends.
const (
	statePending     = "Pending"
	stateWaiting     = "Waiting"
	statePaused      = "Paused"
	stateSucceeded   = "Succeeded"
	stateFailed      = "Failed"
	stateAborted     = "Aborted"
	stateRolledBack  = "RolledBack"
	stateSuperseded  = "Superseded"
	stateProgressing = "Progressing"
	stateDeferred    = "Deferred"
	stateSoaking     = "Soaking"
	stateTimedOut    = "TimedOut"
)

// people are the reasons for which a rollout waits until somebody acts.
var people = map[string]bool{rollout.ReasonApproval: true, rollout.ReasonEmptyStage: true, rollout.ReasonEmptyOverride: true,
	rollout.ReasonAllDeferred: true, rollout.ReasonAllAway: true, rollout.ReasonHeldUnready: true, rollout.ReasonConfirm: true, rollout.ReasonUnplaced: true,
	rollout.ReasonGateError: true, rollout.ReasonGateInconclusive: true}

// waitsForPerson reports that nothing goes on before somebody acts.
func waitsForPerson(s *v1.RolloutStatus) bool {
	switch s.GetState() {
	case statePending:
		return s.GetReason() == rollout.ReasonNeedsSecret || s.GetReason() == rollout.ReasonBehindPause
	case stateWaiting:
		return people[s.GetReason()]
	case statePaused:
		return s.GetReason() == rollout.ReasonPausedByUser
	case string(rollout.RollingBack):
		return people[awaited(s)]
	}
	return false
}

// awaited is the reason for which a rollout waits. One that goes back has that of its rollback, and waits for the gates of that.
func awaited(s *v1.RolloutStatus) string {
	if s.GetState() != string(rollout.RollingBack) {
		return s.GetReason()
	}
	for _, r := range s.GetWaitingFor() {
		if r.GetSubject().GetKind() == rollout.AboutGate && r.GetBlocks() {
			return r.GetReason()
		}
	}
	return s.GetFacts().GetCode()
}

// outcome is the exit code of a rollout as it stands; done is false while it may go on.
func (o *waitOptions) outcome(s *v1.RolloutStatus) (code int, done bool) {
	switch s.GetState() {
	case stateSucceeded:
		if o.strict && s.GetDeferred() > 0 {
			return exitFailed, true
		}
		return exitOK, true
	case stateFailed, stateAborted, stateRolledBack:
		return exitFailed, true
	case stateSuperseded:
		return exitSuperseded, true
	case statePaused:
		if s.GetReason() != rollout.ReasonPausedByUser {
			return exitFailed, true
		}
	}
	if o.failOnWait && waitsForPerson(s) {
		return exitWaits, true
	}
	return exitOK, false
}

// ending is the one line that says how a rollout stands, for the end of a wait.
func (a *app) ending(r *v1.Rollout) string {
	s := r.GetStatus()
	out := a.paint(table.Cyan, r.GetId()) + " " + a.paint(stateColors[s.GetState()], s.GetState())
	if s.GetStarted() != nil && s.GetEnded() != nil {
		out += " in " + span(s.GetEnded().AsTime().Sub(s.GetStarted().AsTime()))
	}
	out += fmt.Sprintf(": %s, %d of %s", move(r.GetFromRevision(), r.GetRevision()), s.GetSucceeded(), count(s.GetTotal(), "cluster"))
	if s.GetFailed() > 0 {
		out += fmt.Sprintf(", %d failed", s.GetFailed())
	}
	if s.GetDeferred() > 0 {
		out += fmt.Sprintf(", %d deferred", s.GetDeferred())
	}
	skipped := s.GetFacts().GetSkipped()
	if skipped > 0 && s.GetState() == stateSucceeded {
		out += fmt.Sprintf(", %d skipped", skipped)
	}
	if n := s.GetPassedOver() - skipped; n > 0 && s.GetState() == stateSucceeded {
		out += fmt.Sprintf(", %d not to have it", n)
	}
	if s.GetSupersededBy() != "" {
		out += ", by " + s.GetSupersededBy()
	}
	out += untried(s.GetStages())
	if said := a.rolloutSays(s.GetReason(), s.GetFacts()); said != "" && s.GetState() != stateSucceeded && s.GetState() != stateSuperseded {
		out += "; " + said
	}
	return out
}

// untried tells of the stages that a person let be over though nothing of them has shown that the revision works: all that they have was away.
func untried(stages []*v1.StageStatus) string {
	var names []string
	for i, s := range stages[:max(len(stages)-1, 0)] {
		if s.GetState() == stateSucceeded && s.GetDone()+s.GetFailed() == 0 && s.GetDeferred() > 0 && stages[i+1].GetStarted() != nil {
			names = append(names, s.GetName())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("; none of %s has tried it: all are deferred", strings.Join(names, ", "))
}

// finish turns the end of a wait into the command's error.
func (o *waitOptions) finish(id string, last *v1.Rollout, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && o.timeout > 0 {
		if last == nil {
			return &exitError{exitTimedOut, fmt.Errorf("rollout %s: the hub did not say within %s how it stands; see: towline rollout status %s --watch=false", id, o.timeout, id)}
		}
		return &exitError{exitTimedOut, fmt.Errorf("rollout %s: not done after %s; it is %s; see: towline explain rollout %s", id, o.timeout, last.GetStatus().GetState(), id)}
	}
	if err != nil {
		return err
	}
	if last == nil {
		return fleet.Errorf(fleet.ErrUnavailable, "rollout %s: the hub ended the watch without saying where it stands", id)
	}
	if code, _ := o.outcome(last.GetStatus()); code != exitOK {
		return &exitError{code, nil}
	}
	return nil
}
