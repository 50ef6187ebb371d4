package rollout

import (
	"cmp"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Counts are exact and add up: ToGo + Running + Succeeded + Failed + Deferred + Skipped + RolledBack + Removed is
// Total + Joined.
type Counts struct {
	Total      int // frozen when the rollout started
	Joined     int // came later
	ToGo       int
	Running    int
	Succeeded  int
	Failed     int // and timed out
	Deferred   int
	Skipped    int
	RolledBack int
	Removed    int
	Moved      int // assigned something by this rollout
	PassedOver int // not to have the revision: they lose the module, are skipped or pinned, or were removed from the hub
}

// Summary is the tree of a rollout without its clusters.
type Summary struct {
	State   RunState
	Reason  string
	Facts   *Facts
	Since   time.Time
	Started time.Time
	Ended   time.Time
	Counts
	Tolerated int
	Stages    []StageSummary
}

// StageSummary is a stage with its gates.
type StageSummary struct {
	Name  string
	State StageState
	Counts
	Limit     int
	Started   time.Time
	Ended     time.Time
	SoakUntil time.Time
	Gates     []GateSummary
	Reason    string // why it stands as it does
	Facts     *Facts
}

// GateSummary is a gate.
type GateSummary struct {
	Name       string
	Position   Position
	Kind       string
	State      GateState
	Facts      *Facts // why it stands as it does
	Since      time.Time
	NextLook   time.Time
	ApprovedBy []string
	Approvers  int
}

// ClusterStatus is a member.
type ClusterStatus struct {
	Cluster  fleet.ClusterName
	Stage    string
	State    ClusterState
	Revision int64 // assigned now
	Since    time.Time
	Started  time.Time
	Deadline time.Time
	Reason   string
	Facts    *Facts
}

// Summarize tells how the rollout of in.State stands.
func Summarize(in Input) Summary {
	p, s := in.Plan, &in.State
	out := Summary{State: s.State, Reason: s.Reason, Facts: s.Facts, Since: s.Since.Time(), Started: s.Started.Time(),
		Ended: s.Ended.Time(), Tolerated: max(p.Tolerated(), s.Accepted), Stages: make([]StageSummary, len(p.Stages))}
	counts := Tally(p, s)
	for i := range p.Stages {
		out.Stages[i].Name, out.Stages[i].Counts = p.Stages[i].Name, counts[i]
		out.Stages[i].describe(in, i)
	}
	out.Counts = Sum(counts)
	if last := len(out.Stages) - 1; isUnused(&out.Stages[last], &s.Stages[last]) {
		out.Stages = out.Stages[:last]
	}
	return out
}

// isUnused reports that nobody is in the stage of those that no stage matches, nor was when the rollout was planned: such a one is not
// shown, and holds nothing up.
func isUnused(sum *StageSummary, h *StageHead) bool {
	return sum.Name == UnmatchedStage && h.Total+sum.Total+sum.Joined == 0
}

// Tally counts the members of each stage: those that the plan has in it, and those that it took while it was empty.
func Tally(p *Plan, s *State) []Counts {
	out := make([]Counts, len(p.Stages))
	for i := range s.Len(p) {
		r := s.record(i)
		c := &out[r.Stage]
		if i < len(p.Members) {
			c.Total++
		} else {
			c.Joined++
		}
		c.add(r)
	}
	return out
}

// Sum is the counts of a rollout, from those of its stages.
func Sum(stages []Counts) (all Counts) {
	for i := range stages {
		all.sum(&stages[i])
	}
	return all
}

func (c *Counts) add(r *Record) {
	if r.Moved() {
		c.Moved++
	}
	if r.Leaving() || r.State == ClusterSkipped || r.State == ClusterRemoved {
		c.PassedOver++
	}
	switch r.State {
	case ClusterToApply, ClusterWaiting:
		c.ToGo++
	case ClusterProgressing, ClusterSoaking:
		c.Running++
	case ClusterSucceeded:
		c.Succeeded++
	case ClusterFailed, ClusterTimedOut:
		c.Failed++
	case ClusterDeferred:
		c.Deferred++
	case ClusterSkipped:
		c.Skipped++
	case ClusterRolledBack:
		c.RolledBack++
	case ClusterRemoved:
		c.Removed++
	}
}

func (c *Counts) sum(o *Counts) {
	c.Total += o.Total
	c.Joined += o.Joined
	c.ToGo += o.ToGo
	c.Running += o.Running
	c.Succeeded += o.Succeeded
	c.Failed += o.Failed
	c.Deferred += o.Deferred
	c.Skipped += o.Skipped
	c.RolledBack += o.RolledBack
	c.Removed += o.Removed
	c.Moved += o.Moved
	c.PassedOver += o.PassedOver
}

func (g *StageSummary) describe(in Input, n int) {
	p, s := in.Plan, &in.State
	h, spec := &s.Stages[n], &p.Stages[n]
	g.Started, g.Ended = h.Started.Time(), h.Ended.Time()
	g.Limit = g.Members()
	if spec.MaxConcurrency.Set {
		g.Limit = min(spec.MaxConcurrency.limit(max(h.Total, 1)), max(g.Members(), 1))
	}
	if h.Quiet != 0 && h.Ended == 0 && g.soaks(h, spec) && !s.waitsInstead() {
		g.SoakUntil = in.since(h.Quiet).add(spec.Soak).Time()
	}
	for i := range s.Gates {
		if s.Gates[i].Stage == n {
			g.Gates = append(g.Gates, gateSummary(p, &s.Gates[i], At(in.Now)))
		}
	}
	g.State, g.Reason, g.Facts = g.stateOf(in, n)
}

// soaks reports that a stage is to be watched for a while. One without clusters is not.
func (c *Counts) soaks(h *StageHead, spec *PlanStage) bool {
	return spec.Soak > 0 && !h.Soaked && c.Members() > c.Removed
}

// waitsInstead reports that the rollout waits for something else than the soak of its stage, which is over then only after that is.
func (h *Head) waitsInstead() bool { return h.State == Waiting && h.Reason != ReasonSoak }

// Members is how many there are.
func (c *Counts) Members() int { return c.Total + c.Joined }

func (g *StageSummary) stateOf(in Input, n int) (StageState, string, *Facts) {
	s := &in.State
	h := &s.Stages[n]
	for i := range s.Gates {
		if s.Gates[i].Stage == n && s.Gates[i].State == GateFailed {
			return StageFailed, ReasonGateFailed, in.Plan.gateFacts(&s.Gates[i], At(in.Now))
		}
	}
	switch {
	case g.RolledBack > 0 && s.State == Paused:
		return g.stopped(s), s.Reason, s.Facts
	case g.RolledBack > 0:
		return g.wentBack(s), ReasonWentBack, nil
	case h.Ended != 0:
		return StageSucceeded, "", nil
	case h.Started == 0 && s.State.Ended():
		return StagePending, ReasonNotReached, nil
	case h.Started == 0 && n == s.Stage:
		return StageWaiting, s.Reason, s.Facts
	case h.Started == 0:
		return StageWaiting, ReasonNeedsStage, &Facts{Stage: in.Plan.Stages[n-1].Name}
	case s.State == Paused || s.State.Ended() || s.State == RollingBack:
		return g.stopped(s), s.Reason, s.Facts
	case !g.SoakUntil.IsZero():
		return StageSoaking, ReasonSoak, &Facts{Stage: g.Name, Until: At(g.SoakUntil)}
	case h.Quiet != 0:
		return StageGated, s.Reason, s.Facts
	case s.State == Waiting:
		return StageWaiting, s.Reason, s.Facts
	}
	return StageProgressing, "", nil
}

// wentBack is the state of a stage of which some went back.
func (g *StageSummary) wentBack(s *State) StageState {
	if s.State.Ended() {
		return StageState(s.State)
	}
	return StageRollingBack
}

// stopped is the state of a stage that had begun, and is not over, when the rollout stopped. It failed where that is why.
func (g *StageSummary) stopped(s *State) StageState {
	switch {
	case g.Failed > 0 && s.Reason != ReasonPausedByUser && s.Reason != ReasonAbortedByUser && s.Reason != ReasonRolledBackByUser && s.Reason != ReasonSuperseded:
		return StageFailed
	case s.State.Ended():
		return StageState(s.State)
	case s.State == RollingBack || s.Back != nil: // also one that is paused on the way back
		return StageRollingBack
	}
	return StageProgressing
}

// nextLook is when an open gate is looked at again.
func (p *Plan) nextLook(g *GateHead, now Instant) time.Time {
	if g.State != GateRunning {
		return time.Time{}
	}
	return p.looksAt(g, now).Time()
}

func gateSummary(p *Plan, g *GateHead, now Instant) GateSummary {
	spec := p.gateSpec(g)
	out := GateSummary{Name: g.Name, Position: g.Position, Kind: spec.Kind(), State: g.State, Facts: p.gateFacts(g, now),
		Since: g.Since.Time(), NextLook: p.nextLook(g, now)}
	if spec.Approval != nil {
		out.Approvers = spec.Approval.Approvers
		out.ApprovedBy = g.approvers(g.counted(now))
	}
	return out
}

// waitsForBack reports that a member is not moved because it is away, and that the rollout waits for it.
func (s *State) waitsForBack(in Input, i int) bool {
	r := s.record(i)
	return in.Plan.Strategy.Offline == OfflineWait && i < len(in.Observed) && !in.Observed[i].Connected && r.State == ClusterToApply &&
		!r.has(flagBaseline) && s.Stages[r.Stage].Started != 0 && s.Back == nil && !s.State.Ended()
}

// passedBy reports that the rollout was aborted, and gives nothing any more to a member that was deferred when its turn came: who succeeded goes
// on, and so does who went back.
func (h *Head) passedBy(r *Record) bool {
	return h.State == Aborted && r.State == ClusterDeferred && !r.given() && r.flags&(flagLate|flagBaseline) == 0
}

// overtaken reports that the rollout has ended, and decides of no cluster any more: its records stay as they are.
func (in *Input) overtaken() bool {
	s := in.State.State
	return s == Failed || s == Superseded || s.Ended() && in.Module.closes()
}

// asItStood says of a member only what stays so, and nothing of what is observed now: another rollout decides that.
func (c *ClusterStatus) asItStood(p *Plan, s *State, r *Record) {
	f := memberFacts{Detail: r.Message}
	switch {
	case r.State == ClusterDeferred && !r.given():
		f = memberFacts{Code: PassedBy}
	case r.State == ClusterDeferred, r.InFlight():
		f = memberFacts{Code: Overtaken}
	case r.State == ClusterTimedOut:
		f.For = p.Strategy.ProgressDeadline
	case r.State == ClusterSkipped && r.Reason == ReasonPinned:
		f = s.pinnedBy(c.Cluster).with(f)
	case r.State == ClusterSkipped:
		f = s.skippedBy(c.Cluster).with(f)
	}
	c.Facts = f.facts()
}

// ClusterOf tells where a member stands.
func ClusterOf(in Input, i int) ClusterStatus {
	p, s := in.Plan, &in.State
	m, r := s.Member(p, i), s.record(i)
	o := in.observed(i)
	c := ClusterStatus{Cluster: m.Cluster, Stage: p.Stages[r.Stage].Name, State: r.State, Revision: o.Revision,
		Since: r.Since.Time(), Started: r.Started.Time(), Reason: r.Reason}
	if in.overtaken() {
		c.asItStood(p, s, r)
		return c
	}
	f := memberFacts{Detail: r.Message}
	if isAway(r.Reason) && (r.Step != 0 || r.Generation != 0) {
		f.Revision = r.Revision // it has that assigned
	}
	if r.State == ClusterToApply && s.Stages[r.Stage].Started != 0 && !s.State.Ended() {
		c.State = ClusterWaiting
	}
	switch waits := r.InFlight() && s.awaitsBack(r) || s.Back != nil && c.State == ClusterWaiting && r.has(flagBack); {
	case waits && !s.State.Ended() && r.Previous != s.Back.To && o.UnselectedOlder && in.Older == s.Back.To:
		c.Reason, f = ReasonLeavingAfter, memberFacts{Revision: s.Back.To}
	case r.InFlight() && s.awaitsBack(r) && !s.State.Ended():
		c.Reason, f = ReasonAwaitingRollback, memberFacts{Revision: s.Back.To}
	case s.unsure(r, o):
		c.Reason, f = ReasonAwaitingSource, memberFacts{}
	case r.State == ClusterToApply && s.asksAbout(in, r):
		c.Reason, f = ReasonWouldLeave, memberFacts{}
	case s.waitsToBeTold(in, i):
		c.Reason, f = ReasonNotHeard, memberFacts{Detail: "its agent is about to tell what the cluster can do, which decides what it gets"}
	case s.waitsForSets(p, r, o) && !s.waitsForBack(in, i):
		c.Reason, c.Facts = ReasonAwaitingDependency, s.Awaits.facts()
		return c
	case r.State == ClusterProgressing:
		if !r.has(flagAway) { // whose clock stands still
			c.Deadline = in.since(r.Started).add(p.Strategy.ProgressDeadline).Time()
		}
		c.Reason, f.Detail = cmp.Or(r.Reason, o.Reason, ReasonNotReady), ""
		if !isAway(c.Reason) && c.Reason != ReasonNotHeard { // else it is of before
			f.Detail = cmp.Or(o.Message, r.Message)
		}
	case r.State == ClusterSoaking:
		c.Reason, f.Until = ReasonReady, in.since(r.ReadySince).add(p.Strategy.MinReadyTime)
	case s.waitsForBack(in, i):
		c.Reason, f.Code = away(o), ReasonAwaited
	case isFailed(r):
		if r.ReadySince != 0 { // it is ready again, and counts as recovered then
			f.Until = in.since(r.ReadySince).add(p.Strategy.MinReadyTime)
		}
		if r.State == ClusterTimedOut {
			f.For = p.Strategy.ProgressDeadline
		}
	case r.State == ClusterSkipped && r.Reason == ReasonPinned:
		f = s.pinnedBy(m.Cluster).with(f)
	case r.State == ClusterSkipped:
		f = s.skippedBy(m.Cluster).with(f)
	}
	c.Facts = f.facts()
	c.lackSays(s.passedBy(r), o)
	return c
}

// lackSays says of a member that nothing is to come, or that it has no agent.
func (c *ClusterStatus) lackSays(passedBy bool, o *Observed) {
	switch {
	case passedBy:
		c.Facts = &Facts{Code: PassedBy}
	case c.Reason == ReasonDisconnected && o.NotJoined:
		c.Facts = &Facts{Code: NotJoined, Clusters: []string{string(c.Cluster)}}
	}
}
