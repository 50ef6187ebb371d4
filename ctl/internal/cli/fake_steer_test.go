package cli

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// The fake hub takes every word to a rollout, and answers as it is told to. What is deleted of it is deleted.

func (h *fakeHub) PauseRollout(_ context.Context, r *v1.PauseRolloutRequest) (*v1.PauseRolloutResponse, error) {
	h.note(r)
	return &v1.PauseRolloutResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) ResumeRollout(_ context.Context, r *v1.ResumeRolloutRequest) (*v1.ResumeRolloutResponse, error) {
	h.note(r)
	return &v1.ResumeRolloutResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) ApproveGate(_ context.Context, r *v1.ApproveGateRequest) (*v1.ApproveGateResponse, error) {
	h.note(r)
	return &v1.ApproveGateResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) RejectGate(_ context.Context, r *v1.RejectGateRequest) (*v1.RejectGateResponse, error) {
	h.note(r)
	return &v1.RejectGateResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) AbortRollout(_ context.Context, r *v1.AbortRolloutRequest) (*v1.AbortRolloutResponse, error) {
	h.note(r)
	return &v1.AbortRolloutResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) RetryRollout(_ context.Context, r *v1.RetryRolloutRequest) (*v1.RetryRolloutResponse, error) {
	h.note(r)
	return &v1.RetryRolloutResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) SkipClusters(_ context.Context, r *v1.SkipClustersRequest) (*v1.SkipClustersResponse, error) {
	h.note(r)
	return &v1.SkipClustersResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) PinClusters(_ context.Context, r *v1.PinClustersRequest) (*v1.PinClustersResponse, error) {
	h.note(r)
	return &v1.PinClustersResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) UnpinClusters(_ context.Context, r *v1.UnpinClustersRequest) (*v1.UnpinClustersResponse, error) {
	h.note(r)
	return &v1.UnpinClustersResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) PromoteStage(_ context.Context, r *v1.PromoteStageRequest) (*v1.PromoteStageResponse, error) {
	h.note(r)
	return &v1.PromoteStageResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) OverrideGate(_ context.Context, r *v1.OverrideGateRequest) (*v1.OverrideGateResponse, error) {
	h.note(r)
	return &v1.OverrideGateResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) RollBackRollout(_ context.Context, r *v1.RollBackRolloutRequest) (*v1.RollBackRolloutResponse, error) {
	h.note(r)
	return &v1.RollBackRolloutResponse{Answer: h.acted}, h.refused
}

func (h *fakeHub) DeleteProject(_ context.Context, r *v1.DeleteProjectRequest) (*v1.DeleteProjectResponse, error) {
	h.note(r)
	return &v1.DeleteProjectResponse{}, nil
}

func (h *fakeHub) DeleteToken(_ context.Context, r *v1.DeleteTokenRequest) (*v1.DeleteTokenResponse, error) {
	h.note(r)
	return &v1.DeleteTokenResponse{}, nil
}

func (h *fakeHub) PutProject(_ context.Context, r *v1.PutProjectRequest) (*v1.PutProjectResponse, error) {
	h.note(r)
	if slices.Contains(h.knows, r.GetProject().GetMetadata().GetName()) {
		return &v1.PutProjectResponse{Project: r.GetProject(), Result: "unchanged"}, nil
	}
	return &v1.PutProjectResponse{Project: r.GetProject(), Result: "created"}, nil
}

func (h *fakeHub) DeleteTracker(_ context.Context, r *v1.DeleteTrackerRequest) (*v1.DeleteTrackerResponse, error) {
	h.note(r)
	if r.GetDigest() != "d40" {
		return nil, rpc.ToStatus(fleet.Errorf(fleet.ErrConflict, "tracker %s@%s: r%d has something else by now", r.GetModule(), r.GetCluster(), r.GetRevision()))
	}
	return &v1.DeleteTrackerResponse{Objects: 2}, nil
}

func (h *fakeHub) DeleteUser(_ context.Context, r *v1.DeleteUserRequest) (*v1.DeleteUserResponse, error) {
	h.note(r)
	return &v1.DeleteUserResponse{}, nil
}

func (h *fakeHub) ResyncModule(_ context.Context, r *v1.ResyncModuleRequest) (*v1.ResyncModuleResponse, error) {
	h.note(r)
	if len(h.looks) > 0 {
		look := h.looks[0]
		h.looks = h.looks[1:]
		return look()
	}
	return h.resynced, rpc.ToStatus(h.err)
}

func (h *fakeHub) ConfirmHold(_ context.Context, r *v1.ConfirmHoldRequest) (*v1.ConfirmHoldResponse, error) {
	h.note(r)
	if h.confirms != nil {
		return nil, rpc.ToStatus(h.confirms())
	}
	return &v1.ConfirmHoldResponse{}, nil
}

func (h *fakeHub) WatchRollout(r *v1.WatchRolloutRequest, s grpc.ServerStreamingServer[v1.WatchRolloutResponse]) error {
	h.note(r)
	if h.noWatch > 0 {
		h.noWatch--
		return rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "starting"))
	}
	select {
	case <-time.After(h.slow):
	case <-s.Context().Done():
		return rpc.ToStatus(s.Context().Err())
	}
	watch := h.watch
	if of, has := h.watches[r.GetModule()]; has {
		watch = of
	}
	for _, resp := range watch {
		if err := s.Send(resp); err != nil {
			return err
		}
		if h.breaks > 0 {
			h.breaks--
			return rpc.ToStatus(fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping"))
		}
	}
	if last := watch[len(watch)-1]; last.GetEnded() {
		return nil
	}
	<-s.Context().Done()
	return rpc.ToStatus(s.Context().Err())
}
