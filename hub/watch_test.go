package hub_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// What a module only watches has rows that say so, under the names that it has in each cluster, counts for the module, and is not
// among what goes with it.
func TestWatchedObjects(t *testing.T) {
	w := newWorld(t, true)
	missing := func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		for i := range st.Watched {
			st.Ready, st.Reason, st.Message = false, "Missing", "Database shop/db-us: does not exist"
			st.Watched[i] = fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: fleet.DriftInSync}
			st.Exceptions = append(st.Exceptions, fleet.ObjectException{Ordinal: len(st.States) + i, Reason: "Missing", Message: st.Message})
		}
		return st
	}
	w.join("a", nil, map[string]string{"region": "eu"})
	w.join("b", missing, map[string]string{"region": "us"})
	w.join("c", nil, map[string]string{"region": "E_U"})
	m := listing("shop", "x")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
	m.Spec.Watch = []*towlinev1.WatchedObject{{ApiVersion: "example.com/v1", Kind: "Database", Namespace: "shop", Name: "db-${REGION}"}}
	w.put(m)
	w.awaitTracker("shop", "a", "ready", ready)
	tr := w.awaitTracker("shop", "b", "not ready", func(tr *towlinev1.Tracker) bool { return tr.GetHealth() == "Missing" })
	if tr.GetReady() || tr.GetObjects() != 2 || tr.GetHealthy() != 1 || !strings.Contains(tr.GetMessage(), "does not exist") {
		t.Errorf("%v", tr)
	}
	w.awaitTracker("shop", "c", "said", func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == fleet.TrackerCannotAssign && strings.Contains(tr.GetMessage(), "metadata.name")
	})
	list, err := w.Trackers.ListObjects(w.ctx, &towlinev1.ListObjectsRequest{Filter: &towlinev1.ObjectFilter{Kind: "Database"}})
	must(t, err)
	for i, want := range []struct{ cluster, name, sync, health string }{{"a", "db-eu", "Synced", "Healthy"}, {"b", "db-us", "OutOfSync", "Missing"}} {
		if len(list.GetObjects()) != 2 {
			t.Fatalf("%v", list.GetObjects())
		}
		o := list.GetObjects()[i]
		if !o.GetWatched() || o.GetCluster() != want.cluster || o.GetObject().GetName() != want.name || o.GetSync() != want.sync || o.GetHealth() != want.health {
			t.Errorf("%v, want %v", o, want)
		}
	}
	got, err := w.Trackers.ExplainObject(w.ctx, &towlinev1.ExplainObjectRequest{Cluster: "b", Object: &towlinev1.ObjectReference{Kind: "Database", Namespace: "shop", Name: "db-us"}})
	must(t, err)
	if !got.GetObject().GetWatched() || got.GetObject().GetModule() != "shop" {
		t.Errorf("%v", got)
	}
	says, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Project: "default", Name: "shop", DryRun: true})
	must(t, err)
	if says.GetObjects() != 2 {
		t.Errorf("%d objects are to go with the module, want one in each of two clusters", says.GetObjects())
	}
	own := listing("own", "y")
	own.Spec.Watch = []*towlinev1.WatchedObject{{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: "y"}}
	if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: own}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "spec.watch[0]") {
		t.Errorf("a module that watches its own: %v", err)
	}
}

// An agent that does not know watched objects says nothing of a module that has some.
func TestAgentThatDoesNotWatch(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Features: []string{wire.FeatureStatusSeen}})
	m := listing("shop", "x")
	m.Spec.Watch = []*towlinev1.WatchedObject{{ApiVersion: "v1", Kind: "Node", Name: "n"}}
	w.put(m)
	tr := w.awaitTracker("shop", "c", "said", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AgentTooOld" })
	if tr.GetReady() || !strings.Contains(tr.GetMessage(), wire.FeatureWatch) {
		t.Errorf("%v", tr)
	}
}
