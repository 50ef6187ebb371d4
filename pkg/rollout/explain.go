package rollout

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Reason is one link of an explanation. Blocks says that it holds its subject back.
type Reason struct {
	Subject string
	Reason  string
	Message string
	Since   time.Time
	Until   time.Time
	By      string
	Actions []string
	Causes  []Reason
	Blocks  bool
}

// maxCauses is how many clusters an explanation lists; the rest is counted.
const maxCauses = 20

// Explain is the chain of reasons why the rollout of in.State does not move on, in the order in which they hold it
// back; then what follows, and the budget.
func Explain(in Input) []Reason {
	e := explainer{in: in, p: in.Plan, s: &in.State, sum: Summarize(in)}
	e.tree = e.p.ID.Module.Display()
	switch s := e.s; {
	case s.State.Ended():
		e.ended()
	default:
		if s.Pause != nil {
			e.paused()
		}
		if s.Back != nil {
			e.back()
			break
		}
		e.stages()
	}
	e.leavers()
	e.pins()
	if !e.s.State.Ended() {
		e.budget()
	}
	return e.out
}

type explainer struct {
	in   Input
	p    *Plan
	s    *State
	sum  Summary
	tree string // the module, as commands name it
	out  []Reason
	// asked says that the leavers who wait for a person are explained.
	asked bool
}

func (e *explainer) add(r Reason) { e.out = append(e.out, r) }

func (e *explainer) command(format string, args ...any) string {
	return "towline rollout " + fmt.Sprintf(format, args...)
}

func (e *explainer) ended() {
	r := Reason{Subject: "rollout " + e.p.ID.String(), Reason: cmp.Or(e.s.Reason, string(e.s.State)), Message: e.s.Message, Since: e.s.Ended.Time()}
	switch e.s.State {
	case Aborted:
		r.Actions = []string{e.command("rollback %s", e.tree), e.command("retry %s", e.tree)}
	case RolledBack:
		r.Message += "; it stays there until the module changes or somebody retries"
		r.Actions = []string{e.command("retry %s", e.tree)}
	case Failed:
		r.Actions = []string{e.command("retry %s", e.tree)}
	}
	r.Causes = e.clusters(-1)
	e.add(r)
	for n := range e.p.Stages {
		e.shut(n)
	}
}

// shut says which clusters of a stage wait for its window, after the rollout has gone on: they came late, or came back.
func (e *explainer) shut(n int) {
	message, until := e.s.closedWindow(e.p, n, e.in.Now)
	if message == "" {
		return
	}
	r := Reason{Subject: "stage " + e.p.Stages[n].Name, Reason: ReasonWindow, Message: message, Until: until}
	for i := range e.s.Len(e.p) {
		if m := e.s.record(i); int(m.Stage) == n && m.State == ClusterToApply && m.has(flagLate) && len(r.Causes) < maxCauses {
			r.Causes = append(r.Causes, e.cluster(i))
		}
	}
	if len(r.Causes) > 0 {
		e.add(r)
	}
}

func (e *explainer) paused() {
	p := e.s.Pause
	r := Reason{Subject: "rollout " + e.p.ID.String(), Reason: p.Reason, Message: e.s.Message, Since: p.At.Time(), By: p.By,
		Blocks: true, Actions: []string{e.command("resume %s", e.tree)}}
	if p.Reason == ReasonFailures || p.Reason == ReasonNoEarlierRevision && !e.s.gateFailed(Before, After) ||
		p.Reason == ReasonRollbackFailed && !e.s.gateFailed(BeforeRollback) {
		r.Message += "; it goes on by itself when enough of them are ready again"
	}
	switch p.Reason {
	case ReasonFailures, ReasonNoEarlierRevision, ReasonRollbackFailed, ReasonGateFailed:
		r.Actions = append(r.Actions, e.command("retry %s", e.tree))
		if e.s.Back == nil && e.p.From != 0 {
			r.Actions = append(r.Actions, e.command("rollback %s", e.tree))
		}
	}
	e.add(r)
}

func (e *explainer) back() {
	b := e.s.Back
	done := e.sum.RolledBack
	e.add(Reason{Subject: "rollback of " + e.p.ID.String(), Reason: b.Reason, Since: b.Started.Time(), By: b.By, Blocks: true,
		Message: fmt.Sprintf("%d of %d clusters are back at r%d", done, b.returns(), b.To), Causes: e.clusters(-1)})
}

func (e *explainer) stages() {
	for n := range e.p.Stages {
		h := &e.s.Stages[n]
		switch {
		case n < e.s.Stage:
			if late := e.catchingUp(n); len(late) > 0 {
				e.add(Reason{Subject: "stage " + e.p.Stages[n].Name, Reason: "CatchingUp", Message: fmt.Sprintf("%s to catch up", clusters(len(late))), Causes: late})
			}
			e.shut(n)
		case n == e.s.Stage && h.Started == 0:
			e.beforeStage(n)
		case n == e.s.Stage:
			e.inStage(n)
		case n < len(e.sum.Stages):
			e.thenStage(n)
		}
	}
	if e.s.Stage < len(e.p.Stages) || e.s.Pause != nil {
		return
	}
	r := Reason{Subject: "end of " + e.p.ID.String(), Reason: cmp.Or(e.s.Reason, "CatchingUp"), Since: e.s.Since.Time(), Blocks: true,
		Message: cmp.Or(e.s.Message, "all stages are done; clusters that catch up are awaited")}
	if e.s.Reason == ReasonConfirm {
		e.confirm(&r)
	}
	e.add(r)
}

// beforeStage says what keeps a stage from beginning.
func (e *explainer) beforeStage(n int) {
	name := e.p.Stages[n].Name
	r := Reason{Subject: "stage " + name, Reason: cmp.Or(e.s.Reason, ReasonNotReady), Message: e.s.Message, Since: e.s.Since.Time(), Blocks: true}
	switch e.s.Reason {
	case ReasonEmptyStage, ReasonEmptyOverride:
		r.Actions = []string{e.command("promote %s", e.tree)}
	case ReasonConfirm:
		e.confirm(&r)
	}
	for i := range e.s.Gates {
		if g := &e.s.Gates[i]; g.Stage == n && g.Position == Before {
			r.Causes = append(r.Causes, e.gate(g))
		}
	}
	e.add(r)
	e.thenStage(n)
}

// leavers explains who waits for a person's confirm to leave, beside what else the rollout does or is.
func (e *explainer) leavers() {
	if e.asked || e.s.HoldSince == 0 {
		return
	}
	r := Reason{Subject: "leavers of " + e.p.ID.String(), Reason: ReasonConfirm, Since: e.s.HoldSince.Time(), Blocks: true,
		Message: wouldLose(len(leaving(e.p, e.s)))}
	e.confirm(&r)
	e.add(r)
}

// confirm adds what waits for a person.
func (e *explainer) confirm(r *Reason) {
	e.asked = true
	items := leaving(e.p, e.s)
	r.Actions = []string{"towline confirm " + holdID(leaveDigest(e.p, e.s))}
	for _, name := range items[:min(len(items), maxCauses)] {
		r.Causes = append(r.Causes, Reason{Subject: "cluster " + name, Reason: ReasonLeaving, Message: "would lose the module", Blocks: true})
	}
}

func (e *explainer) inStage(n int) {
	c, name := &e.sum.Stages[n], e.p.Stages[n].Name
	h := &e.s.Stages[n]
	switch {
	case e.s.Reason == ReasonAllDeferred:
		e.add(Reason{Subject: "stage " + name, Reason: e.s.Reason, Since: e.s.Since.Time(), Blocks: true, Message: e.s.Message,
			Causes: blocking(e.clusters(n)), Actions: []string{e.command("promote %s -m …", e.tree)}})
	case e.s.Reason == ReasonUnplaced, e.s.Reason == ReasonAwaitingSource:
		e.add(Reason{Subject: "stage " + name, Reason: e.s.Reason, Since: e.s.Since.Time(), Blocks: true, Message: e.s.Message})
	case h.Quiet == 0:
		e.add(Reason{Subject: "stage " + name, Reason: cmp.Or(e.s.Reason, string(StageProgressing)), Since: h.Started.Time(), Blocks: true,
			Message: fmt.Sprintf("is not done: %s", countWords(&c.Counts)), Causes: e.clusters(n)})
	}
	if soak := e.p.Stages[n].Soak; c.soaks(h, &e.p.Stages[n]) {
		r := Reason{Subject: "soak of " + name, Reason: ReasonSoak, Message: fmt.Sprintf("%s, starts when no cluster of %s is running", soak, name)}
		if h.Quiet != 0 {
			r.Since, r.Until, r.Blocks = h.Quiet.Time(), h.Quiet.add(soak).Time(), true
			r.Message = fmt.Sprintf("%s, until %s", soak, clock(At(r.Until)))
			r.Actions = []string{e.command("promote %s -m …", e.tree)}
		}
		e.add(r)
	}
	for i := range e.s.Gates {
		if g := &e.s.Gates[i]; g.Stage == n && g.Position == After && g.State != GateSuccessful {
			e.add(e.gate(g))
		}
	}
}

// blocking marks reasons as what holds the rollout.
func blocking(all []Reason) []Reason {
	for i := range all {
		all[i].Blocks = true
	}
	return all
}

func (e *explainer) thenStage(n int) {
	s := &e.p.Stages[n]
	c := &e.sum.Stages[min(n, len(e.sum.Stages)-1)]
	if n >= len(e.sum.Stages) {
		return
	}
	message := fmt.Sprintf("%s, all at once", clusters(c.Members()))
	if a := s.MaxConcurrency; a.Set {
		message = fmt.Sprintf("%s, %d at a time", clusters(c.Members()), c.Limit)
		if a.Percent {
			message += fmt.Sprintf(" (%s of %d, rounded down)", a, e.s.Stages[n].Total)
		}
	}
	e.add(Reason{Subject: "stage " + s.Name, Reason: string(StageWaiting), Message: message})
}

// gate explains a gate that has not been passed.
func (e *explainer) gate(g *GateHead) Reason {
	spec, stage := e.p.gateSpec(g), e.p.Stages[g.Stage].Name
	r := Reason{Subject: fmt.Sprintf("gate %s %s stage %s", g.Name, preposition(g.Position), stage), Reason: kindReason[spec.Kind()],
		Message: g.Message, Since: g.Since.Time(), Until: g.nextLook(), Blocks: g.State != GatePending && g.State != GateSuccessful}
	if g.State == GatePending {
		r.Message = "not reached"
	}
	at := fmt.Sprintf("%s --stage %s --gate %s", e.tree, stage, g.Name)
	switch {
	case g.State == GateSuccessful:
	case spec.Approval != nil:
		r.Message = fmt.Sprintf("%d of %d", len(g.approvers(At(e.in.Now))), spec.Approval.Approvers)
		if e.p.StartedBy != "" {
			r.Message += fmt.Sprintf(", not by %s, who started it", e.p.StartedBy)
		}
		r.By = strings.Join(spec.Approval.Users, ", ")
		r.Actions = e.approvals(g, e.command("approve %s --revision %d -m …", at, e.p.Revision))
	case g.State == GateFailed || g.State == GateError || g.State == GateInconclusive:
		r.Reason = gateReasons[g.State]
		r.Actions = []string{e.command("retry %s", e.tree), e.command("override %s -m …", at)}
	case g.State == GateRunning:
		r.Actions = []string{e.command("override %s -m …", at)}
	}
	return r
}

// approvals are the commands that lead to an approval, each with who may run it.
func (e *explainer) approvals(g *GateHead, approve string) []string {
	switch users, named := e.p.mayApprove(g); {
	case e.p.StartedBy == "" && !named:
		return []string{approve}
	case !named:
		return []string{approve + " # by another admin than " + e.p.StartedBy, makeAdmin + " # makes one, who approves with --config FILE"}
	case len(users) == 0:
		return []string{"towline apply -f FILE # with other users of gate " + g.Name + ", or without it"}
	default:
		return []string{approve + " # by " + strings.Join(users, " or ")}
	}
}

var gateReasons = map[GateState]string{GateFailed: ReasonGateFailed, GateError: ReasonGateError, GateInconclusive: ReasonGateInconclusive}

// clusters explains the members of a stage that are not fine; of all stages if n is negative.
func (e *explainer) clusters(n int) []Reason {
	var out []Reason
	more := 0
	of := func(want func(*Record) bool) func(int) bool { return func(i int) bool { return want(e.s.record(i)) } }
	waited := func(i int) bool { return e.s.waitsForBack(e.in, i) }
	unsure := func(i int) bool { return i < len(e.in.Observed) && e.s.unsure(e.s.record(i), &e.in.Observed[i]) }
	for _, want := range []func(int) bool{of(isFailed), of((*Record).InFlight), waited, of(isDeferred), of(isPinnedOrSkipped), unsure} {
		for i := range e.s.Len(e.p) {
			if n >= 0 && int(e.s.record(i).Stage) != n || !want(i) {
				continue
			}
			if len(out) == maxCauses {
				more++
				continue
			}
			out = append(out, e.cluster(i))
		}
	}
	if more > 0 {
		out = append(out, Reason{Subject: fmt.Sprintf("%d more clusters", more), Reason: "NotListed", Message: "towline rollout status --all lists them"})
	}
	return out
}

func isFailed(r *Record) bool          { return r.State == ClusterFailed || r.State == ClusterTimedOut }
func isDeferred(r *Record) bool        { return r.State == ClusterDeferred }
func isPinnedOrSkipped(r *Record) bool { return r.State == ClusterSkipped }

func (e *explainer) cluster(i int) Reason {
	c := ClusterOf(e.in, i)
	r := Reason{Subject: "cluster " + string(c.Cluster), Reason: cmp.Or(c.Reason, c.State.String()), Message: c.Message, Since: c.Since}
	at := fmt.Sprintf("%s --cluster %s", e.tree, c.Cluster)
	if e.s.State.Ended() && c.Reason != ReasonPinned && c.Reason != ReasonCordoned && !e.s.mayTakeUp(e.s.record(i)) {
		return r
	}
	switch c.State {
	case ClusterWaiting:
		if e.s.waitsForBack(e.in, i) {
			r.Blocks, r.Actions = true, []string{e.command("skip %s -m …", at)}
		}
	case ClusterProgressing, ClusterSoaking:
		r.Until, r.Blocks = c.Deadline, true
		if c.State == ClusterSoaking && c.Reason == ReasonReady {
			r.Until = e.s.record(i).ReadySince.add(e.p.Strategy.MinReadyTime).Time()
		}
		r.Actions = []string{e.command("skip %s -m …", at)}
	case ClusterFailed, ClusterTimedOut:
		r.Actions = []string{e.command("retry %s", at), e.command("skip %s -m …", at)}
	case ClusterDeferred:
		if r.Reason == ReasonCordoned {
			r.Actions = []string{"towline cluster uncordon " + string(c.Cluster)}
		}
	case ClusterSkipped:
		r.Actions = []string{e.command("retry %s", at)}
		if e.s.record(i).has(flagLeave) {
			r.Message += "; it would lose the module"
		}
		if c.Reason == ReasonPinned {
			r.Actions = []string{e.command("unpin %s", at)}
		}
	}
	return r
}

func (e *explainer) catchingUp(n int) []Reason {
	var out []Reason
	for i := range e.s.Len(e.p) {
		if r := e.s.record(i); int(r.Stage) == n && (r.InFlight() || r.State == ClusterToApply) && len(out) < maxCauses {
			out = append(out, e.cluster(i))
		}
	}
	return out
}

func (e *explainer) pins() {
	for _, p := range e.s.Pins {
		e.add(Reason{Subject: "cluster " + string(p.Cluster), Reason: ReasonPinned, Message: p.Why, By: p.By, Since: p.At.Time(), Until: p.Until.Time(),
			Actions: []string{e.command("unpin %s --cluster %s", e.tree, p.Cluster)}})
	}
}

// budget says how many failures are left.
func (e *explainer) budget() {
	var used []string
	for i := range e.s.Len(e.p) {
		if isFailed(e.s.record(i)) && len(used) < 5 {
			used = append(used, string(e.s.Member(e.p, i).Cluster))
		}
	}
	failed, tolerated := e.sum.Failed, max(e.sum.Tolerated, e.s.Accepted)
	message := fmt.Sprintf("failures %d of %d tolerated", failed, tolerated)
	if len(used) > 0 {
		message += ", used by " + strings.Join(used, ", ")
		if failed > len(used) {
			message += fmt.Sprintf(" and %d more", failed-len(used))
		}
	}
	if left := tolerated - failed; left >= 0 && e.s.Back == nil {
		message += fmt.Sprintf("; %d more %s", left+1, e.consequence())
	}
	e.add(Reason{Subject: "budget", Reason: "Failures", Message: message})
}

func (e *explainer) consequence() string {
	switch e.p.Strategy.OnFailure {
	case OnFailureAbort:
		return "aborts the rollout"
	case OnFailureRollback:
		if e.p.From == 0 {
			return "pauses the rollout, since there is no earlier revision"
		}
		return fmt.Sprintf("rolls back %s clusters to r%d, newest first", strings.ToLower(e.p.Strategy.Rollback.Scope), e.p.From)
	}
	return "pauses the rollout"
}

func countWords(c *Counts) string {
	parts := []string{fmt.Sprintf("%d of %d succeeded", c.Succeeded, c.Members())}
	for _, x := range []struct {
		n    int
		what string
	}{{c.Running, "running"}, {c.Failed, "failed"}, {c.Deferred, "deferred"}, {c.Skipped, "skipped"}, {c.Removed, "removed"}, {c.ToGo, "to go"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	return strings.Join(parts, ", ")
}
