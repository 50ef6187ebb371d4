package rollout

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Brings reports that a member which has nothing may be given the module without a person's word, where the placement in force has it. One
// that was left out is not, nor is one whose turn had not come when the rollout ended, unless it joins anew or its labels change; nor one
// that failed by being away at its turn, for only a retry gives it something; nor one whose turn comes only when somebody has said so.
// places says of a revision whether its placement has the module in the cluster.
func (s *State) Brings(p *Plan, i int, places func(revision int64) bool) bool {
	r := s.record(i)
	switch {
	case r.State == ClusterSkipped, isFailed(r) && !r.given():
		return false
	case s.State.Ended():
		return r.State != ClusterToApply && !s.passedBy(r) || r.has(flagLate) && s.brings(p, r.Stage, places)
	case r.has(flagBaseline) && s.bringsBaseline(p, places):
		return true
	}
	return !s.awaitsPerson(p, r.Stage)
}

// BringsNew reports the same of a cluster that is no member yet.
func (s *State) BringsNew(p *Plan, c fleet.Cluster, places func(revision int64) bool) bool {
	n, ended := p.JoinsIn(c.Labels), s.State.Ended()
	stage := int16(n)
	switch {
	case n < 0, s.State == Failed, s.State == Superseded, s.pinned(c.Name):
		return false
	case ended:
		return s.brings(p, stage, places)
	case p.Strategy.LateJoiners == LateIgnore: // it comes when the rollout has ended
		return !s.awaitsPerson(p, int16(len(p.Stages)))
	case p.Strategy.LateJoiners == LateFollow && s.Stages[n].Started == 0 && s.bringsBaseline(p, places):
		return true
	case s.State == Waiting && s.Reason == ReasonEmptyStage && n == s.Stage:
		return !s.awaitsApproval(p, stage) // it is the one that the stage waits for
	}
	return !s.awaitsPerson(p, stage)
}

// unmatched says which clusters came since the rollout was planned, and are no members, for no stage takes them.
func (e *explainer) unmatched() {
	var names []fleet.ClusterName
	for i := range e.in.Newcomers {
		if n := &e.in.Newcomers[i]; e.p.JoinsIn(n.Cluster.Labels) < 0 && e.s.placement(&e.in, &n.Observed) == selected {
			names = append(names, n.Cluster.Name)
		}
	}
	if len(names) == 0 || e.in.overtaken() {
		return
	}
	slices.Sort(names)
	e.add(Reason{Subject: e.rollout(AboutRollout), Reason: ReasonUnmatched, Facts: &Facts{Clusters: few(names), Count: len(names)}})
}

// brings reports that a rollout which has ended gives the module to clusters that come to a stage: the older revision does not place all of them.
func (s *State) brings(p *Plan, stage int16, places func(revision int64) bool) bool {
	to, begun := s.catchesUp(p, stage)
	return begun || to != 0 && places(to)
}

// bringsBaseline reports that clusters that come before their stage has begun are given the revision before: it places them, and the rollout moves.
func (s *State) bringsBaseline(p *Plan, places func(revision int64) bool) bool {
	return p.From != 0 && s.Back == nil && s.Pause == nil && !s.awaitsStart(p) && places(p.From)
}

// awaitsStart reports that nobody moves before a person has said something.
func (h *Head) awaitsStart(p *Plan) bool {
	switch h.State {
	case Pending:
		return p.ConfirmLeave || len(p.EmptyOverrides) > 0
	case Waiting:
		return h.Reason == ReasonEmptyOverride || h.Reason == ReasonConfirm && h.Stage == 0
	}
	return false
}

// awaitsPerson reports that the members of a stage that have not been moved are not before a person has said something; of the number of stages,
// that the rollout does not end before.
func (h *Head) awaitsPerson(p *Plan, stage int16) bool {
	switch {
	case h.Pause != nil:
		return true
	case h.Back == nil && int(stage) < len(h.Stages) && h.Stages[stage].Started != 0:
		return false
	case h.awaitsStart(p), h.State == Waiting && (h.Reason == ReasonEmptyStage || h.Reason == ReasonConfirm):
		return true
	}
	return h.awaitsApproval(p, stage)
}

// awaitsApproval reports that somebody has to approve before a stage begins, or goes back.
func (h *Head) awaitsApproval(p *Plan, stage int16) bool {
	return slices.ContainsFunc(h.Gates, func(g GateHead) bool {
		before := g.Position == Before && g.Stage <= int(stage) || g.Position == After && g.Stage < int(stage)
		if h.Back != nil {
			before = g.Position == BeforeRollback
		}
		return before && g.State != GateSuccessful && isApproval(p.gateSpec(&g))
	})
}
