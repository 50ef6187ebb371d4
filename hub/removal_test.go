package hub_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestRemovalTellsThePolicies: an agent that has lost its records hears with the removal of a module what stays of it.
func TestRemovalTellsThePolicies(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("a", nil)
	told := make(chan string, 100)
	w.connectWith("a", simagent.Options{Remove: func(tomb fleet.Tombstone) fleet.SyncStatus {
		told <- tomb.Policies
		return simagent.Removed(tomb)
	}})
	m := module("shop", configMap("1"))
	m.Spec.Policies = []*towlinev1.Policy{{Match: &towlinev1.PolicyMatch{Names: []string{"db"}}, Delete: fleet.DeleteOrphan, Drift: fleet.DriftReport},
		{Drift: fleet.DriftIgnore}}
	w.await("shop", w.put(m).GetRevision())
	w.delete("shop", false)
	w.gone("shop")
	if got, want := <-told, `[{"match":{"names":["db"]},"delete":"Orphan"}]`; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}

// TestClusterStaysUntilWhatIsDeletedIsGone: a cluster that leaves would not do what was said of a module that is being deleted: what is to go
// would stay there for good, and what is to stay would go. Its removal is refused, and names the module, until that is done, or by force.
func TestClusterStaysUntilWhatIsDeletedIsGone(t *testing.T) {
	for objects, orphan := range map[string]bool{"keep": false, "delete": true} {
		t.Run(objects, func(t *testing.T) {
			w := newWorld(t, true)
			var through atomic.Bool
			w.joinRemoving("a", func(x fleet.Tombstone) fleet.SyncStatus {
				if !through.Load() {
					return fleet.SyncStatus{Module: x.Module, Generation: x.Generation, Phase: fleet.PhaseRemoving}
				}
				return simagent.Removed(x)
			})
			w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
			remove := func() error {
				_, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: objects})
				return err
			}
			refused := func(when string) {
				t.Helper()
				if err := remove(); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "shop") {
					t.Fatalf("%s: %v", when, err)
				}
			}
			w.delete("shop", orphan)
			refused("right after it")
			w.eventually(func() bool { return len(w.agents["a"].Held().Tombstones) == 1 })
			refused("while its agent does it")
			w.leaves("a")
			refused("while its agent is away")
			through.Store(true)
			w.connect("a", nil)
			w.gone("shop")
			must(t, remove())
		})
	}
}

// TestClusterLeavesWithoutWhatIsDeletedByForce: nobody waits for an agent that does not come back, nor for what the removal does as well.
func TestClusterLeavesWithoutWhatIsDeletedByForce(t *testing.T) {
	for name, req := range map[string]*towlinev1.RemoveClusterRequest{
		"by force":        {Name: "a", Force: true},
		"with all it has": {Name: "a", Objects: "delete"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("a", nil, nil)
			w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
			w.leaves("a")
			w.delete("shop", false)
			_, err := w.Clusters.RemoveCluster(w.ctx, req)
			must(t, err)
		})
	}
}

// TestModuleIsNotLeftWhereAllGoes: of a module whose objects are to stay none goes because a cluster was told before to delete all that it has.
func TestModuleIsNotLeftWhereAllGoes(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.leaves("a")
	_, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: "delete"})
	must(t, err)
	leave := &towlinev1.DeleteModuleRequest{Name: "shop", Orphan: true}
	for _, dry := range []bool{true, false} {
		leave.DryRun = dry
		if _, err := w.Modules.DeleteModule(w.ctx, leave); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "cluster a is leaving") {
			t.Fatalf("dry run %t: %v", dry, err)
		}
	}
	_, err = w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: "keep"})
	must(t, err)
	_, err = w.Modules.DeleteModule(w.ctx, leave)
	must(t, err)
}

// TestDeletionTellsWhatStaysInAClusterThatLeaves: the agent of a cluster that leaves with all that it has removes nothing of a module that is deleted
// then, whatever that is told: the plan and the order say so.
func TestDeletionTellsWhatStaysInAClusterThatLeaves(t *testing.T) {
	for objects, stays := range map[string]bool{"keep": true, "delete": false} {
		t.Run(objects, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("a", nil, nil)
			w.join("b", nil, nil)
			w.await("shop", w.put(listing("shop", "x", "y")).GetRevision())
			w.leaves("a")
			_, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: objects})
			must(t, err)
			for _, dry := range []bool{true, false} {
				got, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop", DryRun: dry})
				must(t, err)
				got.Revision = 0
				want := &towlinev1.DeleteModuleResponse{Clusters: 2, Objects: 4}
				if stays {
					want = &towlinev1.DeleteModuleResponse{Clusters: 2, Objects: 2, Leaving: []string{"a"}, LeavingClusters: 1, Left: 2}
				}
				if !proto.Equal(got, want) {
					t.Errorf("dry run %t: %v, want %v", dry, got, want)
				}
			}
		})
	}
}

// TestDeletionTellsWhatTheAgentsLeft: what an agent says that it left, such as a Namespace in which others have something, is in the audit when the module
// is gone, and in the last line of the command that waited for that.
func TestDeletionTellsWhatTheAgentsLeft(t *testing.T) {
	const kept = "kept: Namespace shop (the namespace holds objects that are not ours: ConfigMap x)"
	w := newWorld(t, true)
	leaves := func(x fleet.Tombstone) fleet.SyncStatus {
		st := simagent.Removed(x)
		st.Message = kept
		return st
	}
	w.joinRemoving("a", leaves)
	w.joinRemoving("b", leaves)
	w.joinRemoving("c", simagent.Removed)
	w.await("shop", w.put(listing("shop", "x")).GetRevision())
	out, err := w.cli()("", "delete", "module", "shop", "--yes", "--timeout", "30s", "-m", "over")
	if err != nil || !strings.Contains(out, "module/shop deleted; gone from 3 clusters, which were to remove 3 objects; "+kept+", in cluster") {
		t.Errorf("%v: %s", err, out)
	}
	got, err := w.Audit.ListAuditEntries(w.ctx, &towlinev1.ListAuditEntriesRequest{Subject: "default/shop", Method: fleet.DidRemoveModule})
	must(t, err)
	said := ""
	for _, e := range got.GetEntries() {
		if e.GetCaller() == "" || e.GetReason() != "over" || e.GetResult() != "OK" {
			t.Errorf("%v", e)
		}
		said += e.GetDetail() + "\n"
	}
	if !strings.Contains(said, "a") || !strings.Contains(said, "b") || strings.Contains(said, ", c") {
		t.Errorf("the audit has %s", said)
	}
	for name, want := range map[string]int{"a": 1, "b": 1, "c": 0} { // it stands in the history of the clusters, too
		out, err := w.cli()("", "history", "cluster/"+name)
		if n := strings.Count(out, kept); err != nil || n != want || !strings.Contains(out, "Enroll") {
			t.Errorf("cluster %s: %v\n%s", name, err, out)
		}
	}
}
