package hub_test

import (
	"slices"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// TestLeaveAfterARollbackIsAskedFor: what must wait for a person after a module was rolled back is said, so that it can be confirmed.
func TestLeaveAfterARollbackIsAskedFor(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, map[string]string{"in": "yes"})
	}
	put := func(value string) int64 {
		m := module("shop", configMap(value))
		m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "yes"}}}
		return w.put(m).GetRevision()
	}
	w.await("shop", put("1"))
	w.await("shop", put("2"))
	resp := w.act(client.Word{Module: "shop", Verb: "rollback", Reason: "bad"})
	w.until("shop", resp.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "RolledBack" })
	for _, c := range []string{"b", "c"} {
		_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: c}}})
		must(t, err)
	}
	var held []*towlinev1.Hold
	w.eventually(func() bool {
		got, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		must(t, err)
		held = got.GetHolds()
		return len(held) == 1 && len(held[0].GetItems()) == 2 || len(w.revisions("shop")) == 1
	})
	if len(held) == 0 {
		t.Fatal("the module left most of its clusters, and nobody was asked")
	}
	ro, err := w.Rollouts.ExplainRollout(w.ctx, &towlinev1.ExplainRolloutRequest{Module: "shop"})
	must(t, err)
	if !slices.ContainsFunc(ro.GetReasons(), func(r *towlinev1.Reason) bool {
		return len(r.GetActions()) == 1 && r.GetActions()[0].GetHold() == held[0].GetId() && len(r.GetCauses()) == 2
	}) {
		t.Errorf("%s waits for a confirm, explained by %v", held[0].GetId(), ro.GetReasons())
	}
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: held[0].GetId()})
	must(t, err)
	w.eventually(func() bool { return len(w.revisions("shop")) == 1 })
}
