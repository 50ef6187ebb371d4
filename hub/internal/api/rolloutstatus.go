package api

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// describeRun fills in the tree: stages with their gates, and every cluster.
func describeRun(s *towlinev1.RolloutStatus, run *record.Run, now time.Time) {
	in := run.Input(now, nil, nil, rollout.Module{}, nil)
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
	s.Deferred, s.Moved, s.Tolerated = int32(sum.Deferred), int32(sum.Moved), int32(sum.Tolerated)
	for _, r := range rollout.Explain(in) {
		s.WaitingFor = append(s.WaitingFor, showReason(r))
	}
}

func showReason(r rollout.Reason) *towlinev1.Reason {
	out := &towlinev1.Reason{Subject: r.Subject, Reason: r.Reason, Message: r.Message, By: r.By, Actions: r.Actions, Blocks: r.Blocks,
		Since: stamp(r.Since), Until: stamp(r.Until)}
	for _, c := range r.Causes {
		out.Causes = append(out.Causes, showReason(c))
	}
	return out
}

func showStage(x *rollout.StageSummary) *towlinev1.StageStatus {
	out := &towlinev1.StageStatus{Name: x.Name, State: string(x.State), Total: int32(x.Members()), Done: int32(x.Succeeded),
		Running: int32(x.Running), Failed: int32(x.Failed), Deferred: int32(x.Deferred), ToGo: int32(x.ToGo),
		Skipped: int32(x.Skipped + x.Removed + x.RolledBack), Limit: int32(x.Limit), Started: stamp(x.Started), Ended: stamp(x.Ended),
		SoakUntil: stamp(x.SoakUntil), Message: x.Message}
	for _, g := range x.Gates {
		out.Gates = append(out.Gates, &towlinev1.GateStatus{Name: g.Name, Position: string(g.Position), Type: g.Kind, State: string(g.State),
			Message: g.Message, Since: stamp(g.Since), NextLook: stamp(g.NextLook), ApprovedBy: g.ApprovedBy, Approvers: int32(g.Approvers)})
	}
	return out
}

func showMember(c rollout.ClusterStatus) *towlinev1.ClusterProgress {
	return &towlinev1.ClusterProgress{Cluster: string(c.Cluster), Stage: c.Stage, State: c.State.String(), Revision: c.Revision,
		Since: stamp(c.Since), Started: stamp(c.Started), Deadline: stamp(c.Deadline), Reason: c.Reason, Message: c.Message}
}

// describeVerbs lists what people did: what the rollout has taken in with its answer, then what waits.
func describeVerbs(s *towlinev1.RolloutStatus, run *record.Run, recorded []rollout.Verb) {
	outcome := map[string]string{}
	if run != nil {
		for _, v := range run.State.Verbs {
			outcome[v.ID] = answer(v.Outcome)
		}
	}
	for _, v := range recorded {
		out := &towlinev1.VerbRecord{Verb: v.Verb, Clusters: clusterNames(v.Clusters), Stage: v.Stage, Gate: v.Gate, By: v.By, Reason: v.Why,
			Revision: v.Revision, Outcome: outcome[v.ID]}
		if !v.At.IsZero() {
			out.At = timestamppb.New(v.At)
		}
		if !v.Until.IsZero() {
			out.Until = timestamppb.New(v.Until)
		}
		s.Verbs = append(s.Verbs, out)
	}
}

func answer(o rollout.Outcome) string {
	if o.Accepted {
		return outcomeAccepted
	}
	return o.Sentence
}

// outcomeAccepted is the outcome of a verb that was taken.
const outcomeAccepted = "accepted"

func clusterNames(in []fleet.ClusterName) []string {
	out := make([]string, len(in))
	for i, c := range in {
		out[i] = string(c)
	}
	return out
}
