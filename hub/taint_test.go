package hub_test

import (
	"slices"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// taint marks a cluster, or takes all marks off.
func (w *world) taint(cluster string, keys ...string) *towlinev1.PutClusterResponse {
	w.t.Helper()
	c := &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: cluster}, Spec: &towlinev1.ClusterSpec{}}
	for _, k := range keys {
		c.Spec.Taints = append(c.Spec.Taints, &towlinev1.Taint{Key: k})
	}
	resp, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: c})
	must(w.t, err)
	return resp
}

// TestTaintKeepsModulesAway: a module does not come to a cluster whose taint it does not tolerate, and comes when that is gone;
// what is there stays, and gets what comes next.
func TestTaintKeepsModulesAway(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("old", w.put(listing("old", "o1")).GetRevision())
	if got := w.taint("b", "draining"); len(got.GetLeaves()) > 0 {
		t.Errorf("it takes away %v", got.GetLeaves())
	}
	put := w.put(listing("shop", "s"))
	w.await("shop", put.GetRevision())
	tolerant := listing("tolerant", "t")
	tolerant.Spec.Placement.Tolerations = []*towlinev1.Toleration{{Key: "draining"}}
	w.await("tolerant", w.put(tolerant).GetRevision())
	w.await("old", w.put(listing("old", "o2")).GetRevision())
	for name, want := range map[string]map[string]int64{"shop": {"a": 1}, "tolerant": {"a": 1, "b": 1}, "old": {"a": 2, "b": 2}} {
		if got := w.revisions(name); len(got) != len(want) || got["a"] != want["a"] || got["b"] != want["b"] {
			t.Errorf("%s is in %v, want %v", name, got, want)
		}
	}
	if put.GetSelected() != 1 {
		t.Errorf("shop is said to come to %d clusters", put.GetSelected())
	}
	if got := w.taint("b"); !slices.Equal(got.GetEnters(), []string{"default/shop"}) {
		t.Errorf("without the taint %v come", got.GetEnters())
	}
	w.awaitTracker("shop", "b", "there", func(tr *towlinev1.Tracker) bool { return tr.GetReady() })
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "b"},
		Spec: &towlinev1.ClusterSpec{Taints: []*towlinev1.Taint{{Key: "x", Effect: "NoExecute"}}}}})
	if err == nil {
		t.Error("an effect that is unknown is taken")
	}
}
