package hub_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestClusterIsRemovedBesideADamagedCatalog: a cluster that has modules of a catalog whose record is damaged leaves as any other, whatever becomes of
// its objects: that nobody can tell whether the catalog goes with its modules is no reason to keep it.
func TestClusterIsRemovedBesideADamagedCatalog(t *testing.T) {
	for _, objects := range []string{fleet.LeaveKeep, fleet.LeaveDelete} {
		t.Run(objects, func(t *testing.T) {
			w := catalogWorldOn(newMortalWorld(t))
			var through atomic.Bool
			w.leaves("a")
			w.connect("a", func(s fleet.Sync) fleet.SyncStatus {
				if through.Load() {
					return fleet.SyncStatus{Module: s.Module, Generation: s.Generation, Phase: fleet.PhaseRemoved}
				}
				return simagent.Ready(s)
			})
			w.push("shop=1")
			w.putCatalog(w.catalog())
			w.applied(1)
			w.await("shop", 0)
			w.damage("catalogs/default/team")
			_, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: objects})
			must(t, err)
			w.eventually(func() bool { return w.agents["a"].Leave().GetObjects() == objects })
			through.Store(true)
			w.eventually(func() bool {
				_ = w.agents["a"].Again() // it says so in each session
				got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "a"})
				return status.Code(err) == codes.NotFound || got.GetCluster().GetStatus().GetState() == "Unregistered" // it asks to come in
			})
			if w.modules() != "shop" {
				t.Errorf("modules are %s", w.modules())
			}
		})
	}
}

// TestCatalogGoesWithAllItsModules: a catalog that is deleted with its modules waits for what cannot be read, which may be one of them, and says so.
func TestCatalogGoesWithAllItsModules(t *testing.T) {
	w := catalogWorldOn(newMortalWorld(t))
	w.connect("a", simagent.Ready)
	w.push("shop=1", "news=1")
	w.putCatalog(w.catalog())
	w.applied(1)
	w.await("shop", 0)
	w.await("news", 0)
	w.damage("modules/default/shop")
	_, err := w.Catalogs.DeleteCatalog(w.ctx, &towlinev1.DeleteCatalogRequest{Name: "team", Cascade: true, Reason: "over"})
	must(t, err)
	w.gone("news")
	w.eventually(func() bool {
		s := w.status()
		return slices.ContainsFunc(s.GetProblems(), func(text string) bool {
			return strings.Contains(text, "module shop may be of the catalog") && strings.Contains(text, "towline delete module shop")
		})
	})
	_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
	must(t, err)
	w.eventually(func() bool {
		_, err := w.Catalogs.GetCatalog(w.ctx, &towlinev1.GetCatalogRequest{Name: "team"})
		return status.Code(err) == codes.NotFound
	})
	w.gone("shop")
}
