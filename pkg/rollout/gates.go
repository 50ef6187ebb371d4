package rollout

import (
	"cmp"
	"slices"
	"time"
)

// ExpressionInterval is how often an expression that does not hold yet is looked at without a report.
const ExpressionInterval = 10 * time.Second

// keepMeasurements is how many answers of a gate are kept for people.
const keepMeasurements = 10

type windowSeen struct {
	seen, open bool
	facts      *Facts // of the one that is closed
}

// gateAt is the head of a gate; nil if there is none.
func (h *Head) gateAt(stage int, pos Position, name string) *GateHead {
	for i := range h.Gates {
		if g := &h.Gates[i]; g.Stage == stage && g.Position == pos && g.Name == name {
			return g
		}
	}
	return nil
}

// gateSpec is what the strategy says of a gate.
func (p *Plan) gateSpec(g *GateHead) *Gate {
	list := p.Stages[g.Stage].Before
	if g.Position == After {
		list = p.Stages[g.Stage].After
	}
	for i := range list {
		if list[i].Name == g.Name {
			return &list[i]
		}
	}
	return &Gate{}
}

// gates looks at the gates on one side of a stage; true if all let it pass.
func (d *decider) gates(stage int, pos Position) bool {
	var held *GateHead
	for i := range d.s.Gates {
		g := &d.s.Gates[i]
		if g.Stage != stage || g.Position != pos || d.gate(g) {
			continue
		}
		if g.State == GateFailed {
			d.fail(ReasonGateFailed, d.p.gateFacts(g, d.now))
			return false
		}
		if held == nil || rank(g.State) > rank(held.State) {
			held = g
		}
	}
	if held == nil {
		return true
	}
	d.waitFor(d.gateReason(held), d.p.gateFacts(held, d.now))
	return false
}

// Codes of gates: why one is as it is.
const (
	GateNotReached      = "NotReached"
	GateNoAnswer        = "NoAnswerYet"
	GateAnswered        = "Answered"
	GateNotYet          = "DoesNotHoldYet"
	GateApproving       = "Approving"
	GateApproved        = "Approved"
	GateRejected        = "Rejected"
	GateOverridden      = "Overridden"
	GateOpen            = "Open"
	GateClosed          = "Closed"
	GateMeasuring       = "Measuring"
	GateFailedTooOften  = "FailedTooOften"
	GateUnclearTooOften = "InconclusiveTooOften"
	GateErrorTooOften   = "ErrorTooOften"
)

// gateFacts are those of a gate as it stands.
func (p *Plan) gateFacts(g *GateHead, now Instant) *Facts {
	f := &Facts{Code: g.Reason, Gate: g.Name, Position: g.Position, Stage: p.Stages[g.Stage].Name, Detail: g.Message, By: g.By}
	spec := p.gateSpec(g)
	switch g.Reason {
	case GateApproving:
		f.Count, f.Total, f.By = len(g.approvers(now)), spec.Approval.Approvers, p.StartedBy
	case GateApproved:
		f.Names = g.approvers(g.counted(now))
	case GateClosed:
		f.Until = g.NextLook
	case GateMeasuring:
		f.Count, f.Total, f.Failed = g.Measured, spec.Metric.Count, g.Failures
	case GateFailedTooOften:
		f.Count, f.Total, f.Tolerated = g.Failures, g.Measured, spec.Metric.FailureLimit
	case GateUnclearTooOften:
		f.Count, f.Total, f.Tolerated = g.Inconclusive, g.Measured, spec.Metric.InconclusiveLimit
	case GateErrorTooOften:
		f.Count, f.Tolerated = g.Errors, *spec.Metric.ErrorLimit
	}
	return f
}

func rank(s GateState) int {
	switch s {
	case GateError:
		return 2
	case GateInconclusive:
		return 1
	}
	return 0
}

func (d *decider) gateReason(g *GateHead) string {
	switch g.State {
	case GateError:
		return ReasonGateError
	case GateInconclusive:
		return ReasonGateInconclusive
	}
	return kindReason[d.p.gateSpec(g).Kind()]
}

var kindReason = map[string]string{GateApproval: ReasonApproval, GateWindow: ReasonWindow, GateWebhook: ReasonWebhook,
	GateMetric: ReasonMetric, GateExpression: ReasonExpression}

// gate opens a gate that is reached and looks at those that can be judged here; true if it lets pass.
func (d *decider) gate(g *GateHead) bool {
	spec := d.p.gateSpec(g)
	again := g.Position == BeforeRollback && spec.Window != nil && g.Override == nil // on the way back, too, nothing new moves while it is closed
	if g.State == GateSuccessful && !again {
		return true
	}
	if g.State == GatePending {
		d.gateState(g, GateRunning, "", "")
		g.NextLook = d.now
		if spec.asked() {
			g.Number++
			d.gateSays(g, GateNoAnswer, "")
		}
	}
	switch spec.Kind() {
	case GateApproval:
		d.lookApproval(g, spec.Approval)
	case GateWindow:
		d.lookWindow(g, spec.Window)
	}
	return g.State == GateSuccessful
}

// holds reports that the gate has been reached and keeps the rollout from going on, or from going back.
func (h *Head) holds(g *GateHead) bool {
	switch {
	case g.State == GateSuccessful || g.State == GatePending:
		return false
	case h.Back != nil:
		return g.Position == BeforeRollback && h.Back.Gates
	case g.Position == BeforeRollback, g.Stage != h.Stage:
		return false
	}
	return (g.Position == After) == (h.Stages[g.Stage].Started != 0)
}

// asked reports that the gate is evaluated outside.
func (g *Gate) asked() bool { return g.Webhook != nil || g.Metric != nil || g.Expression != nil }

// looksAt is when a gate is looked at next: now, if that was noted by a clock that was ahead.
func (p *Plan) looksAt(g *GateHead, now Instant) Instant {
	if spec := p.gateSpec(g); spec.asked() && g.NextLook > now.add(spec.interval()) {
		return now
	}
	return g.NextLook
}

// interval is after how long a gate that is evaluated outside is looked at again.
func (g *Gate) interval() time.Duration {
	switch {
	case g.Webhook != nil:
		return g.Webhook.Interval
	case g.Metric != nil:
		return g.Metric.Interval
	}
	return ExpressionInterval
}

// gateState gives a gate a state, with the code that says why, and what others said of it.
func (d *decider) gateState(g *GateHead, to GateState, reason, said string) {
	from := g.State
	d.gateSays(g, reason, said)
	if from == to {
		return
	}
	g.State, g.Since = to, d.now
	d.out.Moves = append(d.out.Moves, Transition{Kind: OfGate, Stage: int16(g.Stage), Position: g.Position, Gate: g.Name,
		From: string(from), To: string(to), Reason: reason, Facts: d.p.gateFacts(g, d.now)})
	d.touch()
}

func (d *decider) gateSays(g *GateHead, reason, said string) {
	by := g.By
	if reason != GateOverridden && reason != GateRejected {
		by = ""
	}
	if said = clip(said); g.Reason != reason || g.Message != said || g.By != by {
		g.Reason, g.Message, g.By = reason, said, by
		d.touch()
	}
}

func (d *decider) gateLook(g *GateHead, next Instant) {
	if g.NextLook != next {
		g.NextLook = next
		d.touch()
	}
	d.wake(next)
}

func (d *decider) lookApproval(g *GateHead, spec *Approval) {
	if g.State == GateFailed {
		return
	}
	valid, next := 0, Instant(0)
	for _, a := range g.Approvals {
		if a.Until != 0 && a.Until <= d.now {
			continue
		}
		valid++
		if a.Until != 0 && (next == 0 || a.Until < next) {
			next = a.Until
		}
	}
	if valid >= spec.Approvers {
		d.gateState(g, GateSuccessful, GateApproved, "")
		return
	}
	d.gateState(g, GateRunning, GateApproving, "")
	d.gateLook(g, next)
}

// wakeApprovals has it be looked at again when an approval of a gate that waits expires, also where the gate is not: what is said of it changes.
func (d *decider) wakeApprovals() {
	for i := range d.s.Gates {
		if d.s.Gates[i].State != GateRunning {
			continue
		}
		for _, a := range d.s.Gates[i].Approvals {
			d.wake(a.Until)
		}
	}
}

// counted is when the approvals of a gate count: now, or when they were enough.
func (g *GateHead) counted(now Instant) Instant {
	if g.State == GateSuccessful {
		return g.Since
	}
	return now
}

// approvers are those whose approval counts at now, sorted.
func (g *GateHead) approvers(now Instant) []string {
	var out []string
	for _, a := range g.Approvals {
		if a.Until == 0 || a.Until > now {
			out = append(out, a.By)
		}
	}
	slices.Sort(out)
	return out
}

func (d *decider) lookWindow(g *GateHead, spec *WindowGate) {
	open, next := spec.Open(d.in.Now)
	if open {
		d.gateState(g, GateSuccessful, GateOpen, "")
		return
	}
	d.gateLook(g, At(next))
	d.gateState(g, GateRunning, GateClosed, "")
}

// windowOpen reports whether the windows before a stage let its clusters move now: a window is no door that one passes
// once, nothing new moves while it is closed.
func (d *decider) windowOpen(stage int16) bool {
	w := &d.windows[stage]
	if w.seen {
		return w.open
	}
	var next time.Time
	w.seen = true
	w.facts, next = d.s.closedWindow(d.p, int(stage), d.in.Now)
	w.open = w.facts == nil
	d.wake(At(next))
	return w.open
}

// closedWindow says which window before a stage keeps its clusters from moving, and when the windows are to be looked at again;
// no facts: none does.
func (h *Head) closedWindow(p *Plan, stage int, now time.Time) (facts *Facts, next time.Time) {
	for i := range p.Stages[stage].Before {
		spec := &p.Stages[stage].Before[i]
		if spec.Window == nil {
			continue
		}
		if g := h.gateAt(stage, Before, spec.Name); g != nil && g.Override != nil {
			continue
		}
		open, at := spec.Window.Open(now)
		if next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
		if !open && facts == nil {
			facts = &Facts{Code: GateClosed, Gate: spec.Name, Position: Before, Stage: p.Stages[stage].Name, Until: At(at)}
		}
	}
	return facts, next
}

// foldResults takes answers of checks in, each once.
func (d *decider) foldResults() {
	for i := range d.in.Results {
		res := &d.in.Results[i]
		g := d.s.gateAt(res.Stage, res.Position, res.Gate)
		if g == nil || g.Number != res.Number || g.State != GateRunning {
			continue
		}
		d.measure(g, res)
		switch spec := d.p.gateSpec(g); spec.Kind() {
		case GateWebhook:
			d.foldWebhook(g, spec.Webhook, res)
		case GateMetric:
			d.foldMetric(g, spec.Metric, res)
		case GateExpression:
			d.foldExpression(g, res)
		}
	}
}

func (d *decider) measure(g *GateHead, res *GateResult) {
	keep := g.Measurements
	if len(keep) >= keepMeasurements {
		keep = keep[len(keep)-keepMeasurements+1:]
	}
	g.Measurements = append(slices.Clone(keep), Measurement{At: At(res.At), Outcome: res.Outcome, Value: clip(res.Value), Message: clip(res.Message)})
	d.touch()
}

func (d *decider) again(g *GateHead, after time.Duration, reason, said string) {
	g.Number++
	d.gateSays(g, reason, said)
	d.gateLook(g, d.now.add(after))
}

func (d *decider) foldWebhook(g *GateHead, spec *Webhook, res *GateResult) {
	switch res.Outcome {
	case GateSuccessful, GateFailed, GateError, GateInconclusive:
		d.gateState(g, res.Outcome, GateAnswered, res.Message)
	default:
		d.again(g, spec.Interval, GateAnswered, res.Message)
	}
}

func (d *decider) foldExpression(g *GateHead, res *GateResult) {
	switch res.Outcome {
	case GateSuccessful, GateFailed, GateError:
		d.gateState(g, res.Outcome, GateAnswered, res.Message)
	default:
		d.again(g, ExpressionInterval, GateNotYet, res.Message)
	}
}

func (d *decider) foldMetric(g *GateHead, spec *Metric, res *GateResult) {
	switch res.Outcome {
	case GateError:
		g.Errors++
	case GateFailed:
		g.Failures, g.Errors, g.Measured = g.Failures+1, 0, g.Measured+1
	case GateInconclusive:
		g.Inconclusive, g.Errors, g.Measured = g.Inconclusive+1, 0, g.Measured+1
	case GateSuccessful:
		g.Errors, g.Measured = 0, g.Measured+1
	default:
		d.again(g, spec.Interval, GateMeasuring, res.Message)
		return
	}
	d.touch()
	switch {
	case g.Failures > spec.FailureLimit:
		d.gateState(g, GateFailed, GateFailedTooOften, cmp.Or(res.Value, res.Message))
	case g.Inconclusive > spec.InconclusiveLimit:
		d.gateState(g, GateInconclusive, GateUnclearTooOften, cmp.Or(res.Value, res.Message))
	case g.Errors > *spec.ErrorLimit:
		d.gateState(g, GateError, GateErrorTooOften, res.Message)
	case g.Measured >= spec.Count:
		d.gateState(g, GateSuccessful, GateMeasuring, "")
	default:
		d.again(g, spec.Interval, GateMeasuring, "")
	}
}

// openChecks lists what is to be evaluated outside.
func (d *decider) openChecks() {
	if d.s.State.Ended() || d.s.State == Paused || d.in.Stands {
		return
	}
	for i := range d.s.Gates {
		g := &d.s.Gates[i]
		if g.State != GateRunning || !d.p.gateSpec(g).asked() || !d.s.holds(g) {
			continue
		}
		next := d.p.looksAt(g, d.now)
		d.out.Checks = append(d.out.Checks, Check{Stage: g.Stage, Position: g.Position, Gate: g.Name, Number: g.Number, NotBefore: next.Time()})
		d.wake(next)
	}
}

// ended reports that the gate failed, or came to no end: nothing but a person has it go on.
func (g *GateHead) ended() bool {
	return g.State == GateFailed || g.State == GateError || g.State == GateInconclusive
}

// resetGates lets gates that failed, or came to no end, begin anew. Those that failed since then stay as they are; 0: none do.
func (d *decider) resetGates(since Instant) int {
	n := 0
	for i := range d.s.Gates {
		g := &d.s.Gates[i]
		if !g.ended() {
			continue
		}
		if g.State == GateFailed && since != 0 && g.Since >= since {
			continue
		}
		n++
		d.gateState(g, GatePending, "", "")
		g.Approvals, g.Failures, g.Inconclusive, g.Errors, g.Measured = nil, 0, 0, 0, 0
	}
	return n
}
