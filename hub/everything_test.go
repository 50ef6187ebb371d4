package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestEverythingGoesOnlyWhenConfirmed: a change that leaves nothing in a cluster waits for a person, also where it is the cluster's
// labels that change, and where it had several modules. One that brings something else in their place does not.
func TestEverythingGoesOnlyWhenConfirmed(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, map[string]string{"in": "yes"})
	}
	put := func(name, in string) {
		m := module(name, map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: default}\n"})
		m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": in}}}
		w.await(name, w.put(m).GetRevision())
	}
	label := func(in string) {
		_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
			Metadata: &towlinev1.Metadata{Name: "c", Labels: map[string]string{"in": in}}}})
		must(t, err)
	}
	holds := func() int {
		got, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		must(t, err)
		return len(got.GetHolds())
	}
	in := func(name string) int { return len(w.revisions(name)) }
	put("shop", "yes")
	put("base", "yes")

	label("yess")
	w.eventually(func() bool { return holds() == 2 || in("shop") == 2 || in("base") == 2 })
	if in("shop") != 3 || in("base") != 3 {
		t.Fatalf("shop is in %d clusters, base in %d: one lost all that it had, and nobody was asked", in("shop"), in("base"))
	}
	label("yes")
	w.eventually(func() bool { return holds() == 0 })

	other := module("other", configMap("x"))
	other.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "other"}}}
	w.put(other)
	label("other")
	w.eventually(func() bool { return in("shop") == 2 && in("base") == 2 && in("other") == 1 })
	if n := holds(); n != 0 {
		t.Errorf("%d waits for a person, though the cluster has another module", n)
	}
}
