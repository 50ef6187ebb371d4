package hub_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
)

// onSupersede is a module whose strategy says what becomes of a change while its rollout runs.
func onSupersede(value, choice string) *towlinev1.Module {
	return staged("shop", value, &towlinev1.RolloutStrategy{OnSupersede: choice, Stages: []*towlinev1.Stage{{Name: "all"}}})
}

// TestQueuedChangesBeginWhenTheRunningRolloutHasEnded: of two that wait the newer one counts, whatever its own strategy
// says about those after it.
func TestQueuedChangesBeginWhenTheRunningRolloutHasEnded(t *testing.T) {
	w := newWorld(t, true)
	var done atomic.Bool
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		if s.Revision == 1 && !done.Load() {
			return fleet.SyncStatus{}
		}
		return simagent.Ready(s)
	}, nil)
	first := w.put(onSupersede("1", "Queue"))
	w.until("shop", first.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "a" })
	w.put(onSupersede("2", "Queue"))
	put := w.put(onSupersede("3", ""))
	waiting := w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetNumber() == 3 })
	if s := waiting.GetStatus(); s.GetState() != "Pending" || s.GetReason() != "Queued" || waiting.GetRevision() != 0 {
		t.Errorf("while shop/1 runs: %v", waiting)
	}
	done.Store(true)
	must(t, w.agents["a"].Again())
	if ro := w.await("shop", 0); ro.GetNumber() != 3 || ro.GetStatus().GetState() != "Succeeded" {
		t.Errorf("the newest: %v", ro)
	}
	got, err := w.Rollouts.ListRollouts(w.ctx, &towlinev1.ListRolloutsRequest{Module: "shop"})
	must(t, err)
	for i, want := range []string{"Succeeded", "Superseded", "Succeeded"} {
		if s := got.GetRollouts()[i].GetStatus().GetState(); s != want {
			t.Errorf("%s is %s, want %s", got.GetRollouts()[i].GetId(), s, want)
		}
	}
}

// TestQueueIsThatOfTheRunningRollout: a change that waits has no queue of its own, and ends none.
func TestQueueIsThatOfTheRunningRollout(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }, nil)
	first := w.put(onSupersede("1", "Queue"))
	w.until("shop", first.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "a" })
	for _, choice := range []string{"", "Queue", "Reject", ""} {
		put := w.put(onSupersede("after "+first.GetRollout(), choice))
		got, err := w.Rollouts.GetRollout(w.ctx, &towlinev1.GetRolloutRequest{Module: "shop", MinRevision: put.GetRevision()})
		must(t, err)
		if s := got.GetRollout().GetStatus(); s.GetState() != "Pending" || s.GetReason() != "Queued" || s.GetFacts().GetRollout() != "shop/1" {
			t.Errorf("while shop/1 runs, %s: %v", got.GetRollout().GetId(), s)
		}
		first = put
	}
}

// TestRunningRolloutRejectsChanges: its own strategy decides, not that of the change.
func TestRunningRolloutRejectsChanges(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }, nil)
	first := w.put(onSupersede("1", "Reject"))
	w.until("shop", first.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "a" })
	_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: onSupersede("2", "Replace")})
	if !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("a change while shop/1 runs: %v", err)
	}
	w.act(client.Word{Module: "shop", Verb: "abort"})
	if put := w.put(onSupersede("2", "Reject")); put.GetRollout() != "shop/2" {
		t.Errorf("after it was aborted: %v", put)
	}
}

// ending is the end of shop/1 in a story of pkg/rollout: its state, reason and facts.
func ending(t *testing.T, story string) (state, reason, facts string) {
	t.Helper()
	b, err := os.ReadFile("../pkg/rollout/testdata/" + story + ".txt")
	must(t, err)
	end := regexp.MustCompile(`(?m)  shop/1: \w+ → (\w+) \((\w+) ?(.*)\)$`).FindAllStringSubmatch(string(b), -1)
	if len(end) != 1 {
		t.Fatalf("%s: %d ends, want one", story, len(end))
	}
	return end[0][1], end[0][2], end[0][3]
}

// factsText is what a story prints of facts.
func factsText(f *towlinev1.Facts) string {
	return (&rollout.Facts{Rollout: f.GetRollout(), Detail: f.GetDetail()}).String()
}

// TestWhatHappensToTheModuleEndsItsRollout: the stories of pkg/rollout, on the path of production, with the ends that they
// tell; what lists say, what the rollout's tree says and what explain says is one thing.
func TestWhatHappensToTheModuleEndsItsRollout(t *testing.T) {
	begin := func(w *world) {
		first := w.put(onSupersede("1", ""))
		w.until("shop", first.GetRevision(), func(r *towlinev1.Rollout) bool { return running(r) == "a" })
	}
	for _, tc := range []struct {
		story   string
		happens func(w *world)
	}{
		{"86-superseded", func(w *world) {
			begin(w)
			w.until("shop", w.put(onSupersede("2", "")).GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetRevision() == 2 })
		}},
		{"89-module-deleted", func(w *world) {
			begin(w)
			_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
			must(w.t, err)
		}},
		{"112-source-failed", func(w *world) {
			srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("kind: ConfigMap\n")) }))
			w.t.Cleanup(srv.Close)
			bad := module("shop", nil)
			bad.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/a.yaml"}}
			w.put(bad)
		}},
	} {
		t.Run(tc.story, func(t *testing.T) {
			state, reason, facts := ending(t, tc.story)
			w := newWorld(t, true)
			silent := func(fleet.Sync) fleet.SyncStatus { return fleet.SyncStatus{} }
			w.enroll("a", nil)
			w.connectWith("a", simagent.Options{Report: silent, Remove: func(fleet.Tombstone) fleet.SyncStatus { return fleet.SyncStatus{} }})
			tc.happens(w)
			one := &towlinev1.ExplainRolloutRequest{Module: "shop", Number: 1}
			w.eventually(func() bool {
				got, err := w.Rollouts.ExplainRollout(w.ctx, one)
				return err == nil && got.GetRollout().GetStatus().GetState() == state
			})
			got, err := w.Rollouts.ExplainRollout(w.ctx, one)
			must(t, err)
			s := got.GetRollout().GetStatus()
			if s.GetReason() != reason || factsText(s.GetFacts()) != facts || s.GetEnded() == nil || s.GetCurrentStage() != nil {
				t.Errorf("the rollout says %v", s)
			}
			for _, r := range got.GetReasons() {
				if r.GetReason() != reason {
					t.Errorf("explain goes on to say %s: %s", r.GetReason(), r.GetFacts())
				}
			}
			for _, stage := range s.GetStages() {
				if stage.GetState() != state && stage.GetState() != "Pending" { // nothing failed in one that was under way
					t.Errorf("stage %s is %s", stage.GetName(), stage.GetState())
				}
			}
			list, err := w.Rollouts.ListRollouts(w.ctx, &towlinev1.ListRolloutsRequest{Module: "shop"})
			must(t, err)
			for _, r := range list.GetRollouts() {
				if r.GetNumber() == 1 && (r.GetStatus().GetState() != state || factsText(r.GetStatus().GetFacts()) != facts) {
					t.Errorf("the list says %v", r.GetStatus())
				}
			}
		})
	}
}
