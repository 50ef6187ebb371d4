package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// FactsToProto are the facts of a code as the API carries them; nil stays nil.
func FactsToProto(f *rollout.Facts) *v1.Facts {
	if f == nil {
		return nil
	}
	out := &v1.Facts{Code: f.Code, Stage: f.Stage, Gate: f.Gate, Position: string(f.Position), Clusters: f.Clusters, Names: f.Names,
		Count: int32(f.Count), Total: int32(f.Total), Limit: int32(f.Limit), Tolerated: int32(f.Tolerated), Succeeded: int32(f.Succeeded),
		Running: int32(f.Running), Failed: int32(f.Failed), Deferred: int32(f.Deferred), Skipped: int32(f.Skipped), Removed: int32(f.Removed),
		ToGo: int32(f.ToGo), Percent: f.Percent, Revision: f.Revision, Rollout: f.Rollout, Until: Stamp(f.Until.Time()), By: f.By, Detail: f.Detail, Selector: f.Selector}
	if f.For != 0 {
		out.For = durationpb.New(f.For)
	}
	return out
}

// SubjectToProto is what a reason speaks of.
func SubjectToProto(a rollout.About) *v1.Subject {
	return &v1.Subject{Kind: a.Kind, Name: a.Name, Stage: a.Stage, Position: string(a.Position)}
}

// ReasonToProto is a link of the explanation of a rollout of a module, with those below it.
func ReasonToProto(of fleet.ModuleRef, r *rollout.Reason) *v1.Reason {
	out := &v1.Reason{Subject: SubjectToProto(r.Subject), Reason: r.Reason, Facts: FactsToProto(r.Facts), By: r.By, Blocks: r.Blocks,
		Since: Stamp(r.Since), Until: Stamp(r.Until), Actions: actionsToProto(of, r.Actions)}
	for i := range r.Causes {
		out.Causes = append(out.Causes, ReasonToProto(of, &r.Causes[i]))
	}
	return out
}

// NotesToProto are notes on a rollout of a module.
func NotesToProto(of fleet.ModuleRef, notes []rollout.Note) []*v1.Note {
	var out []*v1.Note
	for _, n := range notes {
		out = append(out, &v1.Note{Code: n.Code, Facts: FactsToProto(n.Facts), Actions: actionsToProto(of, n.Actions)})
	}
	return out
}

func actionsToProto(of fleet.ModuleRef, actions []rollout.Action) []*v1.Action {
	var out []*v1.Action
	for _, a := range actions {
		x := &v1.Action{Method: a.Method, Project: of.Project, Module: of.Name, Cluster: a.Cluster, Stage: a.Stage, Gate: a.Gate, Revision: a.Revision,
			Hold: a.Hold, By: a.By, NotBy: a.NotBy}
		switch a.Method {
		case rollout.DoConfirm, rollout.DoPutCluster, rollout.DoUnlockCluster, rollout.DoCreateUser, rollout.DoAcceptRestore, rollout.DoResumeRestore: // they speak of no module
			x.Project, x.Module = "", ""
		}
		out = append(out, x)
	}
	return out
}

// Stamp is a time as the API says it; nil: it is not known.
func Stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
