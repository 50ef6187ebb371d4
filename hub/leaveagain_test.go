package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestConfirmOfALeaveCountsOnce: who let a module go from some clusters was asked about that change. When it has come back to
// them, by another rollout or by their labels, and is to leave them again, a person is asked again.
func TestConfirmOfALeaveCountsOnce(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, map[string]string{"in": "yes"})
	}
	only := func(clusters ...string) *towlinev1.Module {
		m := module("shop", configMap("x"))
		m.Spec.Placement = &towlinev1.Placement{Clusters: clusters}
		return m
	}
	waits := func() *towlinev1.Hold {
		t.Helper()
		var held []*towlinev1.Hold
		w.eventually(func() bool {
			got, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
			must(t, err)
			held = got.GetHolds()
			return len(held) == 1 && len(held[0].GetItems()) == 2 || len(w.revisions("shop")) == 1
		})
		if len(held) != 1 {
			t.Fatal("the module left the clusters, and nobody was asked")
		}
		return held[0]
	}
	leave := func(change func()) {
		t.Helper()
		change()
		h := waits()
		_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: h.GetId(), Digest: h.GetDigest()})
		must(t, err)
		w.eventually(func() bool { return len(w.revisions("shop")) == 1 })
	}
	all := func() { w.eventually(func() bool { return len(w.revisions("shop")) == 3 }) }

	w.await("shop", w.put(only("a", "b", "c")).GetRevision())
	leave(func() { w.put(only("a")) })
	w.await("shop", w.put(only("a", "b", "c")).GetRevision())
	leave(func() { w.put(only("a")) })

	m := module("shop", configMap("x"))
	m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "yes"}}}
	w.await("shop", w.put(m).GetRevision())
	all()
	label := func(in string) {
		for _, c := range []string{"b", "c"} {
			_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
				Metadata: &towlinev1.Metadata{Name: c, Labels: map[string]string{"in": in}}}})
			must(t, err)
		}
	}
	for range 2 {
		leave(func() { label("no") })
		label("yes")
		all()
	}
}
