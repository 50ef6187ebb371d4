package hub_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestWhereARolloutStandsIsData: the state is one word, and the stage, how far it is and who rolled back are fields beside
// it, of which a client makes its own sentence.
func TestWhereARolloutStandsIsData(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, labels("canary"))
	w.join("b", nil, labels("rest"))
	w.await("shop", w.put(staged("shop", "1", canaryThenRest())).GetRevision())
	if s := w.module("shop").GetStatus(); s.GetRolloutState() != "Succeeded" || s.GetRolloutStage() != nil || s.GetRolledBackBy() != "" {
		t.Errorf("after its end: %v", s)
	}
	put := w.put(staged("shop", "2", canaryThenRest(&towlinev1.Gate{Approval: &towlinev1.ApprovalGate{}})))
	waiting := w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	for name, at := range map[string]*towlinev1.StagePosition{"rollout": waiting.GetStatus().GetCurrentStage(), "module": w.module("shop").GetStatus().GetRolloutStage()} {
		if at.GetStage() != "canary" || at.GetSucceeded() != 1 || at.GetTotal() != 1 {
			t.Errorf("%s: %v", name, at)
		}
	}
	if s := w.module("shop").GetStatus(); s.GetRolloutState() != "Waiting" {
		t.Errorf("while it waits: %v", s)
	}
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "maria", Role: "admin"})
	must(t, err)
	maria := w.as(user.GetToken())
	_, err = maria.Steer(w.ctx, client.Word{Module: "shop", Verb: "rollback", Reason: "bad"})
	must(t, err)
	if s := w.await("shop", 0).GetStatus(); s.GetState() != "RolledBack" || s.GetRolledBackBy() != "maria" {
		t.Errorf("rollout: %v", s)
	}
	if s := w.module("shop").GetStatus(); s.GetRolloutState() != "RolledBack" || !s.GetRolledBack() || s.GetRolledBackBy() != "maria" {
		t.Errorf("module: %v", s)
	}
}

// TestModuleStaysRolledBackWhenAPutFails: a put whose source fails ends no rollback, so that the module still is where it went back
// to, with all of its clusters.
func TestModuleStaysRolledBackWhenAPutFails(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	w.act(client.Word{Module: "shop", Verb: "rollback", Reason: "bad"})
	w.await("shop", 0)
	nowhere := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(nowhere.Close)
	bad := module("shop", nil)
	bad.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: nowhere.URL + "/a.yaml"}}
	if ro := w.await("shop", w.put(bad).GetRevision()); ro.GetStatus().GetState() != "Failed" {
		t.Fatalf("the put: %v", ro)
	}
	if s := w.module("shop").GetStatus(); !s.GetRolledBack() || s.GetSucceededRevision() != 1 || s.GetRevision() != 2 || s.GetUpdated() != 1 {
		t.Errorf("shop: %v, want it at r1, where all of its clusters are", s)
	}
	if put := w.put(module("shop", configMap("3"))); w.await("shop", put.GetRevision()).GetStatus().GetState() != "Succeeded" || w.module("shop").GetStatus().GetRolledBack() {
		t.Errorf("after another put: %v", w.module("shop").GetStatus())
	}
}

// TestModuleIsNotRolledBackWhereOthersKeepTheRevision: after a rollback in which only those that failed went back, the module is on its way
// between both revisions, and a put of the same says where it stays.
func TestModuleIsNotRolledBackWhereOthersKeepTheRevision(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.enroll("b", nil)
	w.connectWith("b", simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus {
		if s.Revision == 2 {
			return simagent.Failing(s)
		}
		return simagent.Ready(s)
	}})
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	next := module("shop", configMap("2"))
	next.Spec.Rollout = &towlinev1.RolloutStrategy{OnFailure: "Rollback", Rollback: &towlinev1.RollbackStrategy{Scope: "Failed"}}
	if r := w.await("shop", w.put(next).GetRevision()); r.GetStatus().GetState() != "RolledBack" {
		t.Fatal(r)
	}
	if s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 2 }); s.GetRolledBack() || s.GetRevision() != 2 || s.GetUpdated() != 1 {
		t.Errorf("one of two has r2: %v", s)
	}
	again := w.put(next)
	at := slices.IndexFunc(again.GetWarnings(), func(n *towlinev1.Note) bool { return n.GetCode() == fleet.WarnStaysBack })
	if at < 0 || again.GetWarnings()[at].GetFacts().GetCode() != "Failed" || again.GetWarnings()[at].GetFacts().GetRevision() != 1 {
		t.Errorf("put again: %v", again)
	}
}
