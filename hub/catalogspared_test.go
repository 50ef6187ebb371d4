package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// A catalog is deleted with its modules, and cannot go, for another module depends on one of them; another Kubernetes cluster takes the name of one of
// its clusters, and is told nothing of what is to go. Then a set takes one of the modules over, and a person deletes the catalog alone: what so stays
// comes to that cluster.
func TestModulesThatStayAfterAllComeToAnotherCluster(t *testing.T) {
	w := newCatalogWorld(t)
	w.join("b", nil, nil)
	w.push("more=1", "shop=1")
	w.putCatalog(w.catalog())
	w.eventually(func() bool {
		return strings.Contains(w.modules(), "more") && strings.Contains(w.modules(), "shop") && w.module("shop").GetStatus().GetHealthy() == 2 && w.module("more").GetStatus().GetHealthy() == 2
	})
	needs := module("needs", configMap("1"))
	needs.Spec.DependsOn = []*towlinev1.Dependency{{Module: "shop"}, {Module: "more"}}
	needs.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a"}}
	w.put(needs)
	w.leaves("b")
	_, err := w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Name: "team", Cascade: true})
	must(t, err)
	w.eventually(func() bool {
		got, err := w.Catalogs.GetCatalog(w.ctx, &towlinev1.GetCatalogRequest{Name: "team"})
		return err == nil && len(got.GetCatalog().GetStatus().GetProblems()) > 0
	})
	got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "b", Reissue: true})
	must(t, err)
	w.redeems("b", got.GetToken(), "uid-of-another")
	w.connectWith("b", simagent.Options{Report: simagent.Ready})
	w.eventually(func() bool {
		got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "b"})
		return err == nil && got.GetCluster().GetStatus().GetState() == string(fleet.ClusterReady)
	})
	if held := w.agents["b"].Held(); len(held.Syncs) > 0 {
		t.Errorf("it is given what is to go: %v", held)
	}
	_, err = w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "more"}, Spec: w.module("more").GetSpec()}, Set: "mine", Take: true})
	must(t, err)
	w.eventually(func() bool { return w.held("b", "more").Revision == 1 })
	_, err = w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Name: "team"})
	must(t, err)
	w.eventually(func() bool {
		return w.held("b", "shop").Revision == 1 && w.module("shop").GetStatus().GetHealthy() == 2
	})
}
