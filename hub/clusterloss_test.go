package hub_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// Scenario 34: a cluster that is away keeps nobody from rolling out, and what it is to let go is kept for it. The module can be deleted
// meanwhile: the others let it go at once, and it says for whom it waits, until that one is back, or is forgotten. A cluster that joins
// under the name later has nothing of the one before.
func TestModuleIsDeletedWhileAClusterIsLost(t *testing.T) {
	for name, end := range map[string]func(w *world){
		"it comes back": func(w *world) {
			w.reconnect("b")
			w.gone("shop")
			w.eventually(func() bool { held := w.agents["b"].Held(); return len(held.Syncs)+len(held.Tombstones) == 0 })
		},
		"it is forgotten, and another one takes the name": func(w *world) {
			_, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "b", Force: true})
			must(w.t, err)
			w.gone("shop")
			w.eventually(func() bool {
				_, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "b"})
				return status.Code(err) == codes.NotFound
			})
			got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "b"})
			must(w.t, err)
			w.ids["b"], err = simagent.Join(w.ctx, w.listen, got.GetToken(), "uid-of-another")
			must(w.t, err)
			d := newDiary()
			w.connectWith("b", simagent.Options{Took: d.took("shop")})
			w.await("other", w.put(module("other", configMap("1"))).GetRevision())
			if told := d.read(); len(told) != 1 || told[0] != "nothing" {
				w.t.Errorf("the new cluster was told %q of the module of the old one", told)
			}
			if held := w.agents["b"].Held(); len(held.Syncs) != 1 || len(held.Tombstones) != 0 {
				w.t.Errorf("the new cluster holds %v", held)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("a", nil, nil)
			w.join("b", nil, nil)
			w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
			w.leaves("b")
			for _, value := range []string{"2", "3"} {
				ro := w.await("shop", w.put(module("shop", configMap(value))).GetRevision())
				if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
					t.Fatalf("rollout: %v", s)
				}
			}
			w.delete("shop", false)
			w.eventually(func() bool { held := w.agents["a"].Held(); return len(held.Syncs)+len(held.Tombstones) == 0 })
			w.eventually(func() bool {
				out, err := w.cli()("", "get", "modules")
				return err == nil && strings.Contains(out, "Deleting: 1 object in 1 away cluster")
			})
			if b := w.agents["b"].Held(); len(b.Syncs) != 1 || b.Syncs[0].Revision != 1 {
				t.Errorf("b holds %v", b)
			}
			end(w)
		})
	}
}

// TestRemovalIsOfTheClusterThatHadTheName: what is to be removed from a cluster that is away is there and nowhere else. Another Kubernetes
// cluster that joins under the name, which may have the module from a time of its own, is told nothing of it, and the module waits no more.
func TestRemovalIsOfTheClusterThatHadTheName(t *testing.T) {
	placed := func() *towlinev1.Module {
		m := module("shop", configMap("1"))
		m.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"shop": "yes"}}}
		return m
	}
	yes, no := map[string]string{"shop": "yes"}, map[string]string{"shop": "no"}
	for name, tt := range map[string]struct {
		before, after func(w *world)
		told          string
		held          bool // its removal is not ordered
	}{
		"deleted": {func(w *world) { w.delete("shop", false) }, func(w *world) { w.gone("shop") }, "nothing", false},
		"deleted, and held there": {func(w *world) {
			_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "b"})
			must(w.t, err)
			w.delete("shop", false)
			w.eventually(func() bool { held := w.agents["a"].Held(); return len(held.Syncs)+len(held.Tombstones) == 0 })
		}, func(w *world) { w.gone("shop") }, "nothing", true},
		"deleted, its objects left": {func(w *world) { w.delete("shop", true) }, func(w *world) { w.gone("shop") }, "nothing", false},
		"deleted, and put again": {func(w *world) {
			w.delete("shop", false)
			w.put(placed())
		}, func(w *world) { w.eventually(func() bool { return w.module("shop").GetStatus().GetHealthy() == 2 }) }, "r2", false},
		"it left the placement": {func(w *world) {
			w.stops["b"] = w.run(w.agents["b"])
			w.labelled("b", no)
			w.confirm(w.awaitHold())
			w.eventually(func() bool { return len(w.agents["b"].Held().Tombstones) == 1 })
			w.leaves("b")
		}, func(w *world) {
			w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetClusters() == 1 && s.GetHealthy() == 1 })
		}, "nothing", false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("a", nil, yes)
			w.enroll("b", yes)
			w.connectWith("b", simagent.Options{Report: simagent.Ready, Remove: func(fleet.Tombstone) fleet.SyncStatus { return fleet.SyncStatus{} }})
			w.await("shop", w.put(placed()).GetRevision())
			w.leaves("b")
			tt.before(w)
			w.eventually(func() bool {
				rows := w.trackers(&towlinev1.ObjectFilter{Cluster: "b"})
				return len(rows) == 1 && (tt.held || rows[0].GetRemoving() || rows[0].GetRevision() == 2)
			})
			got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "b", Reissue: true})
			must(t, err)
			w.redeems("b", got.GetToken(), "uid-of-another")
			d := newDiary()
			w.connectWith("b", simagent.Options{Took: d.took("shop")})
			tt.after(w)
			w.await("other", w.put(module("other", map[string]string{"a.yaml": strings.Replace(configMapText("1"), "web", "other", 1)})).GetRevision())
			for _, told := range d.read() {
				if told != "nothing" && told != tt.told {
					t.Errorf("the new cluster was told %q of what the old one was to remove, want %q", told, tt.told)
				}
			}
			if held := w.agents["b"].Held(); len(held.Tombstones) != 0 {
				t.Errorf("the new cluster holds %v", held)
			}
		})
	}
}
