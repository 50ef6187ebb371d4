package hub_test

import (
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

func (w *world) trackers(f *towlinev1.ObjectFilter) []*towlinev1.Tracker {
	w.t.Helper()
	got, err := w.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: f})
	must(w.t, err)
	return got.GetTrackers()
}

func (w *world) objects(f *towlinev1.ObjectFilter) []*towlinev1.Object {
	w.t.Helper()
	got, err := w.Trackers.ListObjects(w.ctx, &towlinev1.ListObjectsRequest{Filter: f})
	must(w.t, err)
	return got.GetObjects()
}

// leaves ends the agent's session.
func (w *world) leaves(name string) {
	w.t.Helper()
	w.stops[name]()
	w.awaitCluster(name, "Disconnected")
}

// drifted reports every object as changed by somebody.
func drifted(s fleet.Sync) fleet.SyncStatus {
	st := simagent.Ready(s)
	for i := range st.States {
		st.States[i].Drift = fleet.DriftDrifted
	}
	return st
}

// What is known of a cluster that is away is as last heard, and says so: nothing of it is Healthy, Synced, InSync or Ready,
// whoever asks, and totals stay exact.
func TestNothingOfAClusterAwayIsCalledHealthy(t *testing.T) {
	w := newWorld(t, true)
	before := time.Now().Truncate(time.Millisecond) // the store keeps milliseconds
	w.join("a", drifted, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	watch, err := w.Trackers.WatchObjects(w.ctx, &towlinev1.WatchObjectsRequest{})
	must(t, err)
	for m := new(towlinev1.WatchObjectsResponse); m.GetType() != "SYNCED"; {
		m, err = watch.Recv()
		must(t, err)
	}
	w.leaves("a")

	s := w.module("shop").GetStatus()
	if c := s.GetConditions()[0]; c.GetStatus() != "Unknown" || c.GetReason() != "Away" {
		t.Errorf("condition of a module with every cluster away: %v", c)
	}
	if s.GetHealthy() != 0 || s.GetAway() != 1 || s.GetClusters() != 1 || s.GetObjects() != 1 || s.GetDrift() != 0 {
		t.Errorf("module: %v", s)
	}
	tr := w.trackers(nil)[0]
	if tr.GetHealth() != "Unknown" || tr.GetSync() != "Unknown" || tr.GetReady() || tr.GetHealthy() != 0 || tr.GetDrifted() != 0 || tr.GetObjects() != 1 || tr.GetConnected() {
		t.Errorf("tracker: %v", tr)
	}
	if tr.GetWasHealth() != "Healthy" || tr.GetWasSync() != "Synced" || tr.GetWasHealthy() != 1 || tr.GetWasDrifted() != 1 || tr.GetLastHeard().AsTime().Before(before) ||
		tr.GetReason() != "Disconnected" {
		t.Errorf("the last word of the tracker: %v", tr)
	}
	if n := len(w.trackers(&towlinev1.ObjectFilter{Health: "Healthy"})); n != 0 {
		t.Errorf("%d trackers are Healthy", n)
	}
	o := w.objects(nil)[0]
	if o.GetHealth() != "Unknown" || o.GetSync() != "Unknown" || o.GetDrift() != "Unknown" || o.GetWasHealth() != "Healthy" ||
		o.GetWasSync() != "Synced" || o.GetWasDrift() != "Drifted" || o.GetLastHeard().AsTime().Before(before) {
		t.Errorf("object: %v", o)
	}
	if rows := w.objects(&towlinev1.ObjectFilter{Drift: "*"}); len(rows) != 0 {
		t.Errorf("drifts now, it says: %v", rows)
	}
	if c := w.cluster("a").GetStatus(); c.GetHealthy() != 0 || c.GetWasHealthy() != 1 || c.GetModules() != 1 || c.GetDrift() != 0 || c.GetWasDrift() != 1 {
		t.Errorf("cluster: %v", c)
	}
	for {
		m, err := watch.Recv()
		must(t, err)
		if m.GetType() == "MODIFIED" && m.GetObject().GetHealth() == "Unknown" {
			break
		}
	}
	w.connect("a", nil)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetHealthy() == 1 && s.GetConditions()[0].GetStatus() == "True"
	})
}

// moduleIs waits until the module's status is as it should be.
func (w *world) moduleIs(name string, ok func(*towlinev1.ModuleStatus) bool) *towlinev1.ModuleStatus {
	w.t.Helper()
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: name})
	must(w.t, err)
	var last *towlinev1.ModuleStatus
	for {
		m, err := st.Recv()
		if err != nil {
			w.t.Fatalf("%v; last: %v", err, last)
		}
		if m.GetModule() == nil {
			continue
		}
		if last = m.GetModule().GetStatus(); ok(last) {
			return last
		}
	}
}

// Some clusters away: the module is Ready if the others are, and says how many are not seen.
func TestReadyModuleSaysHowManyClustersAreAway(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.leaves("b")
	c := w.module("shop").GetStatus().GetConditions()[0]
	if c.GetStatus() != "True" || c.GetReason() != "Succeeded" || c.GetLastTransitionTime() == nil {
		t.Errorf("condition: %v", c)
	}
}

// A module that was fine for days and is not any more is not said to have been so since its rollout ended.
func TestModuleIsNotDegradedSinceItsRolloutEnded(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetAway() == 1 })
	if c := s.GetConditions()[0]; c.GetReason() != "Away" || c.GetLastTransitionTime() != nil {
		t.Errorf("away: %v", c)
	}
	w.connect("a", simagent.Failing)
	s = w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetBad() == 1 })
	if c := s.GetConditions()[0]; c.GetReason() != "Degraded" || c.GetLastTransitionTime() != nil {
		t.Errorf("degraded: %v", c)
	}
}

// silent connects an agent that has not looked at its cluster yet.
func (w *world) silent(name string) {
	w.t.Helper()
	w.connectWith(name, simagent.Options{Mute: true})
}

// A report counts only as the word of the agent that is connected now: one of a session before is as last heard, until
// the agent says it again.
func TestReportOfASessionBeforeIsAsLastHeard(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.leaves("a")
	w.silent("a")
	tr := w.trackers(nil)[0]
	if tr.GetHealth() != "Unknown" || tr.GetReady() || !tr.GetConnected() || tr.GetWasHealth() != "Healthy" || tr.GetReason() != "NotHeard" {
		t.Errorf("tracker: %v", tr)
	}
	if s := w.module("shop").GetStatus(); s.GetHealthy() != 0 || s.GetProgressing() != 1 || s.GetConditions()[0].GetStatus() == "True" {
		t.Errorf("module: %v", s)
	}
	must(t, w.agents["a"].Again())
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
}

// A cluster that was made anew under its name has nothing of what the one before had.
func TestReportOfAnotherClusterUnderTheNameIsVoid(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.leaves("a")
	got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: "a", Reissue: true})
	must(t, err)
	w.ids["a"], err = simagent.Join(w.ctx, w.listen, got.GetToken(), "uid-of-another")
	must(t, err)
	w.silent("a")
	tr := w.trackers(nil)[0]
	if tr.GetHealth() != "Progressing" || tr.GetReady() || tr.GetWasHealth() != "" || tr.GetReason() != "Sending" {
		t.Errorf("tracker: %v", tr)
	}
	if s := w.module("shop").GetStatus(); s.GetHealthy() != 0 || s.GetUpdated() != 0 {
		t.Errorf("module: %v", s)
	}
	must(t, w.agents["a"].Again())
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
}

// A hub that has just started has heard nobody: what its store holds is as last heard until the agents are back, and one
// that has nothing new to say need not say it again.
func TestAfterAHubsStartNothingIsHealthyUntilItIsHeard(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.stops["a"]()
	w.stopHub()
	w.grace = 20 * time.Second
	w.start()
	if tr := w.trackers(nil)[0]; tr.GetHealth() != "Unknown" || tr.GetWasHealth() != "Healthy" || tr.GetReady() {
		t.Errorf("tracker: %v", tr)
	}
	if c := w.module("shop").GetStatus().GetConditions()[0]; c.GetStatus() != "Unknown" {
		t.Errorf("condition: %v", c)
	}
	ro, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop"})
	must(t, err)
	if s := ro.GetRollout().GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 {
		t.Errorf("the rollout takes back what it has said: %v", s)
	}
	w.connect("a", nil)
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 1 })
}

// What a cluster that is away said last stands, whatever people order of it since; and one that is to leave says that it is away.
func TestLastWordOfAClusterOutlivesOrders(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.leaves("a")
	before := w.trackers(nil)[0].GetGeneration()
	_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop"})
	must(t, err)
	w.eventually(func() bool { return w.trackers(nil)[0].GetGeneration() > before })
	_, err = w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a"})
	must(t, err)
	got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "a"})
	must(t, err)
	if s := got.GetCluster().GetStatus(); s.GetState() != "Removing" || !s.GetAway() || s.GetHealthy() != 0 || s.GetWasHealthy() != 1 {
		t.Errorf("cluster: %v", s)
	}
	if tr := w.trackers(nil)[0]; tr.GetHealth() != "Unknown" || tr.GetWasHealth() != "Healthy" || tr.GetWasHealthy() != 1 {
		t.Errorf("tracker: %v", tr)
	}
}

// TestLastWordOfAClusterOutlivesAssignments: how many modules of a cluster that is away did well, and drifted, is as it was when it was heard of
// last, whatever is wanted there since. That says nothing of what is wanted now.
func TestLastWordOfAClusterOutlivesAssignments(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", drifted, map[string]string{"env": "dev"})
	m := module("shop", configMap("1"))
	m.Spec.Overrides = []*towlinev1.Override{{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}, AllowEmpty: true,
		Patches: []*towlinev1.Patch{{Target: &towlinev1.PatchTarget{Kind: "ConfigMap"}, Patch: `[{"op": "replace", "path": "/data/a", "value": "2"}]`}}}}
	w.await("shop", w.put(m).GetRevision())
	w.leaves("a")
	stands := func(when string) {
		t.Helper()
		if c := w.cluster("a").GetStatus(); c.GetModules() != 1 || c.GetHealthy() != 0 || c.GetWasHealthy() != 1 || c.GetWasDrift() != 1 {
			t.Errorf("%s: %v", when, c)
		}
	}
	stands("away")
	before := w.trackers(nil)[0].GetGeneration()
	c := w.cluster("a")
	c.Metadata.Labels["env"] = "prod"
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: c})
	must(t, err)
	w.eventually(func() bool { return w.trackers(nil)[0].GetGeneration() > before })
	stands("other objects are wanted")
	if tr := w.trackers(nil)[0]; tr.GetWasHealth() != "" {
		t.Errorf("of other objects: %v", tr)
	}
	_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
	must(t, err)
	w.eventually(func() bool { return w.trackers(nil)[0].GetRemoving() })
	stands("the module is to go")
}
