package hub_test

import (
	"slices"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// TestLeavingThatWaitsIsForeseen: what takes the last module from a cluster, or a module from most of its clusters, waits for a person. Who asks for
// that is told so with what would go, by a dry run, by the put and by a diff; where a person is not asked nothing is said of it.
func TestLeavingThatWaitsIsForeseen(t *testing.T) {
	w := newWorld(t, true)
	for name, env := range map[string]string{"a": "prod", "b": "prod", "c": "prod"} {
		w.joinAnswering(name, unchanged, map[string]string{"env": env})
	}
	in := func(name, env string) *towlinev1.Module {
		m := module(name, map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + name + ", namespace: default}}\n"})
		m.Spec.Placement.Selector = &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": env}}
		return m
	}
	w.await("shop", w.put(in("shop", "prod")).GetRevision())
	label := func(dry bool, name, env string) *towlinev1.PutClusterResponse {
		t.Helper()
		resp, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{DryRun: dry, Apply: true,
			Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name, Labels: map[string]string{"env": env}}}})
		must(t, err)
		return resp
	}
	put := func(m *towlinev1.Module) bool {
		t.Helper()
		resp, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, DryRun: true})
		must(t, err)
		plan, _ := w.diff(m)
		if plan.GetLeavingAsks() != resp.GetLeavingAsks() {
			t.Errorf("a diff says %v, a put %v", plan.GetLeavingAsks(), resp.GetLeavingAsks())
		}
		return resp.GetLeavingAsks()
	}
	named := func(clusters ...string) *towlinev1.Module {
		m := in("shop", "prod")
		m.Spec.Placement = &towlinev1.Placement{Clusters: clusters}
		return m
	}
	if resp := label(true, "c", "dev"); !slices.Equal(resp.GetAsks(), []string{"default/shop"}) {
		t.Errorf("the last module of a cluster: %v", resp)
	}
	if !put(named("a", "b")) {
		t.Error("the last module of a cluster goes by a put")
	}
	w.await("base", w.put(module("base", map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: base, namespace: default}}\n"})).GetRevision())
	if resp := label(true, "c", "dev"); len(resp.GetAsks()) != 0 || len(resp.GetLeaves()) != 1 {
		t.Errorf("one of two modules of a cluster: %v", resp)
	}
	if put(named("a", "b")) || put(named("a", "b", "c")) || !put(named("a")) {
		t.Error("one of three clusters, none, or two")
	}
	// What is foreseen comes so.
	w.await("base", w.put(func() *towlinev1.Module {
		m := module("base", map[string]string{"a.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: base, namespace: default}}\n"})
		m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a", "b"}}
		return m
	}()).GetRevision())
	if resp := label(false, "c", "dev"); !slices.Equal(resp.GetAsks(), []string{"default/shop"}) {
		t.Errorf("the last module again: %v", resp)
	}
	w.eventually(func() bool {
		holds, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		return err == nil && len(holds.GetHolds()) == 1 && holds.GetHolds()[0].GetModule() == "shop"
	})
}
