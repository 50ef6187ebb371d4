package rollout

import (
	"fmt"
	"math/bits"
	"slices"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Decide says what follows from the input. It is total and deterministic, changes nothing that it is given, and calling
// it again on its own output does nothing.
func Decide(in Input) Decision {
	d := newDecider(&in)
	if d.s.State == Failed || d.s.State == Superseded {
		d.foldVerbs()
		return d.result()
	}
	if d.closed() {
		d.foldVerbs()
		return d.result()
	}
	d.begin()
	d.foldResults()
	d.scan()
	d.expirePins()
	d.admit()
	d.confirmLeavers()
	seen := d.phase()
	d.foldVerbs()
	if d.unpinned || len(d.out.Outcomes) > 0 {
		seen = unseen
	}
	for p := goesForward; p <= isOver; p++ {
		if d.phase() != p {
			continue
		}
		if p != seen {
			d.relook()
		}
		d.lookCordoned()
		d.run()
	}
	d.showHold()
	d.noteAccepted()
	return d.result()
}

// phase is what the rules for members depend on. A verb may lead from any phase to any other. From there the rollout goes
// through them in this order only, and through each at most once in a decision: it goes back when it fails, and is over
// when it has gone as far as it goes.
type phase uint8

const (
	goesForward phase = iota // members move to the revision
	goesBack                 // those that were moved go back
	isOver                   // the last plan stays in force
	unseen                   // in which nobody has looked at the members
)

func (d *decider) phase() phase {
	switch {
	case d.s.State.Ended():
		return isOver
	case d.s.Back != nil:
		return goesBack
	}
	return goesForward
}

// relook sees the members again under the rules of a phase.
func (d *decider) relook() {
	for i := range d.s.Len(d.p) {
		d.look(i)
	}
	d.admit()
	d.confirmLeavers()
}

// decider is one call of Decide: the input, the state in the making, and counts that follow every change of it.
type decider struct {
	in       *Input
	p        *Plan
	st       *Strategy
	now      Instant
	s        State
	out      Decision
	own      []bool   // chunks that are copies already
	dirty    []uint64 // members that changed, as a bitmap
	count    []stageCount
	leavers  leaveCount
	having   int  // members whose clusters have the module now; -1: not counted yet
	unpinned bool // a pin's time is over
	// assigned says that this decision takes a step; its number is Head.Step.
	assigned bool
	// wait is what holds the rollout, if something does.
	wait waitFor
	// sets are those of other modules for which members wait.
	sets    []AwaitedSet
	wakeAt  Instant
	windows []windowSeen      // by stage, looked at once in a decision
	joined  map[int]*Observed // newcomers that this decision admitted
}

type waitFor struct {
	reason string
	facts  *Facts
}

func newDecider(in *Input) *decider {
	d := &decider{in: in, p: in.Plan, st: &in.Plan.Strategy, now: At(in.Now), s: in.State, having: -1}
	d.s.Stages = slices.Clone(d.s.Stages)
	d.s.Gates = slices.Clone(d.s.Gates)
	d.count = make([]stageCount, len(d.p.Stages))
	d.windows = make([]windowSeen, len(d.p.Stages))
	return d
}

// closed ends a rollout by what happened to its module, and reports that nothing more is to be decided.
func (d *decider) closed() bool {
	m := &d.in.Module
	if !d.s.State.Ended() {
		d.close(m)
	}
	if m.closes() {
		if m.Successor == 0 { // which goes on asking: PlanInput.AskedSince
			d.dropHold()
		}
		return true
	}
	return false
}

func (d *decider) close(m *Module) {
	switch {
	case m.Deleted:
		d.end(Aborted, ReasonModuleDeleted, nil)
	case m.Successor != 0:
		d.s.SupersededBy = m.Successor
		d.end(Superseded, ReasonSuperseded, &Facts{Rollout: fleet.RolloutID{Module: d.p.ID.Module, Number: m.Successor}.String()})
	case m.Aborted != nil:
		d.end(Aborted, ReasonAbortedByUser, byWhom(m.Aborted))
	case m.SourceFailed != nil:
		d.end(Failed, m.SourceFailed.Reason, detail(m.SourceFailed.Message))
	case m.External:
		d.end(Succeeded, ReasonExternal, &Facts{Revision: d.p.Revision})
	}
}

// Close is the head of a rollout after what happened to its module, by the rule of Decide. It looks at no member, so that
// it serves for a rollout that has no members yet, and for one whose members are not at hand. Of p the ID and the revision
// count.
func Close(p *Plan, h Head, m Module, now time.Time) Head {
	d := newDecider(&Input{Now: now, Plan: p, State: State{Head: h}, Module: m})
	d.closed()
	return d.s.Head
}

func (d *decider) begin() {
	if d.s.State != Pending {
		return
	}
	d.s.Started = d.now
	d.touch()
}

// run moves the rollout on as far as it goes.
func (d *decider) run() {
	d.sets = nil
	if d.s.Pause != nil && !d.in.Stands && d.recovered() {
		d.s.Pause = nil
		d.touch()
	}
	switch {
	case d.s.State == Superseded || d.s.State == Failed:
	case d.in.Stands:
		d.waitFor(ReasonRestored, &Facts{})
	case d.s.State.Ended():
		d.settle()
	case len(d.p.Unmatched) > 0:
		d.end(Failed, ReasonUnmatched, &Facts{Clusters: few(d.p.Unmatched), Count: len(d.p.Unmatched)})
	case d.s.Pause != nil && d.s.Pause.Reason == ReasonFailures:
		d.become(Paused, ReasonFailures, d.pausedFor())
	case d.s.Pause != nil && d.s.Pause.Left > 0 && d.s.Pause.Reason == ReasonRollbackFailed:
		d.become(Paused, ReasonRollbackFailed, d.backFailures(d.s.backFailed(d.p)))
	case d.s.Pause != nil && d.s.Pause.Left > 0 && d.s.Facts != nil && d.s.Reason == ReasonNoEarlierRevision:
		f := *d.s.Facts
		f.Removed = d.s.Pause.Left
		d.become(Paused, d.s.Reason, &f)
	case d.s.Pause != nil:
	case d.s.Back != nil:
		d.rollBack()
	case d.breached():
		d.fail(ReasonFailures, d.failures())
	case d.s.gateFailed(Before, After): // whether the rollout has come to it or not: somebody may reject what a stage is still getting
		d.fail(ReasonGateFailed, d.p.gateFacts(d.s.failedGate(Before, After), d.now))
	default:
		d.advance()
	}
	d.name()
}

// name gives the rollout the state that follows from where it stands.
func (d *decider) name() {
	switch {
	case d.s.State.Ended():
	case d.s.Pause != nil:
		d.become(Paused, d.s.Pause.Reason, d.s.Facts)
	case d.s.Back != nil:
		d.become(RollingBack, d.s.Back.Reason, d.backFacts())
	case d.wait.reason != "":
		d.become(Waiting, d.wait.reason, d.wait.facts)
	default:
		d.become(Progressing, "", nil)
	}
}

func (d *decider) become(s RunState, reason string, facts *Facts) {
	if d.s.State == s && d.s.Reason == reason && sameFacts(d.s.Facts, facts) {
		return
	}
	if d.s.State != s || d.s.Reason != reason {
		d.out.Moves = append(d.out.Moves, Transition{Kind: OfRollout, From: string(d.s.State), To: string(s), Reason: reason, Facts: facts})
		d.s.Since = d.now
	}
	d.s.State, d.s.Reason, d.s.Facts = s, reason, facts
	d.touch()
}

// backFacts are those of a rollback on its way: why it goes back, and what it waits for.
func (d *decider) backFacts() *Facts {
	if d.wait.reason == "" {
		return d.s.Back.Facts
	}
	f := *d.wait.facts
	if f.Code == "" {
		f.Code = d.wait.reason
	}
	return &f
}

// end is the last state.
func (d *decider) end(s RunState, reason string, facts *Facts) {
	d.become(s, reason, facts)
	d.s.Ended = d.now
	d.s.Pause, d.s.Awaits = nil, nil
	d.touch()
}

// abort ends it and leaves every cluster as it is: those, too, that came back and had not been moved again, or come back later. Who has
// nothing of the module and came late still gets it.
func (d *decider) abort(reason string, facts *Facts) {
	for i := range d.s.Len(d.p) {
		waits := d.s.record(i).in(whileToApply | whileDeferred)
		if r := d.s.record(i); waits && !r.given() && r.has(flagLate) && r.flags&(flagLeave|flagRetry|flagBaseline) == 0 && d.observed(i).has() {
			d.turn(i, memberLeftAsIs, "", "")
		}
	}
	d.catchUpFrom(len(d.p.Members))
	d.end(Aborted, reason, facts)
}

// fail does what the strategy says for failures.
func (d *decider) fail(reason string, facts *Facts) {
	if d.s.Back != nil {
		d.pause(ReasonRollbackFailed, facts, "", "")
		return
	}
	switch d.st.OnFailure {
	case OnFailureAbort:
		d.abort(reason, facts)
	case OnFailureRollback:
		if d.p.From == 0 || d.p.From == d.p.Revision {
			d.pause(ReasonNoEarlierRevision, facts, "", "")
			return
		}
		if err := d.in.Module.UnknownRevision(d.p.ID.Module, d.p.From); err != nil {
			gone := *facts
			gone.Revision = d.p.From
			d.pause(ReasonNoEarlierRevision, &gone, "", "")
			return
		}
		d.startRollback(Back{To: d.p.From, Scope: d.st.Rollback.Scope, Reason: reason, Facts: facts,
			Gates: d.st.Rollback.Gates == RollbackGatesRun})
	default:
		d.pause(reason, facts, "", "")
	}
}

// recovered reports that the failures which paused the rollout are tolerated, because those that failed got ready. A
// person's pause and a gate that failed are for a person to end.
func (d *decider) recovered() bool {
	switch p := d.s.Pause; p.Reason {
	case ReasonPausedByUser, ReasonGateFailed:
		return false
	default:
		return p.Left == 0 && !d.causeStands(p.Reason)
	}
}

// causeStands reports that what a rollout stopped for by itself is still so: too many have failed, or a gate has.
func (d *decider) causeStands(reason string) bool {
	switch reason {
	case ReasonFailures:
		return d.breached()
	case ReasonNoEarlierRevision:
		return d.s.gateFailed(Before, After) || d.breached()
	case ReasonGateFailed:
		return d.s.gateFailed(Before, After)
	case ReasonRollbackFailed:
		return d.s.gateFailed(BeforeRollback) || d.backBreached()
	}
	return false
}

// gateFailed reports that a gate has, on one of these sides of its stage.
func (s *State) gateFailed(at ...Position) bool { return s.failedGate(at...) != nil }

// failedGate is the first gate that has failed, on one of these sides of its stage; nil: none has.
func (h *Head) failedGate(at ...Position) *GateHead {
	for i := range h.Gates {
		if g := &h.Gates[i]; g.State == GateFailed && slices.Contains(at, g.Position) {
			return g
		}
	}
	return nil
}

func (d *decider) pause(reason string, facts *Facts, by, whyText string) {
	d.s.Pause = &Pause{Reason: reason, By: by, Why: whyText, At: d.now}
	d.become(Paused, reason, facts)
	d.touch()
}

func (d *decider) failed() int {
	n := 0
	for i := range d.count {
		n += d.count[i].failed
	}
	return n
}

func (d *decider) inFlight() int {
	n := 0
	for i := range d.count {
		n += d.count[i].inFlight
	}
	return n
}

func (d *decider) awaited() int {
	n := 0
	for i := range d.count {
		n += d.count[i].inFlight - d.count[i].awayFlying
	}
	return n
}

// Tolerated is how many failures the rollout stands, of the frozen total.
func (p *Plan) Tolerated() int { return p.Strategy.MaxFailures.Resolve(len(p.Members)) }

func (d *decider) breached() bool {
	n := d.failed()
	if n == d.accepted() {
		return false
	}
	return n > d.p.Tolerated() || d.breachedStage() >= 0
}

// breachedStage is the first stage in which more failed than it tolerates; -1: there is none.
func (d *decider) breachedStage() int {
	for i := range d.count {
		if limit, ok := d.p.stageTolerates(&d.s.Head, i, d.count[i].accepted); ok && d.count[i].failed > limit {
			return i
		}
	}
	return -1
}

// stageTolerates is how many failures a stage tolerates that has a limit of its own, or more if a person has accepted more.
func (p *Plan) stageTolerates(h *Head, n, accepted int) (failures int, ok bool) {
	limit := p.Stages[n].MaxFailures
	return max(limit.Resolve(h.Stages[n].Total), accepted), limit.Set
}

// accepted is how many have failed in spite of which a person went on.
func (d *decider) accepted() (failures int) {
	for i := range d.count {
		failures += d.count[i].accepted
	}
	return failures
}

// noteAccepted has the head say which of the failures stop nothing, for those who tell of it.
func (d *decider) noteAccepted() {
	was := d.s.Accepted
	d.s.Accepted = d.accepted()
	changed := d.s.Accepted != was
	for i := range d.count {
		changed = changed || d.s.Stages[i].Accepted != d.count[i].accepted
		d.s.Stages[i].Accepted = d.count[i].accepted
	}
	if n := d.s.backAccepted(d.p); d.s.Back != nil && d.s.Back.Accepted != n {
		b := *d.s.Back
		b.Accepted, changed = n, true
		d.s.Back = &b
	}
	if changed {
		d.touch()
	}
}

// failures are the facts of too many failures: of the rollout, or of a stage that has a limit of its own.
func (d *decider) failures() *Facts {
	n, tolerated := d.failed(), d.p.Tolerated()
	if n > tolerated {
		return &Facts{Count: n, Total: len(d.p.Members), Tolerated: tolerated}
	}
	if i := d.breachedStage(); i >= 0 {
		limit, _ := d.p.stageTolerates(&d.s.Head, i, d.count[i].accepted)
		return &Facts{Count: d.count[i].failed, Total: d.s.Stages[i].Total, Stage: d.p.Stages[i].Name, Tolerated: limit}
	}
	return nil
}

// pausedFor are the facts of a pause for failures, with those that failed and left: they count, for nobody has answered them.
func (d *decider) pausedFor() *Facts {
	f, left := d.failures(), d.s.Pause.Left
	if left == 0 {
		return f
	}
	if f == nil {
		f = &Facts{Count: d.failed(), Total: len(d.p.Members), Tolerated: d.p.Tolerated()}
	}
	if f.Removed = left; f.Stage == "" {
		f.Count += left
	}
	return f
}

// clusters is n clusters, in words.
func clusters(n int) string {
	if n == 1 {
		return "1 cluster"
	}
	return fmt.Sprintf("%d clusters", n)
}

// touch says that the head is to be stored.
func (d *decider) touch() { d.out.HeadChanged = true }

func (d *decider) wake(t Instant) {
	if t > d.now && (d.wakeAt == 0 || t < d.wakeAt) {
		d.wakeAt = t
	}
}

// observed is what is known of a member.
func (d *decider) observed(i int) *Observed {
	if o := d.joined[i]; o != nil && i >= len(d.in.Observed) {
		return o
	}
	return d.in.observed(i)
}

// observed is what is known of a member; of one that joined since the input was made nothing is.
func (in *Input) observed(i int) *Observed {
	if i < len(in.Observed) {
		return &in.Observed[i]
	}
	return &unknown
}

var unknown Observed

// result closes the decision.
func (d *decider) result() Decision {
	d.openChecks()
	d.wakeApprovals()
	d.noteAwaits()
	d.out.State = d.s
	changed := 0
	for _, word := range d.dirty {
		changed += bits.OnesCount64(word)
	}
	d.out.Changed = slices.Grow(d.out.Changed, changed)
	for w, word := range d.dirty {
		for ; word != 0; word &= word - 1 {
			d.out.Changed = append(d.out.Changed, int32(w*64+bits.TrailingZeros64(word)))
		}
	}
	d.out.WakeAt, d.out.Awaited = d.wakeAt.Time(), d.awaited()
	return d.out
}

func (i Instant) reached(now Instant) bool { return i != 0 && i <= now }

// elapsed is when a duration that began at start is over.
func elapsed(start Instant, length time.Duration) Instant { return start.add(length) }
