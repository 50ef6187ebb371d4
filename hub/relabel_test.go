package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// labelled gives a cluster these labels and no others.
func (w *world) labelled(cluster string, labels map[string]string) {
	w.t.Helper()
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: cluster, Labels: labels}}})
	must(w.t, err)
}

// TestLabelThatGivesNoValue: a label that a module needs is taken from a cluster that has the module, or gets a value by which it cannot
// be there. The cluster keeps what it has, and says so, each time by what is wrong now, until the label is right.
func TestLabelThatGivesNoValue(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, map[string]string{"zone": "us", "size": "1"})
	one := zoned(listing("one", "m-${ZONE}", "m-eu"))
	one.Spec.Bindings = append(one.Spec.Bindings, &towlinev1.Binding{Name: "SIZE", ClusterLabel: "size", Type: "Integer"})
	w.await("one", w.put(one).GetRevision())
	for _, tc := range []struct {
		labels map[string]string
		says   string
	}{
		{map[string]string{"size": "1"}, "ZONE has no value in cluster c"},
		{map[string]string{"zone": "us", "size": "large"}, "is no whole number"},
		{map[string]string{"zone": "EU_1", "size": "1"}, "m-EU_1"},
		{map[string]string{"zone": "eu", "size": "1"}, "is ConfigMap default/m-eu here, as ConfigMap default/m-eu is, too"},
	} {
		w.labelled("c", tc.labels)
		w.awaitTracker("one", "c", tc.says, func(tr *towlinev1.Tracker) bool {
			return tr.GetReason() == "CannotAssign" && strings.Contains(tr.GetMessage(), tc.says) && !tr.GetReady() && tr.GetRevision() == 1
		})
		if got := w.held("c", "one").Values; got["ZONE"] != "us" || got["SIZE"] != "1" {
			t.Errorf("with %v the agent has %v", tc.labels, got)
		}
		if r := w.module("one").GetStatus().GetConditions()[0]; r.GetStatus() != "False" {
			t.Errorf("with %v the module is %v", tc.labels, r)
		}
	}
	w.labelled("c", map[string]string{"zone": "asia", "size": "2"})
	w.awaitTracker("one", "c", "ready", func(tr *towlinev1.Tracker) bool {
		return tr.GetReady() && w.held("c", "one").Values["ZONE"] == "asia" && w.held("c", "one").Values["SIZE"] == "2"
	})
}

// TestLabelThatGivesNoValueFailsNoRevision: what somebody does to the labels of a cluster that has the revision says nothing of that.
func TestLabelThatGivesNoValueFailsNoRevision(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, map[string]string{"zone": "us"})
	one := zoned(listing("one", "m-${ZONE}"))
	one.Spec.Rollout = &towlinev1.RolloutStrategy{OnFailure: "Abort", Stages: []*towlinev1.Stage{
		{Name: "all", After: []*towlinev1.Gate{{Approval: &towlinev1.ApprovalGate{Approvers: 1}}}}}}
	w.put(one)
	w.until("one", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	w.labelled("c", nil)
	w.awaitTracker("one", "c", "without a value", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	w.until("one", 1, func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetState() == "Progressing" || r.GetStatus().GetEnded() != nil
	})
	w.labelled("c", map[string]string{"zone": "eu"})
	if s := w.until("one", 1, func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetReason() == "Approval" || r.GetStatus().GetEnded() != nil
	}).GetStatus(); s.GetState() != "Waiting" {
		t.Errorf("the rollout: %v", s)
	}
}

// TestQueuedModuleWaitsForItsSecret: what a queued put is going to list is not known before its secret is there, and may be anything.
func TestQueuedModuleWaitsForItsSecret(t *testing.T) {
	w := newHeirs(t)
	w.put(queueing(listing("two", "b")))
	w.awaitTracker("two", "c", "ready", ready)
	two := elsewhereSource(t, listing("two", "b", "m"), nil)
	two.Spec.Source.Http.SecretName = "repo"
	w.queued(queueing(two))
	w.put(queueing(listing("one", "a")))
	w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 })
	w.awaitHeir("c", "one", "m", "two")
	w.setSecret("repo", "token", "t")
	w.awaitTracker("one", "c", "dropping m", func(*towlinev1.Tracker) bool {
		heirs := w.held("c", "one").Heirs
		return len(heirs) == 1 && !heirs[0].Unknown && heirs[0].Module.Name == "two"
	})
}

// TestRemovalThatStandsStillIsNotSaidToBeHeld: a removal that a hold had stopped does not go on where the module is placed again, which a cordon keeps
// from being given to the cluster. Nobody holds it then, and who ends holds ends nothing by that.
func TestRemovalThatStandsStillIsNotSaidToBeHeld(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", map[string]string{"zone": "eu"})
	w.connectWith("c", simagent.Options{Remove: func(tomb fleet.Tombstone) fleet.SyncStatus { // it takes for ever
		if tomb.Hold {
			return fleet.SyncStatus{Module: tomb.Module, Generation: tomb.Generation, Phase: fleet.PhaseHeld, Reason: "Held", Message: "held"}
		}
		return fleet.SyncStatus{Module: tomb.Module, Generation: tomb.Generation, Phase: fleet.PhaseApplying}
	}})
	w.awaitCluster("c", "Ready")
	one := module("one", configMap("1"))
	one.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"zone": "eu"}}}
	w.await("one", w.put(one).GetRevision())
	w.put(module("other", map[string]string{"b.yaml": "{apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: default}}\n"}))
	w.awaitTracker("other", "c", "ready", ready)
	w.labelled("c", map[string]string{"zone": "us"})
	w.awaitTracker("one", "c", "going", func(tr *towlinev1.Tracker) bool { return tr.GetRemoving() })
	held, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "one", Cluster: "c"})
	must(t, err)
	w.awaitTracker("one", "c", "held", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "Held" })
	_, err = w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c", Labels: map[string]string{"zone": "eu"}}, Spec: &towlinev1.ClusterSpec{Cordoned: new(true)}}})
	must(t, err)
	if tr := w.tracker("one", "c"); tr.GetReason() != "Held" {
		t.Errorf("while somebody holds it: %v", tr)
	}
	w.confirm(held.GetHold())
	w.awaitTracker("one", "c", "standing still", func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == fleet.TrackerPlacedAgain && tr.GetRemoving()
	})
	if got, err := w.Trackers.GetTracker(w.ctx, &towlinev1.GetTrackerRequest{Project: "default", Module: "one", Cluster: "c"}); err != nil || got.GetTracker().GetReason() != fleet.TrackerPlacedAgain {
		t.Errorf("by itself: %v, %v", got, err)
	}
	_, err = w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c", Labels: map[string]string{"zone": "eu"}}, Spec: &towlinev1.ClusterSpec{Cordoned: new(false)}}})
	must(t, err)
	w.awaitTracker("one", "c", "back", ready)
}
