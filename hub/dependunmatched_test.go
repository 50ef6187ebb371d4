package hub_test

import (
	"slices"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/rollout"
)

// TestClusterThatNoStageTakesIsNotWaitedFor: a module comes after another one in a set of clusters, of which one joined that no stage of the other
// takes: nothing comes there, so nobody waits for it, and the other one says so, whether its rollout has ended or not.
func TestClusterThatNoStageTakesIsNotWaitedFor(t *testing.T) {
	for name, after := range map[string][]*towlinev1.Gate{"it has ended": nil, "it waits": {{Approval: &towlinev1.ApprovalGate{Approvers: 1}}}} {
		t.Run(name, func(t *testing.T) {
			x := newRoles(t, true, nil)
			crds := crdsModule("c")
			crds.Spec.Placement = placedBy("role", "control", "edge")
			crds.Spec.Rollout = &towlinev1.RolloutStrategy{Unmatched: "Fail",
				Stages: []*towlinev1.Stage{{Name: "control", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"role": "control"}}, After: after}}}
			x.put(crds)
			x.until("crds", 1, func(r *towlinev1.Rollout) bool {
				return r.GetStatus().GetEnded() != nil || r.GetStatus().GetReason() == "Approval"
			})
			x.join("e3", nil, map[string]string{"role": "edge"})
			x.until("crds", 1, func(r *towlinev1.Rollout) bool {
				return slices.ContainsFunc(r.GetStatus().GetWaitingFor(), func(y *towlinev1.Reason) bool {
					return y.GetReason() == rollout.ReasonUnmatched && slices.Equal(y.GetFacts().GetClusters(), []string{"e3"})
				})
			})
			shop := shopAfter("s", "control")
			shop.Spec.DependsOn[0].Clusters = placedBy("role", "control", "edge").GetSelector()
			x.await("shop", x.put(shop).GetRevision())
		})
	}
}
