package hub_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
)

// TestLastModuleWaitsForTheSourceOfTheNext: one module takes the place of another, and its source is slow. The old one leaves the
// cluster without a question when the new one is known to come, and by a person's word if it does not.
func TestLastModuleWaitsForTheSourceOfTheNext(t *testing.T) {
	for name, comes := range map[string]bool{"it comes": true, "it fails": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.join("a", nil, nil)
			w.join("b", nil, nil)
			answer := make(chan struct{})
			source := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
				<-answer
				if !comes {
					http.Error(rw, "no", http.StatusNotFound)
					return
				}
				_, _ = rw.Write([]byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: default}\n"))
			}))
			t.Cleanup(source.Close)
			w.await("old", w.put(listing("old", "o")).GetRevision())
			next := listing("next")
			next.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: source.URL + "/all.yaml"}}
			next.Spec.Placement = &towlinev1.Placement{Clusters: []string{"b"}}
			w.put(next)
			old := listing("old", "o")
			old.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a"}}
			w.put(old)
			w.until("old", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "AwaitingSource" })
			if w.held("b", "old").Revision == 0 {
				t.Error("it left before anybody knew whether something else comes")
			}
			close(answer)
			if comes {
				w.await("next", 1)
				w.await("old", 2)
				w.eventually(func() bool { return w.held("b", "old").Revision == 0 && w.held("b", "next").Revision == 1 })
				return
			}
			w.until("old", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Confirm" })
			if w.held("b", "old").Revision == 0 {
				t.Error("it left though nothing else comes")
			}
		})
	}
}

// TestModuleBecomesTheLastOneWhileItsRolloutWaits: a module is to leave a cluster when its rollout has been approved, and until then
// the other one that is there goes, or its own rollout, which was to bring it there, is aborted. A person is asked before nothing
// is left.
func TestModuleBecomesTheLastOneWhileItsRolloutWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		base  func(w *world)
		loses func(w *world)
	}{
		"the other one is deleted": {
			func(w *world) { w.await("base", w.put(listing("base", "b")).GetRevision()) },
			func(w *world) {
				w.delete("base", false)
				w.eventually(func() bool {
					_, err := w.Modules.GetModule(w.ctx, &towlinev1.GetModuleRequest{Name: "base"})
					return err != nil
				})
			}},
		"the other one never comes": {
			func(w *world) {
				base := listing("base", "b")
				base.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", Before: []*towlinev1.Gate{{
					Window: &towlinev1.WindowGate{Deny: []*towlinev1.Window{{Cron: "* * * * *", Duration: "2m"}}}}}}}}
				w.put(base)
				w.until("base", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Window" })
			},
			func(w *world) { w.act(client.Word{Module: "base", Verb: "abort"}) }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			for _, c := range []string{"a", "b", "c"} {
				w.join(c, nil, nil)
			}
			tc.base(w)
			w.await("shop", w.put(listing("shop", "s")).GetRevision())
			shop := listing("shop", "s")
			shop.Spec.Placement, shop.Spec.Rollout = &towlinev1.Placement{Clusters: []string{"a", "b"}}, approved()
			put := w.put(shop)
			w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
			tc.loses(w)
			user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "maria", Role: "admin"})
			must(t, err)
			_, err = w.as(user.GetToken()).Steer(w.ctx, client.Word{Module: "shop", Verb: "approve", Stage: "all"})
			must(t, err)
			w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
				return r.GetStatus().GetReason() == "Confirm" || r.GetStatus().GetEnded() != nil
			})
			if w.held("c", "shop").Revision == 0 {
				t.Error("it left, and nothing is left in c")
			}
		})
	}
}

// TestModuleThatWaitsForAnApprovalIsNotToCome: the last module is to leave a cluster, to which another one comes if somebody approves it.
// A person is asked before nothing is left.
func TestModuleThatWaitsForAnApprovalIsNotToCome(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b", "c"} {
		w.join(c, nil, nil)
	}
	w.await("shop", w.put(listing("shop", "s")).GetRevision())
	base := listing("base", "b")
	base.Spec.Rollout = approved()
	w.put(base)
	w.until("base", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	shop := listing("shop", "s")
	shop.Spec.Placement = &towlinev1.Placement{Clusters: []string{"a", "b"}}
	put := w.put(shop)
	r := w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetReason() == "Confirm" || r.GetStatus().GetEnded() != nil
	})
	if w.held("c", "shop").Revision == 0 {
		t.Errorf("%s: it left before anybody had approved what comes", r.GetStatus().GetState())
	}
}

// approved is a strategy by which nothing moves before somebody else has approved it.
func approved() *towlinev1.RolloutStrategy {
	return &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", Before: []*towlinev1.Gate{{Approval: &towlinev1.ApprovalGate{Approvers: 1}}}}}}
}
