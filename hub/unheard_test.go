package hub_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// restartAfter stops the hub, and starts it again after a moment of the clock. Until its grace is over, agents that were there
// count as if they were coming back.
func (w *world) restartAfter(at time.Time) {
	w.t.Helper()
	w.stopHub()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.ctx.Done():
		w.t.Fatal(w.ctx.Err())
	}
	w.grace = time.Minute
	w.start()
}

// A soak is for watching: one that went by while the hub was away has shown nothing. The next stage waits for the word of
// those that are to be watched, and if that is bad, nobody else moves.
func TestSoakIsNotOverBeforeItsClustersAreHeard(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", nil, labels("canary"))
	w.join("b", nil, labels("rest"))
	strategy := canaryThenRest()
	strategy.OnFailure, strategy.Stages[0].Soak = "Abort", "2s"
	put := w.put(staged("shop", "1", strategy))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetState() == "Waiting" && r.GetStatus().GetReason() == "Soak"
	})
	w.stops["a"]()
	w.restartAfter(time.Now().Add(2200 * time.Millisecond))
	w.awaitCluster("b", "Ready")
	w.until("shop", 0, func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetReason() != "Soak"
	})
	w.connect("a", simagent.Failing)
	s := w.await("shop", 0).GetStatus()
	if s.GetState() != "Aborted" || s.GetMoved() != 1 {
		t.Errorf("%s, %d moved: %s", s.GetState(), s.GetMoved(), s.GetFacts())
	}
	if n := len(w.agents["b"].Held().Syncs); n != 0 {
		t.Errorf("the cluster of the next stage has %d modules", n)
	}
}

// What a cluster has not said while the hub was away is not held against it.
func TestDeadlineDoesNotRunWhileTheHubIsAway(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		st.Phase, st.Ready = fleet.PhaseApplying, false
		return st
	}, nil)
	put := w.put(staged("shop", "1", &towlinev1.RolloutStrategy{ProgressDeadline: "2s", OnFailure: "Abort"}))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		c := r.GetStatus().GetClusters()
		return len(c) == 1 && c[0].GetState() == "Progressing"
	})
	began := time.Now()
	w.stops["a"]()
	w.restartAfter(began.Add(2200 * time.Millisecond))
	w.until("shop", 0, func(r *towlinev1.Rollout) bool {
		c := r.GetStatus().GetClusters()[0]
		return c.GetState() != "Progressing" || c.GetReason() == "NotHeard"
	})
	w.connect("a", nil)
	if s := w.await("shop", 0).GetStatus(); s.GetState() != "Succeeded" {
		t.Errorf("%s: %s", s.GetState(), s.GetFacts())
	}
}

// A cluster that is ready, and for which its module is made anew because its labels change, does not fail before it has answered,
// however long ago the deadline of its move was.
func TestDeadlineIsAnewWhenAModuleIsGivenAnew(t *testing.T) {
	w := newWorld(t, true)
	answer := make(chan struct{})
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		if s.Values["ZONE"] == "two" {
			<-answer
		}
		return simagent.Ready(s)
	}, map[string]string{"zone": "one"})
	m := module("shop", map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\ndata: {a: \"${ZONE}\"}\n"})
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
	m.Spec.Rollout = &towlinev1.RolloutStrategy{ProgressDeadline: "1s", MinReadyTime: "2s", OnFailure: "Abort"}
	put := w.put(m)
	began := time.Now()
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		c := r.GetStatus().GetClusters()
		return len(c) == 1 && c[0].GetState() == "Soaking"
	})
	w.eventually(func() bool { return time.Since(began) > 1200*time.Millisecond })
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
		Metadata: &towlinev1.Metadata{Name: "a", Labels: map[string]string{"zone": "two"}}}})
	must(t, err)
	w.until("shop", 0, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetClusters()[0].GetState() != "Soaking" })
	close(answer)
	if s := w.await("shop", 0).GetStatus(); s.GetState() != "Succeeded" {
		t.Errorf("%s: %s", s.GetState(), s.GetFacts())
	}
}

// Explain says what the leader waits for, in the moments after a start, too: an agent that is expected back is not away.
func TestExplainKnowsTheGraceAfterAStart(t *testing.T) {
	w := newWorld(t, false)
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		st.Phase, st.Ready = fleet.PhaseApplying, false
		return st
	}, nil)
	put := w.put(staged("shop", "1", &towlinev1.RolloutStrategy{Offline: "Wait"}))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		c := r.GetStatus().GetClusters()
		return len(c) == 1 && c[0].GetState() == "Progressing"
	})
	w.awaitTracker("shop", "a", "heard", func(tr *towlinev1.Tracker) bool { return tr.GetObservedGeneration() == tr.GetGeneration() })
	w.stops["a"]()
	w.restartAfter(time.Now())
	w.eventually(func() bool { // the leader has to look first at what the last one left
		got, err := w.Rollouts.ExplainRollout(w.ctx, &towlinev1.ExplainRolloutRequest{Module: "shop"})
		must(t, err)
		said := fmt.Sprint(got.GetReasons())
		return !strings.Contains(said, "Disconnected") && strings.Contains(said, "NotHeard")
	})
	if s := w.cluster("a").GetStatus(); s.GetState() != "Disconnected" || s.GetAttention().GetCode() != fleet.AttentionExpected || s.GetAttention().GetFacts().GetUntil() == nil {
		t.Errorf("the cluster is %s: %s", s.GetState(), s.GetAttention())
	}
}

// Nothing changes when the grace after a start ends, and yet who has not come back is away from then on.
func TestWhoDoesNotComeBackIsAwayWhenTheGraceEnds(t *testing.T) {
	w := newWorld(t, false)
	silent := func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }
	w.join("a", silent, nil)
	w.join("b", silent, nil)
	put := w.put(module("shop", configMap("1")))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "a b" })
	w.stopAll()
	w.grace = time.Second
	w.start()
	w.connect("b", nil)
	r := w.await("shop", 0)
	if s := r.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Errorf("%v", s)
	}
}
