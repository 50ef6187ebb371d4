package rollouts

import (
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// project shows a head in what people read of a rollout. Nothing else writes these fields once there is a head, so that a
// list never says anything else than the head.
func project(s *towlinev1.RolloutStatus, ref fleet.ModuleRef, h rollout.Head) {
	s.State, s.Reason, s.Facts = string(h.State), h.Reason, wire.FactsToProto(h.Facts)
	if h.Started != 0 {
		s.Started = wire.Stamp(h.Started.Time())
	}
	s.Ended = wire.Stamp(h.Ended.Time())
	if h.SupersededBy != 0 {
		s.SupersededBy = fleet.RolloutID{Module: ref, Number: h.SupersededBy}.String()
	}
	if h.Back != nil {
		s.RolledBackBy = h.Back.By
	}
	if h.State.Ended() {
		s.CurrentStage, s.NextLook = nil, nil
	}
}

// summarize keeps what lists show.
func summarize(s *towlinev1.RolloutStatus, run *Run, d rollout.Decision) {
	h := d.State.Head
	stages := rollout.Tally(run.Plan, &d.State)
	s.CurrentStage = nil
	if !h.State.Ended() && h.Stage < len(stages) {
		stage := &stages[h.Stage]
		s.CurrentStage = &towlinev1.StagePosition{Stage: run.Plan.Stages[h.Stage].Name, Succeeded: int32(stage.Succeeded), Total: int32(stage.Members())}
	}
	all := rollout.Sum(stages)
	s.Total, s.Succeeded, s.Failed, s.Deferred, s.Moved = int32(all.Members()), int32(all.Succeeded), int32(all.Failed), int32(all.Deferred), int32(all.Moved)
	s.PassedOver = int32(all.PassedOver)
	s.NextLook = wire.Stamp(d.WakeAt)
	project(s, run.Module, h)
}

// Describe fills in what lists leave out: stages with their gates, every cluster, what is waited for, and what people did. A
// rollout that has no plan yet has no run. What happened to the module says whether it decides of its clusters still.
func Describe(s *towlinev1.RolloutStatus, run *Run, of rollout.Module, recorded []rollout.Verb, now time.Time) {
	outcome := map[string]string{}
	if run != nil {
		describeRun(s, run, of, now)
		for _, v := range run.State.Verbs {
			outcome[v.ID] = Answer(v.Outcome)
		}
	}
	for _, v := range recorded {
		s.Verbs = append(s.Verbs, &towlinev1.VerbRecord{Verb: v.Verb, Clusters: clusterNames(v.Clusters), Stage: v.Stage, Gate: v.Gate, By: v.By,
			Reason: v.Why, Revision: v.Revision, Outcome: outcome[v.ID], At: wire.Stamp(v.At), Until: wire.Stamp(v.Until)})
	}
}

func describeRun(s *towlinev1.RolloutStatus, run *Run, of rollout.Module, now time.Time) {
	in := run.Input(now)
	in.Module = of
	sum := rollout.Summarize(in)
	for i := range sum.Stages {
		s.Stages = append(s.Stages, showStage(&sum.Stages[i]))
	}
	n := run.State.Len(run.Plan)
	s.Clusters = make([]*towlinev1.ClusterProgress, 0, n)
	for i := range n {
		s.Clusters = append(s.Clusters, showMember(rollout.ClusterOf(in, i)))
	}
	s.Total, s.Succeeded, s.Failed = int32(sum.Members()), int32(sum.Succeeded), int32(sum.Failed)
	s.Deferred, s.Moved, s.Tolerated, s.PassedOver = int32(sum.Deferred), int32(sum.Moved), int32(sum.Tolerated), int32(sum.PassedOver)
	why := rollout.Explain(in)
	for i := range why {
		s.WaitingFor = append(s.WaitingFor, wire.ReasonToProto(run.Module, &why[i]))
	}
}

func showStage(x *rollout.StageSummary) *towlinev1.StageStatus {
	out := &towlinev1.StageStatus{Name: x.Name, State: string(x.State), Total: int32(x.Members()), Done: int32(x.Succeeded),
		Running: int32(x.Running), Failed: int32(x.Failed), Deferred: int32(x.Deferred), ToGo: int32(x.ToGo),
		Skipped: int32(x.Skipped + x.Removed + x.RolledBack), Limit: int32(x.Limit), Started: wire.Stamp(x.Started), Ended: wire.Stamp(x.Ended),
		SoakUntil: wire.Stamp(x.SoakUntil), Reason: x.Reason, Facts: wire.FactsToProto(x.Facts)}
	for _, g := range x.Gates {
		out.Gates = append(out.Gates, &towlinev1.GateStatus{Name: g.Name, Position: string(g.Position), Type: g.Kind, State: string(g.State),
			Facts: wire.FactsToProto(g.Facts), Since: wire.Stamp(g.Since), NextLook: wire.Stamp(g.NextLook), ApprovedBy: g.ApprovedBy, Approvers: int32(g.Approvers)})
	}
	return out
}

func showMember(c rollout.ClusterStatus) *towlinev1.ClusterProgress {
	return &towlinev1.ClusterProgress{Cluster: string(c.Cluster), Stage: c.Stage, State: c.State.String(), Revision: c.Revision,
		Since: wire.Stamp(c.Since), Started: wire.Stamp(c.Started), Deadline: wire.Stamp(c.Deadline), Reason: c.Reason, Facts: wire.FactsToProto(c.Facts)}
}

// Answer is what people read of an outcome.
func Answer(o rollout.Outcome) string {
	if o.Accepted {
		return Accepted
	}
	return o.Sentence
}

// Accepted is the outcome of a verb that was taken.
const Accepted = "accepted"

func clusterNames(in []fleet.ClusterName) []string {
	out := make([]string, len(in))
	for i, c := range in {
		out[i] = string(c)
	}
	return out
}
