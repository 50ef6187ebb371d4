package rollout

import (
	"cmp"
	"slices"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Reason is one link of an explanation. Blocks says that it holds its subject back.
type Reason struct {
	Subject About
	Reason  string
	Facts   *Facts
	Since   time.Time
	Until   time.Time
	By      string
	Actions []Action
	Causes  []Reason
	Blocks  bool
}

// maxCauses is how many clusters an explanation lists; the rest is counted.
const maxCauses = 20

// Explain is the chain of reasons why the rollout of in.State does not move on, in the order in which they hold it
// back; then what follows, and the budget.
func Explain(in Input) []Reason {
	e := explainer{in: in, p: in.Plan, s: &in.State, sum: Summarize(in)}
	switch s := e.s; {
	case s.State.Ended():
		e.ended()
		e.awaits()
	default:
		if s.Pause != nil {
			e.paused()
		}
		if s.Reason == ReasonRestored || s.Facts != nil && s.Facts.Code == ReasonRestored {
			if s.Back != nil {
				e.back()
			}
			e.add(Reason{Subject: e.rollout(AboutRollout), Reason: ReasonRestored, Since: s.Since.Time(), Blocks: true, Actions: do(DoAcceptRestore, DoResumeRestore)})
			break
		}
		if s.Back != nil {
			e.back()
			break
		}
		if e.s.Reason == ReasonAwaitingDependency {
			e.awaits()
			e.stages()
		} else {
			e.stages()
			e.awaits()
		}
	}
	e.leavers()
	e.pins()
	e.unmatched()
	if !e.s.State.Ended() {
		e.budget()
	}
	return e.out
}

type explainer struct {
	in  Input
	p   *Plan
	s   *State
	sum Summary
	out []Reason
	// asked says that the leavers who wait for a person are explained.
	asked bool
}

func (e *explainer) add(r Reason) { e.out = append(e.out, r) }

func (e *explainer) rollout(kind string) About { return About{Kind: kind, Name: e.p.ID.String()} }

func (e *explainer) stage(n int) About { return About{Kind: AboutStage, Name: e.p.Stages[n].Name} }

func aboutCluster(name string) About { return About{Kind: AboutCluster, Name: name} }

func do(methods ...string) []Action {
	out := make([]Action, len(methods))
	for i, m := range methods {
		out[i].Method = m
	}
	return out
}

func (e *explainer) ended() {
	r := Reason{Subject: e.rollout(AboutRollout), Reason: cmp.Or(e.s.Reason, string(e.s.State)), Facts: e.s.Facts, Since: e.s.Ended.Time()}
	switch e.s.State {
	case Aborted:
		if e.s.Reason != ReasonModuleDeleted { // it takes no word any more
			if e.s.mayGoBack(e.p, &e.in.Module) {
				r.Actions = do(DoRollBack)
			}
			r.Actions = append(r.Actions, do(DoRetry)...)
		}
	case RolledBack, Failed:
		r.Actions = do(DoRetry)
	}
	r.Causes = append(e.hadFailed(), e.clusters(-1)...)
	e.add(r)
	for n := range e.p.Stages {
		if !e.in.overtaken() {
			e.shut(n)
		}
	}
}

// shut says which clusters of a stage wait for its window, after the rollout has gone on: they came late, or came back.
func (e *explainer) shut(n int) {
	facts, until := e.s.closedWindow(e.p, n, e.in.Now)
	if facts == nil {
		return
	}
	r := Reason{Subject: e.stage(n), Reason: ReasonWindow, Facts: facts, Until: until}
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
	r := Reason{Subject: e.rollout(AboutRollout), Reason: p.Reason, Facts: e.s.Facts, Since: p.At.Time(), By: p.By,
		Blocks: true, Actions: do(DoResume)}
	switch p.Reason {
	case ReasonFailures, ReasonNoEarlierRevision, ReasonRollbackFailed, ReasonGateFailed:
		if p.Reason != ReasonGateFailed && r.Facts != nil && !e.s.mends(e.p) {
			f := *r.Facts
			f.Code, r.Facts = NotByItself, &f
		}
		if e.mayRetry() {
			r.Actions = append(r.Actions, do(DoRetry)...)
		}
		if e.s.mayGoBack(e.p, &e.in.Module) {
			r.Actions = append(r.Actions, do(DoRollBack)...)
		}
	}
	e.add(r)
}

// mends reports that a pause for failures is over when those that failed and were given something are ready with it. Who was away when its
// turn came has nothing to get ready with.
func (s *State) mends(p *Plan) bool {
	failed := make([]struct{ all, accepted int }, len(p.Stages))
	all, accepted := 0, 0
	for i := range s.Len(p) {
		r := s.record(i)
		missed := r.has(flagLeave) != (r.Revision == 0) // it was away when its labels had made something else of its move
		if !isFailed(r) || r.given() && !missed {
			continue
		}
		all++
		failed[r.Stage].all++
		if r.has(flagAccepted) {
			accepted++
			failed[r.Stage].accepted++
		}
	}
	if all == accepted || s.Back != nil {
		return true
	}
	for n := range failed {
		if limit, ok := p.stageTolerates(&s.Head, n, failed[n].accepted); ok && failed[n].all > limit {
			return false
		}
	}
	return all <= p.Tolerated()
}

// mayRetry reports that there is something to retry: a gate that has failed, or a cluster that has and can begin anew.
func (e *explainer) mayRetry() bool {
	for i := range e.s.Len(e.p) {
		if retriable(e.s.record(i), e.in.observed(i)) {
			return true
		}
	}
	return slices.ContainsFunc(e.s.Gates, func(g GateHead) bool { return g.ended() })
}

func (e *explainer) back() {
	b := e.s.Back
	f := Facts{Count: e.sum.RolledBack, Total: b.returns(), Revision: b.To}
	if e.s.Facts != nil {
		f.Code = e.s.Facts.Code // what it waits for
	}
	e.add(Reason{Subject: e.rollout(AboutRollback), Reason: b.Reason, Since: b.Started.Time(), By: b.By, Blocks: true,
		Facts: &f, Causes: append(e.hadFailed(), e.clusters(-1)...)})
	for i := range e.s.Gates {
		if g := &e.s.Gates[i]; e.s.holds(g) {
			e.add(e.gate(g))
		}
	}
}

// hadFailed are those that had failed before a rollback, whose records tell of that now.
func (e *explainer) hadFailed() (out []Reason) {
	if e.s.Back == nil {
		return nil
	}
	for _, f := range e.s.Back.Failed {
		out = append(out, Reason{Subject: aboutCluster(string(f.Cluster)), Reason: ReasonHadFailed, Facts: &Facts{Code: f.Reason, Detail: f.Message}, Since: f.Since.Time()})
	}
	if more := e.s.Back.Failures - len(out); more > 0 {
		out = append(out, Reason{Subject: About{Kind: AboutClusters}, Reason: ReasonHadFailed, Facts: &Facts{Count: more}})
	}
	return out
}

func (e *explainer) stages() {
	for n := range e.p.Stages {
		h := &e.s.Stages[n]
		switch {
		case n < e.s.Stage:
			if late := e.catchingUp(n); len(late) > 0 {
				e.add(Reason{Subject: e.stage(n), Reason: ReasonCatchingUp, Facts: &Facts{Count: len(late)}, Causes: late})
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
	r := Reason{Subject: e.rollout(AboutEnd), Reason: cmp.Or(e.s.Reason, ReasonCatchingUp), Since: e.s.Since.Time(), Blocks: true, Facts: e.s.Facts}
	if e.s.Reason == ReasonConfirm {
		e.confirm(&r)
	}
	e.add(r)
}

// beforeStage says what keeps a stage from beginning.
func (e *explainer) beforeStage(n int) {
	r := Reason{Subject: e.stage(n), Reason: cmp.Or(e.s.Reason, ReasonNotReady), Facts: e.s.Facts, Since: e.s.Since.Time(), Blocks: true}
	switch e.s.Reason {
	case ReasonEmptyStage, ReasonEmptyOverride:
		r.Actions = do(DoPromote)
	case ReasonConfirm:
		e.confirm(&r)
	case ReasonHeldUnready:
		r.Causes, r.Actions = e.heldClusters(n), do(DoListHolds, DoPromote)
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
	if e.asked || e.s.HoldSince == 0 || e.s.asksNobody() || e.in.Module.Successor != 0 {
		return
	}
	count := len(leaving(e.p, e.s))
	if count == 0 {
		return
	}
	r := Reason{Subject: e.rollout(AboutLeavers), Reason: ReasonConfirm, Since: e.s.HoldSince.Time(), Blocks: true, Facts: &Facts{Count: count}}
	e.confirm(&r)
	e.add(r)
}

// confirm adds what waits for a person.
func (e *explainer) confirm(r *Reason) {
	e.asked = true
	items := leaving(e.p, e.s)
	r.Actions = []Action{{Method: DoConfirm, Hold: holdID(leaveDigest(e.p, e.s))}}
	for _, name := range items[:min(len(items), maxCauses)] {
		r.Causes = append(r.Causes, Reason{Subject: aboutCluster(name), Reason: ReasonWouldLeave, Blocks: true})
	}
}

func (e *explainer) inStage(n int) {
	c, name := &e.sum.Stages[n], e.p.Stages[n].Name
	h := &e.s.Stages[n]
	switch {
	case e.s.Reason == ReasonAllDeferred, e.s.Reason == ReasonAllAway:
		causes := e.clusters(n)
		if len(causes) == 0 { // none of its own can show anything
			causes = e.clusters(-1)
		}
		e.add(Reason{Subject: e.stage(n), Reason: e.s.Reason, Since: e.s.Since.Time(), Blocks: true, Facts: e.s.Facts,
			Causes: blocking(causes), Actions: do(DoPromote)})
	case e.s.Reason == ReasonHeldUnready:
		e.add(Reason{Subject: e.stage(n), Reason: e.s.Reason, Since: e.s.Since.Time(), Blocks: true, Facts: e.s.Facts,
			Causes: e.heldClusters(n), Actions: do(DoListHolds, DoPromote)})
	case e.s.Reason == ReasonEmptyStage:
		e.add(Reason{Subject: e.stage(n), Reason: e.s.Reason, Since: e.s.Since.Time(), Blocks: true, Facts: e.s.Facts, Actions: do(DoPromote)})
	case e.s.Reason == ReasonUnplaced, e.s.Reason == ReasonNotYetHeard, e.s.Reason == ReasonAwaitingSource:
		e.add(Reason{Subject: e.stage(n), Reason: e.s.Reason, Since: e.s.Since.Time(), Blocks: true, Facts: e.s.Facts})
	case h.Quiet == 0:
		reason := cmp.Or(e.s.Reason, string(StageProgressing))
		if reason == ReasonAwaitingDependency { // which is explained by itself
			reason = string(StageProgressing)
		}
		e.add(Reason{Subject: e.stage(n), Reason: reason, Since: h.Started.Time(), Blocks: true,
			Facts: c.facts(), Causes: e.clusters(n)})
	}
	if soak := e.p.Stages[n].Soak; c.soaks(h, &e.p.Stages[n]) && (h.Quiet == 0 || !e.s.waitsInstead()) {
		r := Reason{Subject: About{Kind: AboutSoak, Name: name}, Reason: ReasonSoak, Facts: &Facts{For: soak, Stage: name}}
		if h.Quiet != 0 {
			began := e.in.since(h.Quiet)
			r.Since, r.Until, r.Blocks = began.Time(), began.add(soak).Time(), true
			r.Actions = do(DoPromote)
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
	f := Facts{Count: c.Members()}
	if a := s.MaxConcurrency; a.Set {
		f.Limit = c.Limit
		if a.Percent {
			f.Percent, f.Total = a.String(), e.s.Stages[n].Total
		}
	}
	e.add(Reason{Subject: e.stage(n), Reason: ReasonNextStage, Facts: &f})
}

// gate explains a gate that has not been passed.
func (e *explainer) gate(g *GateHead) Reason {
	spec, stage := e.p.gateSpec(g), e.p.Stages[g.Stage].Name
	now := At(e.in.Now)
	r := Reason{Subject: About{Kind: AboutGate, Name: g.Name, Stage: stage, Position: g.Position}, Reason: kindReason[spec.Kind()],
		Facts: e.p.gateFacts(g, now), Since: g.Since.Time(), Until: e.p.nextLook(g, now), Blocks: g.State != GatePending && g.State != GateSuccessful}
	if g.State == GatePending {
		r.Facts.Code = GateNotReached
	}
	override := Action{Method: DoOverride, Stage: stage, Gate: g.Name}
	switch {
	case g.State == GateSuccessful:
	case spec.Approval != nil && g.State == GateFailed: // nobody may approve what was rejected
		r.Actions = do(DoRetry)
	case spec.Approval != nil:
		if g.State != GateFailed {
			f := *r.Facts
			f.Code, f.Count, f.Total, f.By = GateApproving, len(g.approvers(g.counted(now))), spec.Approval.Approvers, e.p.StartedBy
			f.Names = spec.Approval.Users
			r.Facts = &f
		}
		if g.State != GatePending || !e.s.sharesName(g) {
			r.Actions = e.p.approvals(g)
		}
	case g.State == GateFailed || g.State == GateError || g.State == GateInconclusive:
		r.Reason = gateReasons[g.State]
		r.Actions = append(do(DoRetry), override)
	case g.State == GateRunning:
		r.Actions = []Action{override}
	}
	return r
}

// approvals are what leads to an approval, each with who may say it.
func (p *Plan) approvals(g *GateHead) []Action {
	approve := Action{Method: DoApprove, Stage: p.Stages[g.Stage].Name, Gate: g.Name, Revision: p.Revision}
	switch users, named := p.mayApprove(g); {
	case named && len(users) == 0:
		return []Action{{Method: DoPutModule, Gate: g.Name}}
	case named:
		approve.By = users
	case p.StartedBy != "":
		approve.NotBy = p.StartedBy
		return []Action{approve, {Method: DoCreateUser}}
	}
	return []Action{approve}
}

var gateReasons = map[GateState]string{GateFailed: ReasonGateFailed, GateError: ReasonGateError, GateInconclusive: ReasonGateInconclusive}

// clusters explains the members of a stage that are not fine; of all stages if n is negative.
func (e *explainer) clusters(n int) []Reason {
	var out []Reason
	more := 0
	of := func(want func(*Record) bool) func(int) bool { return func(i int) bool { return want(e.s.record(i)) } }
	waited := func(i int) bool { return e.s.waitsForBack(e.in, i) }
	untold := func(i int) bool { return e.s.waitsToBeTold(e.in, i) }
	unsure := func(i int) bool { return i < len(e.in.Observed) && e.s.unsure(e.s.record(i), &e.in.Observed[i]) }
	for _, want := range []func(int) bool{of(isFailed), of((*Record).InFlight), waited, untold, of(isDeferred), of(isPinnedOrSkipped), unsure} {
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
		out = append(out, Reason{Subject: About{Kind: AboutClusters}, Reason: ReasonNotListed, Facts: &Facts{Count: more}})
	}
	return out
}

func isFailed(r *Record) bool          { return r.State == ClusterFailed || r.State == ClusterTimedOut }
func isDeferred(r *Record) bool        { return r.State == ClusterDeferred }
func isPinnedOrSkipped(r *Record) bool { return r.State == ClusterSkipped }

func (e *explainer) cluster(i int) Reason {
	c := ClusterOf(e.in, i)
	r := Reason{Subject: aboutCluster(string(c.Cluster)), Reason: cmp.Or(c.Reason, c.State.String()), Facts: c.Facts, Since: c.Since}
	at := func(method string) Action { return Action{Method: method, Cluster: string(c.Cluster)} }
	if e.s.State.Ended() && c.Reason != ReasonPinned && c.Reason != ReasonCordoned && !e.s.mayTakeUp(e.s.record(i)) {
		return e.joining(r)
	}
	switch c.State {
	case ClusterWaiting:
		if e.s.waitsForBack(e.in, i) {
			r.Blocks, r.Actions = true, []Action{at(DoSkip)}
		}
		r.Blocks = r.Blocks || e.s.waitsToBeTold(e.in, i)
	case ClusterProgressing, ClusterSoaking:
		r.Until, r.Blocks = c.Deadline, true
		if c.State == ClusterSoaking && c.Reason == ReasonReady {
			r.Until = e.in.since(e.s.record(i).ReadySince).add(e.p.Strategy.MinReadyTime).Time()
		}
		r.Actions = []Action{at(DoSkip)}
	case ClusterFailed, ClusterTimedOut:
		if retriable(e.s.record(i), e.in.observed(i)) {
			r.Actions = []Action{at(DoRetry)}
		}
		if staysFailed(e.s.record(i), e.in.observed(i)) == ReasonCordoned {
			r.Actions = append(r.Actions, at(DoPutCluster))
		}
		r.Actions = append(r.Actions, at(DoSkip))
	case ClusterDeferred:
		if r.Reason == ReasonCordoned {
			r.Actions = []Action{at(DoPutCluster)}
		}
	case ClusterSkipped:
		r.Actions = []Action{at(DoRetry)}
		if e.s.record(i).has(flagLeave) {
			f := Facts{}
			if r.Facts != nil {
				f = *r.Facts
			}
			f.Code = ReasonWouldLeave
			r.Facts = &f
		}
		if e.s.record(i).has(flagPinned) {
			r.Actions = []Action{at(DoUnpin)}
		}
	}
	if r.Reason == ReasonLocked {
		r.Actions = append(r.Actions, at(DoUnlockCluster))
	}
	return e.joining(r)
}

// joining adds how a cluster comes that has never been there.
func (e *explainer) joining(r Reason) Reason {
	if r.Facts != nil && r.Facts.Code == NotJoined {
		r.Actions = append(r.Actions, Action{Method: DoJoinCluster, Cluster: r.Subject.Name})
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

// pins are those that count. Of a rollout that decides nothing any more they are another's, which may have ended them.
func (e *explainer) pins() {
	if e.in.overtaken() {
		return
	}
	for _, p := range e.s.Pins {
		e.add(Reason{Subject: aboutCluster(string(p.Cluster)), Reason: ReasonPinned, Facts: detail(p.Why), By: p.By, Since: p.At.Time(), Until: p.Until.Time(),
			Actions: []Action{{Method: DoUnpin, Cluster: string(p.Cluster)}}})
	}
}

// budget says how many failures are left, of the rollout, of a stage that stands fewer, or of the way back, and what one too many
// does.
func (e *explainer) budget() {
	var used []fleet.ClusterName
	for i := range e.s.Len(e.p) {
		if isFailed(e.s.record(i)) && len(used) <= maxCauses {
			used = append(used, e.s.Member(e.p, i).Cluster)
		}
	}
	f := Facts{Failed: e.sum.Failed, Tolerated: e.sum.Tolerated, Clusters: few(used)}
	switch {
	case e.s.Back != nil:
		if f.Failed, f.Tolerated = e.s.backFailed(e.p), e.p.backTolerates(e.s.Back.Accepted); f.Failed <= f.Tolerated {
			f.Code = OnFailurePause
		}
	case f.Failed <= f.Tolerated:
		e.stageBudget(&f)
		if f.Failed > f.Tolerated {
			break
		}
		f.Code = e.p.Strategy.OnFailure
		if f.Code == OnFailureRollback {
			f.Revision = e.p.From // 0: there is none, and it pauses
		}
	}
	e.add(Reason{Subject: About{Kind: AboutBudget}, Reason: ReasonBudget, Facts: &f})
}

// stageBudget makes the facts those of the stage that stands the fewest further failures, if the rollout as a whole stands more.
func (e *explainer) stageBudget(f *Facts) {
	for n := range e.sum.Stages {
		limit, ok := e.p.stageTolerates(&e.s.Head, n, e.s.Stages[n].Accepted)
		failed := e.sum.Stages[n].Failed
		if ok && e.s.Stages[n].Started != 0 && limit-failed < f.Tolerated-f.Failed {
			f.Stage, f.Failed, f.Tolerated = e.p.Stages[n].Name, failed, limit
		}
	}
}

// facts are the counts for a sentence.
func (c *Counts) facts() *Facts {
	return &Facts{Code: ReasonNotDone, Total: c.Members(), Succeeded: c.Succeeded, Running: c.Running, Failed: c.Failed, Deferred: c.Deferred, Skipped: c.Skipped,
		Removed: c.Removed, ToGo: c.ToGo}
}
