package hub_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestRollbackBringsBackWhoHadLeft: a cluster that the failed revision took the module from gets it back with the rollback, and
// keeps it when that ends: the placement of the older revision says where the module is.
func TestRollbackBringsBackWhoHadLeft(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", failingAt(2), nil)
	w.join("b", nil, nil)
	w.enroll("c", nil)
	var mu sync.Mutex
	removals := map[uint64]bool{}
	w.connectWith("c", simagent.Options{Report: simagent.Ready, Remove: func(x fleet.Tombstone) fleet.SyncStatus {
		mu.Lock()
		defer mu.Unlock()
		removals[x.Generation] = true
		return simagent.Removed(x)
	}})
	w.await("base", w.put(listing("base", "base")).GetRevision()) // or c could not be left without a confirm
	w.await("shop", w.put(listing("shop", "1")).GetRevision())
	narrow := listing("shop", "2")
	narrow.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a", "b"}}
	narrow.Spec.Rollout = &towlinev1.RolloutStrategy{OnFailure: "Rollback"}
	if ro := w.await("shop", w.put(narrow).GetRevision()); ro.GetStatus().GetState() != "RolledBack" {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	w.awaitTracker("shop", "c", "back", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 1 && tr.GetReady() })
	w.join("d", nil, nil) // a cluster that comes late gets what is in force, too
	w.awaitTracker("shop", "d", "there", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 1 && tr.GetReady() })
	mu.Lock()
	defer mu.Unlock()
	if got := w.revisions("shop"); len(got) != 4 || got["c"] != 1 || len(removals) > 1 {
		t.Errorf("in %v; c was told %d times that it goes", got, len(removals))
	}
}

// TestModuleThatBecomesTheHubsOwn: what another program assigned goes nowhere else until the hub has a rollout of its own for it.
func TestModuleThatBecomesTheHubsOwn(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	external := listing("shop", "1")
	external.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	w.await("shop", w.put(external).GetRevision())
	_, err := w.Assignments.PutAssignments(w.ctx, &towlinev1.PutAssignmentsRequest{Module: "shop", Revision: 1, Clusters: []string{"a"}})
	must(t, err)
	w.awaitTracker("shop", "a", "ready", ready)
	own := listing("shop", "1")
	nothing := httptest.NewServer(http.NotFoundHandler())
	defer nothing.Close()
	own.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: nothing.URL + "/a.tar.gz"}}
	put := w.put(own)
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Failed" })
	w.await("other", w.put(listing("other", "o")).GetRevision())
	if got := w.revisions("shop"); len(got) != 1 || got["a"] != 1 {
		t.Errorf("without a rollout it is in %v", got)
	}
	ro, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop", Number: 1})
	must(t, err)
	if s := ro.GetRollout().GetStatus().GetState(); s != "Succeeded" {
		t.Errorf("what had ended is %s", s)
	}
}
