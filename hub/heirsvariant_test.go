package hub_test

import (
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
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

// A label gives a module something in a cluster that another one leaves by the same label: that is kept for the first, also while it is not known
// yet what the label gives it. Nobody had its variant before.
func TestLabelMovesAnObjectToAVariant(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", map[string]string{"role": "a"})
	m := fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "m"}
	var bare atomic.Bool
	w.connectWith("c", simagent.Options{Report: simagent.Ready, Took: func(a fleet.Assemblage) {
		for _, t := range a.Tombstones {
			two := syncNamed(a, "two")
			if _, found := assemble.HeirOf(t.Heirs, m); !found && two.Objects == 1 {
				bare.Store(true)
			}
		}
	}})
	two := listing("two", "m", "z")
	two.Spec.Overrides = []*towlinev1.Override{{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"role": "a"}},
		Patches: []*towlinev1.Patch{{Target: &towlinev1.PatchTarget{Kind: "ConfigMap", Name: "m"}, Patch: "$patch: delete"}}}}
	w.await("two", w.put(two).GetRevision())
	one := listing("one", "a", "m")
	one.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"role": "a"}}}
	w.await("one", w.put(one).GetRevision())
	w.ofRole("c", "b")
	w.awaitTracker("one", "c", "gone", func(tr *towlinev1.Tracker) bool { return tr == nil })
	w.awaitTracker("two", "c", "with m", func(tr *towlinev1.Tracker) bool { return tr.GetReady() && w.held("c", "two").Objects == 2 })
	if bare.Load() {
		t.Error("the agent was told to remove m, and not who is to have it")
	}
}
