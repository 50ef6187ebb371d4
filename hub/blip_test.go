package hub_test

import (
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// applying reports that a cluster is on its way.
func applying(s fleet.Sync) fleet.SyncStatus {
	st := simagent.Ready(s)
	st.Phase, st.Ready = fleet.PhaseApplying, false
	return st
}

// Sessions break for a moment whenever the network between hub and clusters does, a load balancer or the agents are started anew. Who
// was there a moment ago is expected back, and is not passed over: the rollout does not end without most of its clusters, to give
// them its revision afterwards, when nothing that fails stops it any more.
func TestSessionsThatBreakForAMomentEndNoRollout(t *testing.T) {
	began := time.Now()
	const grace = 2 * time.Second
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Grace = true, grace })
	w.join("canary", nil, labels("canary"))
	w.join("a", applying, labels("rest"))
	w.join("b", applying, labels("rest"))
	w.eventually(func() bool { return time.Since(began) > grace })
	strategy := canaryThenRest()
	strategy.OnFailure, strategy.Stages[1].MaxConcurrency = "Pause", "1"
	put := w.put(staged("shop", "1", strategy))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "a" })
	w.stops["a"]()
	w.stops["b"]()
	w.awaitCluster("a", "Disconnected")
	w.awaitCluster("b", "Disconnected")
	w.connect("a", simagent.Failing)
	w.connect("b", simagent.Failing)
	s := w.until("shop", 0, func(r *towlinev1.Rollout) bool {
		state := r.GetStatus().GetState()
		return state == "Paused" || state == "Succeeded"
	}).GetStatus()
	if s.GetState() != "Paused" || s.GetMoved() != 2 {
		t.Errorf("%s, %d moved, %d deferred: %s", s.GetState(), s.GetMoved(), s.GetDeferred(), s.GetFacts())
	}
}

// Nothing changes when an agent is not expected back any more, and yet its cluster is away from then on.
func TestWhoDoesNotComeBackIsAwayAfterAWhile(t *testing.T) {
	began := time.Now()
	const grace = 500 * time.Millisecond
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Grace = true, grace })
	w.join("a", nil, nil)
	w.join("b", func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }, nil)
	w.eventually(func() bool { return time.Since(began) > grace })
	put := w.put(module("shop", configMap("1")))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "b" })
	w.stops["b"]()
	w.until("shop", 0, func(r *towlinev1.Rollout) bool {
		for _, c := range r.GetStatus().GetClusters() {
			if c.GetCluster() == "b" && c.GetReason() == "NotHeard" {
				return true
			}
		}
		return false
	})
	if s := w.await("shop", 0).GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Errorf("%s, %d succeeded, %d deferred", s.GetState(), s.GetSucceeded(), s.GetDeferred())
	}
}

// An agent that has tried in vain for minutes, while the hub was down, tries again within its longest wait. A hub that has just started
// does not call it away before that, nor before it has had the time to say how it stands.
func TestHubWaitsLongerThanAgentsDo(t *testing.T) {
	if least := fleet.MaxReconnect + 10*time.Second; hub.DefaultGrace < least {
		t.Errorf("a hub waits %s for agents that try every %s", hub.DefaultGrace, fleet.MaxReconnect)
	}
}

// An agent whose sessions break again and again before it says anything is not expected back for ever: it is away as one that never
// comes back.
func TestSessionsThatBreakAgainAndAgainHoldNoRollout(t *testing.T) {
	began := time.Now()
	const grace = 1500 * time.Millisecond
	w := newWorldWith(t, func(o *hub.Options) { o.Memory, o.Grace = true, grace })
	w.join("a", nil, nil)
	w.join("b", applying, nil)
	w.eventually(func() bool { return time.Since(began) > grace })
	put := w.put(module("shop", configMap("1")))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "b" })
	lost := time.Now()
	var s *towlinev1.RolloutStatus
	for s.GetState() != "Succeeded" {
		if time.Since(lost) > 5*grace {
			t.Fatalf("%s: %v", s.GetState(), s.GetClusters())
		}
		w.stops["b"]()
		w.awaitCluster("b", "Disconnected")
		got, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop"})
		must(t, err)
		s = got.GetRollout().GetStatus()
		w.reconnect("b")
	}
}
