package hub_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/client"
)

// pushed is the signed call of a server for module shop.
func (w *world) pushed(hooks string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.ctx, http.MethodPost, "https://"+hooks+"/hooks/default/shop", strings.NewReader("{}"))
	must(w.t, err)
	req.Header.Set("X-Gitlab-Token", "of the repository")
	caller := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer caller.CloseIdleConnections()
	resp, err := caller.Do(req)
	must(w.t, err)
	must(w.t, resp.Body.Close())
}

// TestPushEndsNoPauseOfAPerson: a person paused the rollout of a module that follows its source, for an incident; somebody pushes. Only a
// person ends a person's pause (docs/rollouts.md): no cluster moves.
func TestPushEndsNoPauseOfAPerson(t *testing.T) {
	hooks, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Hooks = true, hooks })
	w.join("a", nil, nil)
	_, err = w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "webhook", Values: map[string][]byte{"webhook": []byte("of the repository")}})
	must(t, err)
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", deployed(configMap("1")))
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	m := following("shop", srv.URL)
	m.Spec.Source.Follow.Webhook = true
	m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", Soak: "1h"}}}
	w.put(m)
	w.awaitTracker("shop", "a", "ready", ready)
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Soak" })
	w.act(client.Word{Module: "shop", Verb: "pause", Reason: "incident 812"})
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Paused" })
	second := repo.Branch("main", deployed(configMap("2")))
	w.pushed(hooks.Addr().String())
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetFollow().GetResolvedRef() == "main@sha1:"+second })
	if s.GetRollout() != "shop/1" || s.GetRolloutState() != "Paused" {
		t.Errorf("a push began %s, which is %s, while a person's pause holds", s.GetRollout(), s.GetRolloutState())
		w.awaitTracker("shop", "a", "moved", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
		t.Error("and moved the cluster to r2")
	}
}

// TestFollowRunsNothingButThePlan: a put that is bound to a plan failed, because its source is another one than what somebody looked at. As a
// retry does not (TestRetryIsOfThePlan), the next look of follow does not run what nobody has looked at.
func TestFollowRunsNothingButThePlan(t *testing.T) {
	hooks, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Hooks = true, hooks })
	w.joinAnswering("a", unchanged, nil)
	_, err = w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "webhook", Values: map[string][]byte{"webhook": []byte("of the repository")}})
	must(t, err)
	var fetched atomic.Int32
	m := servedModule(t, func() string {
		if fetched.Add(1) <= 2 { // of the diff, and of the look before the put
			return "1"
		}
		return "2"
	})
	m.Spec.Source.Follow = &towlinev1.Follow{Webhook: true}
	plan, _ := w.diff(m)
	ro := w.await("shop", w.putPlan(m, plan.GetDigest()).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Failed" || s.GetReason() != "SourceFailed" {
		t.Fatalf("rollout: %v", s)
	}
	w.pushed(hooks.Addr().String())
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetFollow().GetLooked() != nil || s.GetRollout() != "shop/1"
	})
	if s.GetRollout() != "shop/1" {
		ro := w.await("shop", 0)
		t.Errorf("%s was begun by %s without the plan, and is %s", ro.GetId(), ro.GetStatus().GetStartedBy(), ro.GetStatus().GetState())
	}
}

// TestQueuedRolloutTakesWhatIsThereWhenItsTurnComes: a push is queued behind the rollout that runs, and mended by another push before its turn
// comes. What was mended is rolled out, as docs/sources.md says, and not what was there when it was queued.
func TestQueuedRolloutTakesWhatIsThereWhenItsTurnComes(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", deployed(configMap("1")))
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	w.put(queueing(following("shop", srv.URL)))
	w.awaitTracker("shop", "a", "ready", ready)
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetReason() == "Approval" })
	broken := repo.Branch("main", deployed(configMap("broken")))
	came, err := w.resync("shop")
	must(t, err)
	if came.GetRollout() != "shop/2" || came.GetResolvedRef() != "main@sha1:"+broken {
		t.Fatalf("pushed: %v", came)
	}
	mended := repo.Branch("main", deployed(configMap("mended")))
	user, err := w.Identity.CreateUser(w.ctx, &towlinev1.CreateUserRequest{Name: "maria", Role: "admin"})
	must(t, err)
	_, err = w.as(user.GetToken()).Steer(w.ctx, client.Word{Module: "shop", Number: 1, Verb: "approve"})
	must(t, err)
	w.awaitTracker("shop", "a", "at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
	if rev := w.revision("shop", 2); rev.GetResolvedRef() != "main@sha1:"+mended {
		t.Errorf("rolled out %s; broken is %s, mended is %s", rev.GetResolvedRef(), broken, mended)
	}
}

// TestQueuedPushBringsNothingBackThatWasRolledBack: a push is rolled out and bad, a second one waits behind it and is reverted, so that the
// source has the first again; a person rolls that back. What was rolled back is not rolled out again by itself, for as long as the source
// renders to that (docs/sources.md), nor by the rollout that waited.
func TestQueuedPushBringsNothingBackThatWasRolledBack(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, nil)
	repo := sourcetest.NewRepo(t)
	repo.Branch("main", deployed(configMap("1")))
	srv := httptest.NewServer(repo.Handler())
	t.Cleanup(srv.Close)
	m := following("shop", srv.URL)
	w.await("shop", w.put(m).GetRevision())
	m.Spec.Rollout = &towlinev1.RolloutStrategy{OnSupersede: "Queue", Stages: []*towlinev1.Stage{{Name: "all", Soak: "1h"}}}
	w.put(m)
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetNumber() == 2 && r.GetStatus().GetReason() == "Soak" })
	w.act(client.Word{Module: "shop", Verb: "promote", Stage: "all"})
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetSucceededRevision() == 2 })
	begins := func(text, rollout string) {
		repo.Branch("main", deployed(configMap(text)))
		if came, err := w.resync("shop"); err != nil || came.GetRollout() != rollout {
			t.Fatalf("%s: %v, %v", text, came, err)
		}
	}
	begins("bad", "shop/3")
	w.awaitTracker("shop", "a", "at r3", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 3 && tr.GetReady() })
	begins("a mend that is none", "shop/4")
	repo.Branch("main", deployed(configMap("bad")))
	w.restart() // what was rendered ahead is not the point here
	w.awaitCluster("a", "Ready")
	w.act(client.Word{Module: "shop", Number: 3, Verb: "rollback", Reason: "bad"})
	s := w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetRollout() == "shop/4" && s.GetRolloutState() != "Pending"
	})
	back, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop", Number: 3})
	must(t, err)
	if state := back.GetRollout().GetStatus().GetState(); state != "RolledBack" {
		t.Errorf("shop/3 is %s", state)
	}
	if s.GetRolloutState() != "Failed" || s.GetFollow().GetSuspendedRevision() != 3 {
		t.Errorf("what a person rolled back came again by itself: %s is %s, suspended is r%d", s.GetRollout(), s.GetRolloutState(), s.GetFollow().GetSuspendedRevision())
	}
	w.awaitTracker("shop", "a", "back at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
}
