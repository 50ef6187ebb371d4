package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
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
