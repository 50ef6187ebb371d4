package api

import (
	"context"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// The methods that steer a rollout: each says which verb its request is, and what that takes.

// PauseRollout stops it from moving clusters until it is resumed; drift is still corrected.
func (a *API) PauseRollout(ctx context.Context, req *towlinev1.PauseRolloutRequest) (*towlinev1.PauseRolloutResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbPause}, "")
	return &towlinev1.PauseRolloutResponse{Answer: answer}, err
}

// ResumeRollout goes on after a pause.
func (a *API) ResumeRollout(ctx context.Context, req *towlinev1.ResumeRolloutRequest) (*towlinev1.ResumeRolloutResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbResume}, "")
	return &towlinev1.ResumeRolloutResponse{Answer: answer}, err
}

// ApproveGate counts as one approval of a gate.
func (a *API) ApproveGate(ctx context.Context, req *towlinev1.ApproveGateRequest) (*towlinev1.ApproveGateResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbApprove, Stage: req.GetStage(), Gate: req.GetGate(), Revision: req.GetRevision()}, "")
	return &towlinev1.ApproveGateResponse{Answer: answer}, err
}

// RejectGate fails an approval gate.
func (a *API) RejectGate(ctx context.Context, req *towlinev1.RejectGateRequest) (*towlinev1.RejectGateResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbReject, Stage: req.GetStage(), Gate: req.GetGate(), Revision: req.GetRevision()}, "")
	return &towlinev1.RejectGateResponse{Answer: answer}, err
}

// AbortRollout ends it and leaves every cluster as it is.
func (a *API) AbortRollout(ctx context.Context, req *towlinev1.AbortRolloutRequest) (*towlinev1.AbortRolloutResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbAbort}, "")
	return &towlinev1.AbortRolloutResponse{Answer: answer}, err
}

// RetryRollout tries again what failed.
func (a *API) RetryRollout(ctx context.Context, req *towlinev1.RetryRolloutRequest) (*towlinev1.RetryRolloutResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbRetry, Clusters: req.GetClusters()}, "")
	return &towlinev1.RetryRolloutResponse{Answer: answer}, err
}

// SkipClusters goes on without clusters; they do not count as done.
func (a *API) SkipClusters(ctx context.Context, req *towlinev1.SkipClustersRequest) (*towlinev1.SkipClustersResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbSkip, Clusters: req.GetClusters()}, "")
	return &towlinev1.SkipClustersResponse{Answer: answer}, err
}

// PinClusters keeps the module in clusters at their revisions through any number of rollouts.
func (a *API) PinClusters(ctx context.Context, req *towlinev1.PinClustersRequest) (*towlinev1.PinClustersResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbPin, Clusters: req.GetClusters(), Until: req.GetUntil()}, "")
	return &towlinev1.PinClustersResponse{Answer: answer}, err
}

// UnpinClusters ends pins.
func (a *API) UnpinClusters(ctx context.Context, req *towlinev1.UnpinClustersRequest) (*towlinev1.UnpinClustersResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbUnpin, Clusters: req.GetClusters()}, "")
	return &towlinev1.UnpinClustersResponse{Answer: answer}, err
}

// PromoteStage ends the soak of a stage, or goes on with one that is empty; it ends no approval.
func (a *API) PromoteStage(ctx context.Context, req *towlinev1.PromoteStageRequest) (*towlinev1.PromoteStageResponse, error) {
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbPromote, Stage: req.GetStage()}, "")
	return &towlinev1.PromoteStageResponse{Answer: answer}, err
}

// OverrideGate passes a gate that is not open; the reason is required.
func (a *API) OverrideGate(ctx context.Context, req *towlinev1.OverrideGateRequest) (*towlinev1.OverrideGateResponse, error) {
	if req.GetReason() == "" {
		return nil, fleet.Invalid("reason", "an override needs a reason; give one with -m")
	}
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbOverride, Stage: req.GetStage(), Gate: req.GetGate()}, "")
	return &towlinev1.OverrideGateResponse{Answer: answer}, err
}

// RollBackRollout returns the clusters that it moved to an earlier revision, newest first, without gates.
func (a *API) RollBackRollout(ctx context.Context, req *towlinev1.RollBackRolloutRequest) (*towlinev1.RollBackRolloutResponse, error) {
	if err := wire.Choice("scope", req.GetScope(), "moved", "failed"); err != nil {
		return nil, err
	}
	answer, err := a.steer(ctx, req, &towlinev1.VerbRecord{Verb: rollout.VerbRollback, Revision: req.GetRevision()}, req.GetScope())
	return &towlinev1.RollBackRolloutResponse{Answer: answer}, err
}
