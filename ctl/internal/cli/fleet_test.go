package cli

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "towline.dev/towline/gen/towline/v1"
)

const day = 24 * time.Hour

// surfaceModules is the fleet that the design shows under `get modules`.
func surfaceModules() []*v1.Module {
	module := func(name string, s *v1.ModuleStatus) *v1.Module {
		return &v1.Module{ApiVersion: "towline.dev/v1", Kind: "Module", Metadata: &v1.Metadata{Name: name, Project: "default"}, Status: s}
	}
	edge := module("edge-lb", &v1.ModuleStatus{Revision: 5, SucceededRevision: 5, Clusters: 3, Away: 3, Objects: 36, Since: ago(41 * time.Minute)})
	edge.Metadata.DeletionTimestamp = ago(41 * time.Minute)
	return []*v1.Module{
		module("base", &v1.ModuleStatus{Revision: 17, SucceededRevision: 17, Clusters: 300, Updated: 297, Healthy: 297, Away: 3, Drift: 1,
			Rollout: "base/9", RolloutState: "Succeeded", RolloutDeferred: 3, Since: ago(2 * day)}),
		edge,
		module("payments", &v1.ModuleStatus{Revision: 8, SucceededRevision: 7, RolledBack: true, Clusters: 120, Updated: 120, Healthy: 119, Away: 1,
			Rollout: "payments/12", RolloutState: "RolledBack", RolledBackBy: "maria", RolloutReason: "RolledBackByUser", RolloutFacts: &v1.Facts{Count: 120, Revision: 7, By: "maria"}, Since: ago(3 * time.Hour)}),
		module("shop", &v1.ModuleStatus{Revision: 42, SucceededRevision: 41, Clusters: 300, Updated: 3, Healthy: 295, Progressing: 1, Bad: 1,
			Away: 3, Drift: 3, Rollout: "shop/57", RolloutState: "Progressing", RolloutStage: &v1.StagePosition{Stage: "canary", Succeeded: 1, Total: 2}, Since: ago(6*time.Minute + 12*time.Second)}),
	}
}

// surfaceClusters is the fleet that the design shows under `get clusters`.
func surfaceClusters() []*v1.Cluster {
	cluster := func(name string, s *v1.ClusterStatus) *v1.Cluster {
		return &v1.Cluster{ApiVersion: "towline.dev/v1", Kind: "Cluster", Metadata: &v1.Metadata{Name: name, Labels: map[string]string{"env": "prod"}},
			Spec: &v1.ClusterSpec{}, Status: s}
	}
	return []*v1.Cluster{
		cluster("edge-112", &v1.ClusterStatus{State: "Disconnected", LastSeen: ago(14 * time.Minute), Since: ago(14 * time.Minute), Modules: 8, WasHealthy: 8,
			AgentVersion: "v1.3.0", KubernetesVersion: "v1.34.9"}),
		cluster("edge-113", &v1.ClusterStatus{State: "Pending", TokenExpires: in(9 * time.Minute), Since: ago(6 * time.Minute)}),
		cluster("prod-eu-01", &v1.ClusterStatus{State: "Ready", LastSeen: ago(2 * time.Minute), Modules: 12, Healthy: 12,
			AgentVersion: "v1.4.2", KubernetesVersion: "v1.36.3"}),
		cluster("prod-eu-11", &v1.ClusterStatus{State: "Ready", LastSeen: ago(time.Second), Modules: 12, Healthy: 12, Drift: 2,
			Pins: []*v1.Pin{{Project: "default", Module: "shop", Revision: 41, By: "ana", Reason: "audit", Since: ago(day), Until: in(2 * day)}}, AgentVersion: "v1.4.2", KubernetesVersion: "v1.36.3"}),
	}
}

// surfaceRollout is the rollout that the design shows under `rollout status`.
func surfaceRollout() *v1.Rollout {
	strategy := &v1.RolloutStrategy{MaxFailures: "1", OnFailure: "Rollback", Stages: []*v1.Stage{
		{Name: "canary", Soak: "5m", After: []*v1.Gate{{Approval: &v1.ApprovalGate{Approvers: 1}}}}, {Name: "rest", MaxConcurrency: "25%"}}}
	return &v1.Rollout{ApiVersion: "towline.dev/v1", Kind: "Rollout", Metadata: &v1.Metadata{Name: "shop-57", Project: "default"},
		Id: "shop/57", Module: "shop", Number: 57, Revision: 42, FromRevision: 41, Strategy: strategy,
		Status: &v1.RolloutStatus{State: "Progressing", Started: ago(6*time.Minute + 12*time.Second), StartedBy: "ci-shop", StartReason: "shop 1.5.0 (PR 812)",
			Total: 300, Succeeded: 3, Failed: 1, Deferred: 1, Tolerated: 1, Moved: 5, NextLook: in(5*time.Minute + 19*time.Second),
			Stages: []*v1.StageStatus{
				{Name: "canary", State: "Progressing", Total: 6, Done: 3, Running: 1, Failed: 1, Deferred: 1, Limit: 6, Started: ago(6*time.Minute + 12*time.Second),
					Gates: []*v1.GateStatus{{Name: "approval", Type: "approval", Position: "after", State: "Pending", Approvers: 1}}},
				{Name: "rest", State: "Waiting", Total: 294, ToGo: 294, Limit: 73, Reason: "NeedsStage", Facts: &v1.Facts{Stage: "canary"}},
			},
			Clusters: []*v1.ClusterProgress{
				{Cluster: "edge-112", Stage: "canary", State: "Deferred", Revision: 41, Since: ago(14 * time.Minute), Reason: "Disconnected"},
				{Cluster: "prod-eu-01", Stage: "canary", State: "Succeeded", Revision: 42, Since: ago(3 * time.Minute)},
				{Cluster: "prod-eu-07", Stage: "canary", State: "Failed", Revision: 42, Since: ago(62 * time.Second),
					Facts: &v1.Facts{Detail: "Deployment shop/web: 0 of 3 ready; pod web-7d9f: ImagePullBackOff shop:1.5.0"}},
				{Cluster: "prod-us-02", Stage: "canary", State: "Progressing", Revision: 42, Since: ago(4*time.Minute + 41*time.Second),
					Deadline: in(5*time.Minute + 19*time.Second), Facts: &v1.Facts{Detail: "Deployment shop/web: 2 of 3 ready"}},
				{Cluster: "prod-us-03", Stage: "rest", State: "ToApply", Revision: 41},
			},
		}}
}

// ended is the same rollout in a final state.
func ended(state string, change func(*v1.RolloutStatus)) *v1.Rollout {
	r := surfaceRollout()
	s := r.Status
	s.State, s.Ended, s.NextLook = state, ago(0), nil
	s.Succeeded, s.Failed, s.Deferred = 300, 0, 0
	if change != nil {
		change(s)
	}
	return r
}

// surfaceReasons is the chain as the hub's decision function makes it.
func surfaceReasons() []*v1.Reason {
	cluster := func(name string) *v1.Subject { return &v1.Subject{Kind: "Cluster", Name: name} }
	return []*v1.Reason{
		{Subject: &v1.Subject{Kind: "Stage", Name: "canary"}, Reason: "Progressing", Blocks: true,
			Facts: &v1.Facts{Code: "NotDone", Total: 6, Succeeded: 3, Running: 1, Failed: 1, Deferred: 1},
			Causes: []*v1.Reason{
				{Subject: cluster("prod-eu-07"), Reason: "ImagePullBackOff", Facts: &v1.Facts{Detail: "image shop:1.5.0: not found"}, Since: ago(62 * time.Second),
					Actions: []*v1.Action{{Method: "RetryRollout", Module: "shop", Cluster: "prod-eu-07"}}},
				{Subject: cluster("prod-us-02"), Reason: "RolloutInProgress", Facts: &v1.Facts{Detail: "2 of 3 pods ready"}, Since: ago(372 * time.Second),
					Until: in(319 * time.Second), Blocks: true, Actions: []*v1.Action{{Method: "SkipClusters", Module: "shop", Cluster: "prod-us-02"}}},
				{Subject: cluster("edge-112"), Reason: "Disconnected", Since: ago(14 * time.Minute)},
			}},
		{Subject: &v1.Subject{Kind: "Soak", Name: "canary"}, Reason: "Soak", Facts: &v1.Facts{Stage: "canary", For: durationpb.New(5 * time.Minute)}},
		{Subject: &v1.Subject{Kind: "Gate", Name: "approval", Stage: "canary", Position: "after"}, Reason: "Approval",
			Facts: &v1.Facts{Code: "Approving", Gate: "approval", Stage: "canary", Position: "after", Total: 1, By: "ci-shop"}},
		{Subject: &v1.Subject{Kind: "Stage", Name: "rest"}, Reason: "NextStage", Facts: &v1.Facts{Count: 294, Limit: 73, Percent: "25%", Total: 294}},
		{Subject: &v1.Subject{Kind: "Budget"}, Reason: "Failures", Facts: &v1.Facts{Code: "Rollback", Failed: 1, Tolerated: 1, Clusters: []string{"prod-eu-07"}, Revision: 41}},
	}
}
