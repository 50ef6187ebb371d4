package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// marked has the module's z say in clusters of a role that they have it: they have a variant of their own.
func marked(m *towlinev1.Module, role string) *towlinev1.Module {
	m.Spec.Overrides = append(m.Spec.Overrides, &towlinev1.Override{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"role": role}},
		Patches: []*towlinev1.Patch{{Target: &towlinev1.PatchTarget{Kind: "ConfigMap", Name: "z"}, Patch: "- {op: replace, path: /data/by, value: " + role + "}"}}})
	return m
}

// ofRole gives a cluster its role, and taints.
func (w *world) ofRole(cluster, role string, taints ...string) {
	w.t.Helper()
	c := &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: cluster, Labels: map[string]string{"role": role}}, Spec: &towlinev1.ClusterSpec{}}
	for _, k := range taints {
		c.Spec.Taints = append(c.Spec.Taints, &towlinev1.Taint{Key: k})
	}
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: c})
	must(w.t, err)
}

// A module that a taint keeps out of a cluster is rendered for no variant that only this one would have, and is no heir there of anything, for as
// long as there is the taint.
func TestTaintedClusterWaitsForNoVariant(t *testing.T) {
	w := newHeirs(t)
	w.join("d", nil, map[string]string{"role": "other"})
	w.ofRole("c", "b", "draining")
	w.put(waiting(marked(listing("two", "m", "z"), "b")))
	w.until("two", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
	w.put(listing("one", "a"))
	w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetExtra() == 1 })
	w.awaitHeir("c", "one", "m", "")
	w.ofRole("c", "b")
	w.awaitHeir("c", "one", "m", "two")
	w.ofRole("c", "b", "draining")
	w.awaitHeir("c", "one", "m", "")
}
