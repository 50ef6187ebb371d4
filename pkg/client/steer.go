package client

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/util/uuid"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// Word is what a person says to a rollout: a verb of the command line, and what it takes. Programs that know what they want call
// the methods of RolloutService.
type Word struct {
	Project, Module string
	// Number is the rollout's; 0: the one that decides.
	Number int64
	// ModuleUID is that of the module as the caller saw it: another one of its name is told nothing. Empty: any.
	ModuleUID string
	// Verb is as the command line has it, such as pause or rollback.
	Verb     string
	Clusters []string
	Stage    string
	Gate     string
	Revision int64
	// Scope of a rollback: moved or failed; empty: moved.
	Scope string
	// Until is when a pin ends by itself; nil: never.
	Until *timestamppb.Timestamp
	// Shorten has a pin end sooner than the one that a cluster has.
	Shorten bool
	Reason  string
	// RequestID makes repeats safe; empty: Steer draws one, which serves for the repeats of a call that found no hub.
	RequestID string
}

// answered is the response of any method that steers a rollout.
type answered interface{ GetAnswer() *v1.RolloutAnswer }

// Steer says a word to a rollout, and returns when that has taken it in.
func (c *Client) Steer(ctx context.Context, w Word) (*v1.RolloutAnswer, error) {
	if w.RequestID == "" {
		w.RequestID = string(uuid.NewUUID())
	}
	resp, err := c.say(ctx, w)
	if err != nil {
		return nil, err
	}
	return resp.GetAnswer(), nil
}

func (c *Client) say(ctx context.Context, w Word) (answered, error) {
	r := c.Rollouts
	switch w.Verb {
	case "pause":
		return r.PauseRollout(ctx, &v1.PauseRolloutRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID})
	case "resume":
		return r.ResumeRollout(ctx, &v1.ResumeRolloutRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID})
	case "approve":
		return r.ApproveGate(ctx, &v1.ApproveGateRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Stage: w.Stage, Gate: w.Gate, Revision: w.Revision})
	case "reject":
		return r.RejectGate(ctx, &v1.RejectGateRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Stage: w.Stage, Gate: w.Gate, Revision: w.Revision})
	case "abort":
		return r.AbortRollout(ctx, &v1.AbortRolloutRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID})
	case "retry":
		return r.RetryRollout(ctx, &v1.RetryRolloutRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Clusters: w.Clusters})
	case "skip":
		return r.SkipClusters(ctx, &v1.SkipClustersRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Clusters: w.Clusters})
	case "pin":
		return r.PinClusters(ctx, &v1.PinClustersRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Clusters: w.Clusters, Until: w.Until, Shorten: w.Shorten})
	case "unpin":
		return r.UnpinClusters(ctx, &v1.UnpinClustersRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Clusters: w.Clusters})
	case "promote":
		return r.PromoteStage(ctx, &v1.PromoteStageRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Stage: w.Stage})
	case "override":
		return r.OverrideGate(ctx, &v1.OverrideGateRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Stage: w.Stage, Gate: w.Gate})
	case "rollback":
		return r.RollBackRollout(ctx, &v1.RollBackRolloutRequest{Project: w.Project, Module: w.Module, Number: w.Number, ModuleUid: w.ModuleUID, Reason: w.Reason,
			RequestId: w.RequestID, Revision: w.Revision, Scope: w.Scope})
	}
	return nil, fleet.Invalidf("verb", "%q is unknown", w.Verb)
}
