package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// foldVerbs takes what people did in, in order, each once, and answers.
func (d *decider) foldVerbs() {
	for i := range d.in.Verbs {
		v := d.in.Verbs[i]
		if d.s.folded(&v) {
			continue
		}
		d.touch()
		notes, err := d.fold(&v)
		out := Outcome{ID: v.ID, Accepted: err == nil, Sentence: "accepted", Notes: notes}
		switch {
		case err != nil:
			out.Sentence = err.Error()
		case d.in.Stands && moves(v.Verb):
			out.Notes = append(slices.Clip(out.Notes), Note{Code: NoteStands, Actions: do(DoAcceptRestore, DoResumeRestore)})
		}
		d.out.Outcomes = append(d.out.Outcomes, out)
		d.s.Verbs = append(slices.Clip(d.s.Verbs), VerbRecord{Verb: v, Outcome: out})
	}
}

// moves reports that a verb is there to have something move.
func moves(verb string) bool {
	switch verb {
	case VerbPause, VerbAbort, VerbReject, VerbPin, VerbSkip:
		return false
	}
	return true
}

// refuse is the answer to a verb that cannot be.
func refuse(format string, args ...any) error {
	return fleet.Errorf(fleet.ErrPrecondition, format, args...)
}

func (d *decider) fold(v *Verb) ([]Note, error) {
	if v.Rollout != 0 && v.Rollout != d.p.ID.Number {
		return nil, refuse("%s/%d is not the present rollout; that is %s", d.p.ID.Module.Display(), v.Rollout, d.p.ID)
	}
	switch v.Verb {
	case VerbPin:
		return d.pinVerb(v)
	case VerbUnpin:
		return d.unpinVerb(v)
	case VerbRollback:
		return d.rollbackVerb(v)
	case VerbRetry:
		if d.s.State.Ended() {
			return d.retryEnded(v)
		}
	}
	if d.s.State.Ended() {
		return nil, refuse("%s has ended: %s", d.p.ID, d.s.State)
	}
	switch v.Verb {
	case VerbPause:
		return d.pauseVerb(v)
	case VerbResume:
		return d.resumeVerb(v)
	case VerbApprove:
		return nil, d.approveVerb(v)
	case VerbReject:
		return nil, d.rejectVerb(v)
	case VerbAbort:
		return d.abortVerb(v)
	case VerbRetry:
		return d.retryVerb(v)
	case VerbSkip:
		return d.skipVerb(v)
	case VerbPromote:
		return nil, d.promoteVerb(v)
	case VerbOverride:
		return nil, d.overrideVerb(v)
	}
	return nil, refuse("%q is no verb; use pause, resume, approve, reject, abort, retry, skip, pin, unpin, promote, rollback or override", v.Verb)
}

func (d *decider) pauseVerb(v *Verb) ([]Note, error) {
	if p := d.s.Pause; p != nil && p.Reason == ReasonPausedByUser {
		return nil, refuse("%s is paused already, by %s", d.p.ID, p.By)
	}
	left := 0
	if d.s.Pause != nil {
		left = d.s.Pause.Left
	}
	d.pause(ReasonPausedByUser, byWhom(v), v.By, v.Why)
	d.s.Pause.Left = left
	if n := d.inFlight(); n > 0 {
		return note(NoteOnTheWay, Facts{Count: n}), nil
	}
	return nil, nil
}

func (d *decider) resumeVerb(*Verb) ([]Note, error) {
	p := d.s.Pause
	if p == nil {
		return nil, refuse("%s is not paused", d.p.ID)
	}
	var notes []Note
	switch p.Reason {
	case ReasonFailures, ReasonNoEarlierRevision:
		notes = note(NoteInSpite, Facts{Failed: d.acceptFailures(isFailed) + p.Left})
	case ReasonRollbackFailed:
		d.acceptFailures(d.s.failedBack)
	}
	since := p.At // what failed behind the pause has not been answered yet
	if p.Reason != ReasonPausedByUser {
		since++ // what failed in that moment may be what it stopped for
	}
	d.resetGates(since)
	if d.s.Pause = nil; p.Reason == ReasonPausedByUser && p.Left > 0 { // nobody has answered those either
		d.s.Pause = &Pause{Reason: ReasonFailures, At: d.now, Left: p.Left}
		if d.s.Back != nil {
			d.s.Pause.Reason = ReasonRollbackFailed
		}
	}
	return notes, nil
}

// acceptFailures has the failures that people saw stop nothing any more, and says how many these are. A cluster that fails since, or
// again, is another failure.
func (d *decider) acceptFailures(failed func(*Record) bool) (failures int) {
	for i := range d.in.State.Len(d.p) {
		if !failed(d.in.State.record(i)) {
			continue
		}
		failures++
		if isFailed(d.s.record(i)) {
			d.turn(i, memberAccepted, "", "")
		}
	}
	return failures
}

// unpause lets a rollout go on that had stopped by itself, when the cause is gone. That a failed cluster was taken out of the rollout
// is for a person to answer, by resume or by a retry, and not by what is said of other clusters.
func (d *decider) unpause(answered bool) {
	p := d.s.Pause
	if p == nil || p.Reason == ReasonPausedByUser || p.Left > 0 && !answered {
		return
	}
	if !d.causeStands(p.Reason) {
		d.s.Pause = nil
	}
}

// mixed says what runs what.
func (d *decider) mixed() []Note {
	moved := 0
	for i := range d.s.Len(d.p) {
		if r := d.s.record(i); r.State != ClusterRemoved && (r.Revision == d.p.Revision || r.Step == 0 && d.observed(i).Revision == d.p.Revision) {
			moved++
		}
	}
	total := d.s.Len(d.p)
	notes := note(NoteMixed, Facts{Count: moved, Total: total, Revision: d.p.Revision})
	if moved != 0 && moved != total && d.s.mayGoBack(d.p, &d.in.Module) {
		notes[0].Actions = []Action{{Method: DoRollBack}}
	}
	return notes
}

func (d *decider) abortVerb(v *Verb) ([]Note, error) {
	for i := range d.s.Len(d.p) {
		if d.s.awaitsBack(d.s.record(i)) {
			d.turn(i, memberNotBack, "", "")
		}
	}
	d.abort(ReasonAbortedByUser, byWhom(v))
	return d.mixed(), nil
}

// waitingGate finds the gate that a verb means: the named one, or one of the stage, or the one of the kind that waits. A rejection of a stage means
// none that was passed: it can only stop the rollout.
func (d *decider) waitingGate(v *Verb, fits func(*Gate) bool, what string) (*GateHead, error) {
	var found []*GateHead
	for i := range d.s.Gates {
		g := &d.s.Gates[i]
		if v.Stage != "" && d.p.Stages[g.Stage].Name != v.Stage || v.Gate != "" && g.Name != v.Gate || !fits(d.p.gateSpec(g)) {
			continue
		}
		if v.Gate == "" && !d.stops(g) && (v.Stage == "" || v.Verb == VerbReject && g.State == GateSuccessful) {
			continue
		}
		found = append(found, g)
	}
	found = d.nearest(found)
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var list []string
		for _, g := range found {
			list = append(list, fmt.Sprintf("--stage %s --gate %s", d.p.Stages[g.Stage].Name, g.Name))
		}
		return nil, refuse("%s has %d gates that fit; say which: %s", d.p.ID, len(found), strings.Join(list, ", "))
	case v.Gate != "" || v.Stage != "":
		return nil, refuse("%s has no such %s", d.p.ID, what)
	}
	return nil, refuse("%s waits for no %s", d.p.ID, what)
}

// nearest are those of some gates that a person can mean: gates may have one name, and no word tells one after a stage from one before it. It is the
// one that keeps the rollout from going on. Where none does, one that was passed counts as well: what is said twice is no word for the gate that
// comes next.
func (d *decider) nearest(found []*GateHead) []*GateHead {
	for _, less := range []func(*GateHead) bool{
		func(g *GateHead) bool { return !d.stops(g) },
		func(g *GateHead) bool { return (g.Position == BeforeRollback) != (d.s.Back != nil) },
	} {
		if rest := slices.DeleteFunc(slices.Clone(found), less); len(rest) > 0 {
			found = rest
		}
	}
	return slices.CompactFunc(found, func(a, b *GateHead) bool { return a.Stage == b.Stage && a.Name == b.Name })
}

// sharesName reports that another gate of the same stage has the name of this one: only where it is the one that waits does a word mean it.
func (h *Head) sharesName(g *GateHead) bool {
	return slices.ContainsFunc(h.Gates, func(x GateHead) bool {
		return x.Stage == g.Stage && x.Name == g.Name && x.Position != g.Position
	})
}

// stops reports that a gate keeps the rollout from going on: one that holds, or a window that has closed since its stage began.
func (d *decider) stops(g *GateHead) bool {
	w := d.p.gateSpec(g).Window
	if d.s.holds(g) || w == nil || g.State != GateSuccessful || g.Override != nil || g.Position != Before || g.Stage != d.s.Stage || d.s.Back != nil {
		return d.s.holds(g)
	}
	open, _ := w.Open(d.in.Now)
	return !open
}

func isApproval(g *Gate) bool { return g.Approval != nil }

// waitingApproval is the approval gate that keeps the rollout from going on; nil: none does.
func (d *decider) waitingApproval() *GateHead {
	for i := range d.s.Gates {
		if g := &d.s.Gates[i]; isApproval(d.p.gateSpec(g)) && g.State == GateRunning && d.s.holds(g) {
			return g
		}
	}
	return nil
}

// mayApprove is who of the users that a gate names may approve it, and whether it names any.
func (p *Plan) mayApprove(g *GateHead) (users []string, named bool) {
	all := p.gateSpec(g).Approval.Users
	return slices.DeleteFunc(slices.Clone(all), func(u string) bool { return u == p.StartedBy }), len(all) > 0
}

// othersApprove says who can give an approval, and with which command.
func (p *Plan) othersApprove(g *GateHead) string {
	const command = "towline rollout approve "
	module := p.ID.Module.Display()
	switch users, named := p.mayApprove(g); {
	case !named && p.StartedBy == "":
		return "an admin runs: " + command + module
	case !named:
		return fmt.Sprintf("another admin than %s runs: %s%s; to make one: towline user create NAME --role admin --save FILE", p.StartedBy, command, module)
	case len(users) == 0:
		return fmt.Sprintf("only %s might, who started it; apply %s with other users of gate %s, or without it", p.StartedBy, module, g.Name)
	default:
		return fmt.Sprintf("%s runs: %s%s", strings.Join(users, " or "), command, module)
	}
}

func (d *decider) approveVerb(v *Verb) error {
	g, err := d.waitingGate(v, isApproval, "approval")
	if err != nil {
		return err
	}
	if err := d.meant(v, "an approval"); err != nil {
		return err
	}
	spec := d.p.gateSpec(g).Approval
	switch {
	case v.By == "":
		return refuse("an approval needs a name")
	case v.By == d.p.StartedBy:
		return refuse("%s started %s and cannot approve it: %s", v.By, d.p.ID, d.p.othersApprove(g))
	case len(spec.Users) > 0 && !slices.Contains(spec.Users, v.By):
		return refuse("%s may not approve gate %s; ask %s", v.By, g.Name, strings.Join(spec.Users, ", "))
	case g.State == GateSuccessful:
		return refuse("gate %s has been passed already", g.Name)
	case g.State == GateFailed:
		return refuse("gate %s was rejected; retry opens it again", g.Name)
	}
	given := Given{By: v.By, At: d.at(v), Why: v.Why}
	if spec.Expires > 0 {
		given.Until = given.At.add(spec.Expires)
	}
	list := slices.DeleteFunc(slices.Clone(g.Approvals), func(x Given) bool { return x.By == v.By })
	g.Approvals = append(list, given)
	return nil
}

// meant refuses what is said of another revision than the rollout's.
func (d *decider) meant(v *Verb, what string) error {
	if v.Revision != 0 && v.Revision != d.p.Revision {
		return refuse("%s moves to r%d; %s of r%d does not count", d.p.ID, d.p.Revision, what, v.Revision)
	}
	return nil
}

// at is when a verb was given; never later than now.
func (d *decider) at(v *Verb) Instant {
	if t := At(v.At); t != 0 && t < d.now {
		return t
	}
	return d.now
}

func (d *decider) rejectVerb(v *Verb) error {
	g, err := d.waitingGate(v, isApproval, "approval")
	if err != nil {
		return err
	}
	if err := d.meant(v, "a rejection"); err != nil {
		return err
	}
	if spec := d.p.gateSpec(g).Approval; len(spec.Users) > 0 && !slices.Contains(spec.Users, v.By) {
		return refuse("%s may not reject gate %s; ask %s", v.By, g.Name, strings.Join(spec.Users, ", "))
	}
	if g.State == GateSuccessful || g.State == GateFailed {
		return refuse("gate %s is decided already: %s", g.Name, g.State)
	}
	g.By = v.By
	d.gateState(g, GateFailed, GateRejected, v.Why)
	if d.s.Pause == nil {
		d.fail(ReasonGateFailed, d.p.gateFacts(g, d.now))
	}
	return nil
}

func (d *decider) overrideVerb(v *Verb) error {
	if v.Why == "" {
		return refuse("an override needs a reason; give it with -m")
	}
	what := "gate that can be overridden"
	if waits := d.waitingApproval(); waits != nil {
		what += fmt.Sprintf("; gate %s is an approval: %s", waits.Name, d.p.othersApprove(waits))
	}
	g, err := d.waitingGate(v, func(g *Gate) bool { return g.Approval == nil }, what)
	if err != nil {
		return err
	}
	if g.State == GateSuccessful && d.p.gateSpec(g).Window == nil {
		return refuse("gate %s has been passed already", g.Name)
	}
	g.Override = &Given{By: v.By, At: d.at(v), Why: v.Why}
	g.By = v.By
	d.gateState(g, GateSuccessful, GateOverridden, v.Why)
	if p := d.s.Pause; p != nil && p.Reason == ReasonGateFailed {
		if d.unpause(true); d.s.Pause != nil {
			d.pause(ReasonGateFailed, d.p.gateFacts(d.s.failedGate(Before, After), d.now), "", "")
		}
	}
	return nil
}

// promoteVerb ends the wait that people were told of, and no other: a soak, or a hold because nothing is there to prove the revision, or because
// somebody looks at one that has it. Never an approval. A soak is told of beside whatever else holds the stage.
func (d *decider) promoteVerb(v *Verb) error {
	n, told := d.s.Stage, d.s.Reason
	if n >= len(d.p.Stages) || d.s.Back != nil {
		return refuse("%s waits for nothing that promote could end", d.p.ID)
	}
	stage, h := &d.p.Stages[n], &d.s.Stages[n]
	if v.Stage != "" && v.Stage != stage.Name {
		return d.promoteHeld(v.Stage, d.awaitedHeld(n), stage)
	}
	var held []int
	if told == ReasonHeldUnready || told == ReasonAllAway || told == ReasonAllDeferred {
		held = d.awaitedHeld(n)
	}
	soaks := h.Quiet != 0 && stage.Soak > 0 && !h.Soaked
	runs := soaks && elapsed(d.since(h.Quiet), stage.Soak) > d.now
	switch {
	case told == ReasonEmptyOverride && !d.begun0() && len(d.emptyOverrides()) > 0:
		d.s.OverridesPromoted = true
	case told == ReasonEmptyStage && d.showsNothing(n), told == ReasonAllDeferred && d.unproven(n) && d.moving(n) == 0:
		h.Promoted, h.Marked = true, true
		d.letBy(held)
	case runs: // also anew, behind a gate that had been reached; of who is held nothing was said yet
		h.Soaked = true
	case soaks, told == ReasonHeldUnready && len(held) > 0:
		h.Soaked = h.Soaked || soaks
		d.letBy(held)
	default:
		return d.promotesNothing(n)
	}
	return nil
}

// promoteHeld lets by those that are held of a stage before this one, and nobody and nothing else.
func (d *decider) promoteHeld(name string, held []int, now *PlanStage) error {
	there := slices.DeleteFunc(held, func(i int) bool { return d.p.Stages[d.s.record(i).Stage].Name != name })
	if len(there) == 0 {
		return refuse("%s is in stage %s, not %s", d.p.ID, now.Name, name)
	}
	d.letBy(there)
	return nil
}

// promotesNothing says why a stage waits for nothing that promote ends.
func (d *decider) promotesNothing(n int) error {
	stage, h := &d.p.Stages[n], &d.s.Stages[n]
	moving, approval := d.moving(n), d.waitingApproval()
	switch {
	case d.s.Pause != nil:
		return refuse("%s is paused (%s), and promote ends no pause: resume it, and promote what it waits for then", d.p.ID, d.s.Pause.Reason)
	case approval != nil:
		return refuse("stage %s waits for the approval of gate %s, which promote does not end: %s", stage.Name, approval.Name, d.p.othersApprove(approval))
	case h.Started == 0:
		return refuse("stage %s has not begun: it waits for %s", stage.Name, cmp.Or(d.s.Reason, "what is before it"))
	case moving > 0 && h.Quiet == 0:
		return refuse("stage %s is still moving: %s", stage.Name, clusters(moving))
	case h.Quiet == 0 && stage.Soak > 0:
		return refuse("stage %s does not soak yet: it waits for %s", stage.Name, cmp.Or(d.s.Reason, "its clusters"))
	}
	return refuse("stage %s waits for its gates; promote ends a soak, never a gate: use override", stage.Name)
}
