package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// TestModuleCountsWhoIsToHaveIt: a cluster that the placement takes is counted before it has anything of the module: as away if
// nobody is there, else as on its way. Ready says so and waits for none of them.
func TestModuleCountsWhoIsToHaveIt(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("calm", nil, nil)
	_, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "later"})
	must(t, err)
	w.cordon("calm", true)
	w.await("shop", w.put(listing("shop", "s")).GetRevision())
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
	if s.GetClusters() != 3 || s.GetProgressing() != 1 || s.GetAway() != 1 || s.GetUpdated() != 1 || s.GetObjects() != 1 {
		t.Errorf("counted: %v", s)
	}
	if c := s.GetConditions()[0]; c.GetStatus() != "True" || c.GetReason() != "Succeeded" || s.GetUnassigned() != 1 {
		t.Errorf("Ready is %s: %s, %d have nothing yet", c.GetStatus(), c.GetReason(), s.GetUnassigned())
	}
	w.taint("later", "new")
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetClusters() == 2 && s.GetAway() == 0 })
	w.cordon("calm", false)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 2 && s.GetProgressing() == 0 })
}

// TestModuleThatNobodySeesIsNotReady: a cluster that has nothing of the module yet says nothing of how it stands where it is, and those
// are all away.
func TestModuleThatNobodySeesIsNotReady(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("calm", nil, nil)
	w.cordon("calm", true)
	w.await("shop", w.put(listing("shop", "s")).GetRevision())
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
	w.leaves("a")
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetAway() == 1 })
	if s.GetClusters() != 2 || s.GetHealthy() != 0 || s.GetUnassigned() != 1 {
		t.Errorf("counted: %v", s)
	}
	if c := s.GetConditions()[0]; c.GetStatus() != "Unknown" || c.GetReason() != "Away" {
		t.Errorf("Ready is %s: %s", c.GetStatus(), c.GetReason())
	}
	_, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: "keep", Force: true})
	must(w.t, err)
	s = w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetClusters() == 1 })
	if c := s.GetConditions()[0]; c.GetStatus() != "False" || c.GetReason() != "Nowhere" {
		t.Errorf("without a cluster that has it, Ready is %s: %s", c.GetStatus(), c.GetReason())
	}
}

// TestModuleOfNoClusterIsNotReady: a placement that selects no cluster, such as by a label that is misspelt, brings the module nowhere.
func TestModuleOfNoClusterIsNotReady(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, map[string]string{"env": "prod"})
	m := listing("shop", "s")
	m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prd"}}}
	if r := w.await("shop", w.put(m).GetRevision()); r.GetStatus().GetState() != "Succeeded" {
		t.Fatalf("%v", r.GetStatus())
	}
	if c := w.module("shop").GetStatus().GetConditions()[0]; c.GetStatus() != "False" || c.GetReason() != "Nowhere" {
		t.Errorf("Ready is %s: %s", c.GetStatus(), c.GetReason())
	}
}

// TestModuleCountsNobodyForAPutThatFailed: clusters that a put would have taken the module to are not counted when it failed at its
// source, nor those that a rollback takes it back from.
func TestModuleCountsNobodyForAPutThatFailed(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	only := func(m *towlinev1.Module, clusters ...string) *towlinev1.Module {
		m.Spec.Placement = &towlinev1.Placement{Clusters: clusters}
		return m
	}
	w.await("shop", w.put(only(listing("shop", "s"), "a")).GetRevision())
	w.put(only(withoutSource(t, "shop"), "a", "b"))
	w.until("shop", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Failed" })
	if s := w.module("shop").GetStatus(); s.GetClusters() != 1 || s.GetProgressing() != 0 || s.GetHealthy() != 1 {
		t.Errorf("after the put that failed: %v", s)
	}
	w.cordon("b", true)
	w.put(only(listing("shop", "s", "x"), "a", "b"))
	w.await("shop", 3)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetClusters() == 2 && s.GetProgressing() == 1 && s.GetHealthy() == 1
	})
	w.act(client.Word{Module: "shop", Verb: "rollback", Revision: 1, Reason: "no"})
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetClusters() == 1 && s.GetProgressing() == 0 && s.GetHealthy() == 1
	})
}

// cordon keeps new revisions from a cluster, or ends that.
func (w *world) cordon(name string, on bool) {
	w.t.Helper()
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
		Metadata: &towlinev1.Metadata{Name: name}, Spec: &towlinev1.ClusterSpec{Cordoned: new(on)}}})
	must(w.t, err)
}
