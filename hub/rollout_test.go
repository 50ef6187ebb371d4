package hub_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

func labels(ring string) map[string]string { return map[string]string{"ring": ring} }

func staged(name, value string, strategy *towlinev1.RolloutStrategy) *towlinev1.Module {
	m := module(name, configMap(value))
	m.Spec.Rollout = strategy
	return m
}

func canaryThenRest(after ...*towlinev1.Gate) *towlinev1.RolloutStrategy {
	return &towlinev1.RolloutStrategy{OnFailure: "Rollback", Stages: []*towlinev1.Stage{
		{Name: "canary", Selector: &towlinev1.LabelSelector{MatchLabels: labels("canary")}, After: after},
		{Name: "rest", MaxConcurrency: "50%"}}}
}

// failingAt reports one revision as failed and every other as ready.
func failingAt(revision int64) func(fleet.Sync) fleet.SyncStatus {
	return func(s fleet.Sync) fleet.SyncStatus {
		if s.Revision == revision {
			return simagent.Failing(s)
		}
		return simagent.Ready(s)
	}
}

// until watches the newest rollout of a module until the condition holds.
func (w *world) until(name string, min int64, ok func(*towlinev1.Rollout) bool) *towlinev1.Rollout {
	w.t.Helper()
	st, err := w.Rollouts.WatchRollout(w.ctx, &towlinev1.WatchRolloutRequest{Module: name, MinRevision: min})
	must(w.t, err)
	var last *towlinev1.Rollout
	for {
		m, err := st.Recv()
		if err != nil {
			w.t.Fatalf("%v; last: %v", err, last)
		}
		last = m.GetRollout()
		if ok(last) {
			return last
		}
	}
}

func (w *world) act(word client.Word) *towlinev1.RolloutAnswer {
	w.t.Helper()
	resp, err := w.Steer(w.ctx, word)
	must(w.t, err)
	return resp
}

func (w *world) revisions(name string) map[string]int64 {
	w.t.Helper()
	got, err := w.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Module: name}})
	must(w.t, err)
	out := map[string]int64{}
	for _, t := range got.GetTrackers() {
		out[t.GetCluster()] = t.GetRevision()
	}
	return out
}

func TestFailedCanaryIsRolledBackAndNobodyElseMoves(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", failingAt(2), labels("canary"))
	w.join("b", nil, labels("rest"))
	w.join("c", nil, labels("rest"))
	w.await("shop", w.put(staged("shop", "1", canaryThenRest())).GetRevision())
	ro := w.await("shop", w.put(staged("shop", "2", canaryThenRest())).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "RolledBack" || s.GetMoved() != 1 {
		t.Fatalf("rollout: %v", s)
	}
	for c, r := range w.revisions("shop") {
		if r != 1 {
			t.Errorf("cluster %s runs r%d", c, r)
		}
	}
	if s := w.module("shop").GetStatus(); !s.GetRolledBack() || s.GetHealthy() != 3 {
		t.Errorf("module: %v", s)
	}
	again := w.put(staged("shop", "2", canaryThenRest()))
	if again.GetResult() != "unchanged" || !warned(again, fleet.WarnStaysBack) {
		t.Errorf("put again: %v", again)
	}
}

func TestApprovalGateHoldsTheRestUntilSomebodyElseApproves(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, labels("canary"))
	w.join("b", nil, labels("rest"))
	gate := &towlinev1.Gate{Approval: &towlinev1.ApprovalGate{}}
	put := w.put(staged("shop", "1", canaryThenRest(gate)))
	waiting := w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	if n := w.revisions("shop")["b"]; n != 0 {
		t.Fatalf("rest moved to r%d before the approval", n)
	}
	if len(waiting.GetStatus().GetWaitingFor()) == 0 {
		t.Error("waits for nothing")
	}
	_, err := w.Steer(w.ctx, client.Word{Module: "shop", Verb: "approve"})
	if err == nil || !strings.Contains(err.Error(), "admin") {
		t.Errorf("approval by the one who started it: %v", err)
	}
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "maria", Role: "admin"})
	must(t, err)
	maria := w.as(user.GetToken())
	_, err = maria.Steer(w.ctx, client.Word{Module: "shop", Verb: "approve", Reason: "looks good"})
	must(t, err)
	ro := w.await("shop", 0)
	if ro.GetStatus().GetState() != "Succeeded" {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	if v := ro.GetStatus().GetVerbs(); len(v) != 2 || v[1].GetBy() != "maria" || v[1].GetReason() != "looks good" || v[1].GetOutcome() != "accepted" {
		t.Errorf("verbs: %v", v)
	}
}

func TestPauseStopsAndResumeGoesOn(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, labels("canary"))
	w.join("b", nil, labels("rest"))
	s := canaryThenRest()
	s.Stages[0].Soak = "1s"
	put := w.put(staged("shop", "1", s))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetRevision() > 0 })
	w.act(client.Word{Module: "shop", Verb: "pause", Reason: "lunch"})
	deadline := time.Now().Add(2 * time.Second)
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Paused" })
	for time.Now().Before(deadline) {
		if n := w.revisions("shop")["b"]; n != 0 {
			t.Fatalf("paused, and b moved to r%d", n)
		}
	}
	w.act(client.Word{Module: "shop", Verb: "resume"})
	if ro := w.await("shop", 0); ro.GetStatus().GetState() != "Succeeded" {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
}

// withoutSource is a module whose source is not found.
func withoutSource(t *testing.T, name string) *towlinev1.Module {
	srv := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(srv.Close)
	m := module(name, nil)
	m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/a.yaml"}}
	return m
}

// TestRepeatedWordIsAnsweredAlike: whoever did not hear the answer asks again, and nothing more is done.
func TestRepeatedWordIsAnsweredAlike(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", failingAt(1), nil)
	w.put(module("shop", configMap("1")))
	w.until("shop", 1, func(r *towlinev1.Rollout) bool { return r.GetRevision() > 0 })
	abort := client.Word{Module: "shop", Verb: "abort", RequestID: "one"}
	first, again := w.act(abort), w.act(abort)
	if first.GetId() != again.GetId() || !slices.EqualFunc(first.GetNotes(), again.GetNotes(), func(a, b *towlinev1.Note) bool { return proto.Equal(a, b) }) || len(again.GetRollout().GetStatus().GetVerbs()) != 1 {
		t.Errorf("again: %v, first: %v", again, first)
	}
	// The same of a source that is tried again.
	broken := withoutSource(t, "broken")
	w.put(broken)
	w.until("broken", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Failed" })
	retry := client.Word{Module: "broken", Verb: "retry", RequestID: "two"}
	if first, again := w.act(retry), w.act(retry); first.GetId() != "broken/2" || again.GetId() != "broken/2" {
		t.Errorf("tried again as %s and %s", first.GetId(), again.GetId())
	}
	// A newer put whose source fails changes nothing of what was answered.
	w.until("broken", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Failed" })
	broken.Spec.Source.Http.Url += "/other"
	w.put(broken)
	w.until("broken", 3, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Failed" })
	broken.Metadata.Name = "shop"
	w.put(broken)
	w.until("shop", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Failed" })
	if again := w.act(retry); again.GetId() != "broken/2" {
		t.Errorf("tried again as %s after a newer put", again.GetId())
	}
	if again := w.act(abort); again.GetId() != first.GetId() || !slices.EqualFunc(first.GetNotes(), again.GetNotes(), func(a, b *towlinev1.Note) bool { return proto.Equal(a, b) }) {
		t.Errorf("again after a newer put: %v, first: %v", again, first)
	}
}

// TestRepeatedRetryStartsNothing: a retry that a rollout has answered is answered alike after a newer put failed.
func TestRepeatedRetryStartsNothing(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", failingAt(1), nil)
	w.put(module("shop", configMap("1")))
	w.until("shop", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetFailed() == 1 })
	retry := client.Word{Module: "shop", Verb: "retry", RequestID: "one"}
	first := w.act(retry)
	w.put(withoutSource(t, "shop"))
	w.until("shop", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Failed" })
	if again := w.act(retry); again.GetId() != first.GetId() || !slices.EqualFunc(first.GetNotes(), again.GetNotes(), func(a, b *towlinev1.Note) bool { return proto.Equal(a, b) }) {
		t.Errorf("again: %v, first: %v", again, first)
	}
	if ro := w.await("shop", 0); ro.GetNumber() != 2 {
		t.Errorf("a repeat began %s", ro.GetId())
	}
}

func TestRelabelledClusterLeavesAndALateOneFollows(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, map[string]string{"env": "prod"})
	}
	m := module("shop", configMap("1"))
	m.Spec.Placement.Selector.MatchLabels = map[string]string{"env": "prod"}
	w.await("shop", w.put(m).GetRevision())
	w.await("base", w.put(module("base", map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base, namespace: default}\n"})).GetRevision())
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "a"}}})
	must(t, err)
	w.join("d", nil, map[string]string{"env": "prod"})
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: "shop"})
	must(t, err)
	for {
		x, err := st.Recv()
		must(t, err)
		r := w.revisions("shop")
		if _, left := r["a"]; !left && r["d"] == 1 && x.GetModule().GetStatus().GetHealthy() == 3 {
			return
		}
	}
}

func TestNewerRevisionSupersedesARunningRollout(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }, labels("canary"))
	first := w.put(staged("shop", "1", canaryThenRest()))
	w.until("shop", first.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Progressing" })
	second := w.put(staged("shop", "2", canaryThenRest()))
	w.until("shop", second.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetNumber() == 2 && r.GetRevision() == 2 })
	got, err := w.Rollouts.ListRollouts(w.ctx, &towlinev1.ListRolloutsRequest{Module: "shop"})
	must(t, err)
	active := 0
	for _, r := range got.GetRollouts() {
		if s := r.GetStatus().GetState(); s != "Superseded" {
			active++
		} else if r.GetStatus().GetSupersededBy() != "shop/2" {
			t.Errorf("superseded by %q", r.GetStatus().GetSupersededBy())
		}
	}
	if active != 1 {
		t.Errorf("%d active rollouts: %v", active, got.GetRollouts())
	}
}

func TestRollbackByHandGoesToTheLastSucceededRevision(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	w.act(client.Word{Module: "shop", Verb: "rollback", Reason: "slow"})
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "RolledBack" })
	for c, r := range w.revisions("shop") {
		if r != 1 {
			t.Errorf("cluster %s runs r%d", c, r)
		}
	}
}

func TestRolledBackPlacementStaysInForce(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", failingAt(2), labels("canary"))
	w.join("b", nil, labels("rest"))
	w.await("base", w.put(module("base", map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: base, namespace: default}\n"})).GetRevision())
	w.await("shop", w.put(staged("shop", "1", canaryThenRest())).GetRevision())
	narrow := staged("shop", "2", canaryThenRest())
	narrow.Spec.Placement.Selector.MatchLabels = labels("canary")
	narrow.Spec.Rollout.Stages[1].AllowEmpty = true
	ro := w.await("shop", w.put(narrow).GetRevision())
	if ro.GetStatus().GetState() != "RolledBack" {
		t.Fatalf("rollout: %v", ro.GetStatus())
	}
	// Something that makes the hub look again: a cluster that comes late gets what is in force, and b keeps it.
	w.join("c", nil, labels("rest"))
	st, err := w.Modules.WatchModules(w.ctx, &towlinev1.WatchModulesRequest{Name: "shop"})
	must(t, err)
	for {
		_, err := st.Recv()
		must(t, err)
		r := w.revisions("shop")
		if _, there := r["b"]; !there {
			t.Fatalf("b lost the module: %v", r)
		}
		if r["c"] == 1 {
			return
		}
	}
}

// TestPausedRolloutGoesOnWhenTheFailedRecovers: nobody has to say so.
func TestPausedRolloutGoesOnWhenTheFailedRecovers(t *testing.T) {
	w := newWorld(t, true)
	var broken atomic.Bool
	broken.Store(true)
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		if broken.Load() {
			return simagent.Failing(s)
		}
		return simagent.Ready(s)
	}, labels("canary"))
	w.join("b", nil, nil)
	strategy := canaryThenRest()
	strategy.OnFailure = "Pause"
	put := w.put(staged("shop", "1", strategy))
	w.until("shop", put.GetRevision(), func(ro *towlinev1.Rollout) bool { return ro.GetStatus().GetState() == "Paused" })
	if tr := w.tracker("shop", "b"); tr != nil {
		t.Fatalf("moved while paused: %v", tr)
	}
	broken.Store(false)
	must(t, w.agents["a"].Again())
	if ro := w.await("shop", 0); ro.GetStatus().GetState() != "Succeeded" || ro.GetStatus().GetSucceeded() != 2 {
		t.Errorf("rollout: %v", ro.GetStatus())
	}
}

// TestRollbackToNoRevisionIsRefused: the error says which there are, and the module goes on as if nobody had asked.
func TestRollbackToNoRevisionIsRefused(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	for _, value := range []string{"1", "2"} {
		w.await("shop", w.put(module("shop", configMap(value))).GetRevision())
	}
	_, err := w.Steer(w.ctx, client.Word{Module: "shop", Verb: "rollback", Revision: 99})
	if err == nil || !strings.Contains(err.Error(), "module shop has no revision r99; there are r1, r2") {
		t.Errorf("rollback to r99: %v", err)
	}
	w.await("shop", w.put(module("shop", configMap("3"))).GetRevision())
	if got := w.revisions("shop")["a"]; got != 3 {
		t.Errorf("a has r%d, want r3", got)
	}
}

// TestDriftIsNoFailureOfARollout: what drifts, by policy or because two writers fight, is shown and counted.
func TestDriftIsNoFailureOfARollout(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		st.States[0].Sync, st.States[0].Drift = fleet.SyncOutOfSync, fleet.DriftDrifted
		return st
	}, nil)
	m := staged("shop", "1", &towlinev1.RolloutStrategy{ProgressDeadline: "2s"})
	ro := w.await("shop", w.put(m).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 {
		t.Errorf("rollout: %v", s)
	}
	if s := w.module("shop").GetStatus(); s.GetHealthy() != 1 || s.GetDrift() != 1 {
		t.Errorf("module: %v", s)
	}
	if tr := w.tracker("shop", "a"); tr.GetSync() != "OutOfSync" || !tr.GetReady() {
		t.Errorf("tracker: %v", tr)
	}
}
