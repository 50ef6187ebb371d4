package hub_test

import (
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func unreachable(since time.Time) fleet.Condition {
	return fleet.Condition{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Reason: "NoAnswer",
		Message: "the API server does not answer: connection refused", Since: since}
}

// awaitConditions waits until the cluster has exactly these types of conditions.
func (w *world) awaitConditions(name string, types ...fleet.ConditionType) *towlinev1.ClusterStatus {
	w.t.Helper()
	st, err := w.Clusters.WatchClusters(w.ctx, &towlinev1.WatchClustersRequest{Name: name})
	must(w.t, err)
	for {
		m, err := st.Recv()
		must(w.t, err)
		got := m.GetCluster().GetStatus().GetConditions()
		same := m.GetCluster() != nil && len(got) == len(types)
		for i := 0; same && i < len(types); i++ {
			same = got[i].GetType() == string(types[i])
		}
		if same {
			return m.GetCluster().GetStatus()
		}
	}
}

// A cluster whose agent is connected and whose API server is not reached is known as last heard only: nothing of it is
// Healthy or Ready, no rollout counts it, and all returns by itself.
func TestClusterWhoseAPIServerIsNotReachedIsAway(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	since := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	must(t, w.agents["b"].Tell(unreachable(since)))
	c := w.awaitConditions("b", fleet.ConditionAPIServerReachable)
	if x := c.GetConditions()[0]; c.GetState() != "Ready" || x.GetStatus() != "False" || x.GetReason() != "NoAnswer" || !x.GetLastTransitionTime().AsTime().Equal(since) {
		t.Errorf("cluster b: %v", c)
	}
	if s := w.module("shop").GetStatus(); s.GetHealthy() != 1 || s.GetAway() != 1 || s.GetClusters() != 2 {
		t.Errorf("module: %v", s)
	}
	tr, err := w.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Cluster: "b"}})
	must(t, err)
	if x := tr.GetTrackers()[0]; x.GetConnected() || x.GetReady() || x.GetHealth() != "Unknown" || x.GetSync() != "Unknown" || x.GetReason() != "ClusterNotSeen" ||
		x.GetMessage() != "the API server does not answer: connection refused" || !x.GetSince().AsTime().Equal(since) {
		t.Errorf("tracker: %v", x)
	}
	objects, err := w.Trackers.ListObjects(w.ctx, &towlinev1.ListObjectsRequest{Filter: &towlinev1.ObjectFilter{Cluster: "b"}})
	must(t, err)
	for _, o := range objects.GetObjects() {
		if o.GetHealth() != "Unknown" || o.GetSync() != "Unknown" {
			t.Errorf("object: %v", o)
		}
	}
	ro := w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Errorf("rollout: %v", s)
	}
	must(t, w.agents["b"].Tell())
	w.awaitConditions("b")
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: "shop"})
	must(t, err)
	for {
		m, err := st.Recv()
		must(t, err)
		if m.GetModule().GetStatus().GetHealthy() == 2 {
			break
		}
	}
}

// What an agent said stays when its session ends, and the next session's hello replaces it.
func TestConditionsLastUntilTheNextHello(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	must(t, w.agents["a"].Tell(fleet.Condition{Type: fleet.ConditionStateWritable, Status: fleet.ConditionFalse, Reason: "ReadOnly", Message: "read-only file system"}))
	w.awaitConditions("a", fleet.ConditionStateWritable)
	if s := w.awaitConditions("a", fleet.ConditionStateWritable); s.GetState() != "Ready" {
		t.Errorf("cluster a: %v", s)
	}
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	w.stopHub()
	w.start()
	w.awaitConditions("a", fleet.ConditionStateWritable)
	w.connect("a", nil) // an agent that has no conditions to tell
	w.awaitConditions("a")
}

// The hub shows what an agent says of the policy that its cluster's own people gave it, a newer one of the same state, too.
func TestLocalPolicyIsShown(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	for _, message := range []string{"policy sha256:aa is in force", "policy sha256:bb is in force"} {
		must(t, w.agents["a"].Tell(fleet.Condition{Type: fleet.ConditionLocalPolicy, Status: fleet.ConditionTrue, Reason: fleet.PolicyInForce, Message: message}))
		for {
			s := w.awaitConditions("a", fleet.ConditionLocalPolicy)
			if c := s.GetConditions()[0]; c.GetMessage() == message && c.GetStatus() == fleet.ConditionTrue {
				break
			}
		}
	}
}

// A cluster that its own people have frozen is held: it gets no new revision, fails no rollout, and catches up when it is free. What
// a policy only denies is for the objects to say.
func TestClusterThatItsOwnPolicyFreezesIsHeld(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	policy := func(reason string) {
		must(t, w.agents["b"].Tell(fleet.Condition{Type: fleet.ConditionLocalPolicy, Status: fleet.ConditionTrue, Reason: reason, Message: "policy sha256:aa"}))
	}
	policy("Frozen")
	w.awaitConditions("b", fleet.ConditionLocalPolicy)
	ro := w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Errorf("rollout: %v", s)
	}
	policy(fleet.PolicyInForce)
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: "shop"})
	must(t, err)
	for {
		m, err := st.Recv()
		must(t, err)
		if m.GetModule().GetStatus().GetUpdated() == 2 {
			break
		}
	}
}
