package hub_test

import (
	"slices"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/testkit/simagent"
)

// TestHeldCanaryKeepsTheNextStage: a canary that is held before it is ready keeps the next stage; one that is ready, held as a whole and does
// well does not.
func TestHeldCanaryKeepsTheNextStage(t *testing.T) {
	w := newWorld(t, true)
	var works atomic.Bool
	answer := func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		if s.Hold {
			st.Phase, st.Ready = fleet.PhaseHeld, false
		}
		return st
	}
	w.join("c1", answer, labels("canary"))
	w.join("c2", func(s fleet.Sync) fleet.SyncStatus {
		st := answer(s)
		if s.Revision == 2 && !works.Load() {
			st.Ready = false
			for i := range st.States {
				st.States[i].Health = fleet.HealthProgressing
			}
			if !s.Hold {
				st.Phase = fleet.PhaseApplying
			}
		}
		return st
	}, labels("canary"))
	w.join("d1", answer, nil)
	w.await("shop", w.put(staged("shop", "1", canaryThenRest())).GetRevision())
	put := w.put(staged("shop", "2", canaryThenRest()))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetSucceeded() == 1 })
	looks, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop", Cluster: "c2", Reason: "a look"})
	must(t, err)
	s := w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetReason() == rollout.ReasonHeldUnready || r.GetStatus().GetEnded() != nil
	}).GetStatus()
	if s.GetState() != "Waiting" || !slices.Equal(s.GetFacts().GetClusters(), []string{"c2"}) || w.held("d1", "shop").Revision != 1 {
		t.Errorf("%s %s %v; d1 has r%d", s.GetState(), s.GetReason(), s.GetFacts(), w.held("d1", "shop").Revision)
	}
	_, err = w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop", Cluster: "c1"})
	must(t, err)
	w.awaitTracker("shop", "c1", "held", func(x *towlinev1.Tracker) bool { return x.GetSync() == string(fleet.SyncSynced) && !x.GetReady() })
	works.Store(true)
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: looks.GetHold().GetId()})
	must(t, err)
	if s := w.await("shop", put.GetRevision()).GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 3 || w.held("d1", "shop").Revision != 2 {
		t.Errorf("%v; d1 has r%d", s, w.held("d1", "shop").Revision)
	}
}

// TestHeldCanaryThatGoesAway keeps the next stage as it did: that its agent is away ends no hold of which it told.
func TestHeldCanaryThatGoesAway(t *testing.T) {
	w := newWorld(t, true)
	w.join("c1", simagent.Ready, labels("canary"))
	w.join("c2", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		if s.Module.Name == "shop" && s.Revision == 2 {
			st.Ready, st.Phase = false, fleet.PhaseApplying
			st.Holds = []fleet.ObjectHold{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "web"}, Version: "v1", Reason: "a look", By: "ana"}}
			for i := range st.States {
				st.States[i].Health = fleet.HealthProgressing
			}
		}
		return st
	}, labels("canary"))
	w.join("d1", simagent.Ready, nil)
	w.await("shop", w.put(staged("shop", "1", canaryThenRest())).GetRevision())
	put := w.put(staged("shop", "2", canaryThenRest()))
	waits := func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetReason() == rollout.ReasonHeldUnready || r.GetStatus().GetEnded() != nil
	}
	w.until("shop", put.GetRevision(), waits)
	w.stops["c2"]()
	w.awaitCluster("c2", "Disconnected")
	other := module("other", map[string]string{"b.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b, namespace: default}\n"})
	other.Spec.Placement = &towlinev1.Placement{Clusters: []string{"d1"}}
	w.await("other", w.put(other).GetRevision())
	if s := w.until("shop", put.GetRevision(), waits).GetStatus(); s.GetState() != "Waiting" || !slices.Equal(s.GetFacts().GetClusters(), []string{"c2"}) || w.held("d1", "shop").Revision != 1 {
		t.Errorf("%s %s %v; d1 has r%d", s.GetState(), s.GetReason(), s.GetFacts(), w.held("d1", "shop").Revision)
	}
}

// TestHeldCanaryThatIsTakenBack keeps the next stage: somebody holds its workload, and has the one of before back there, which does well. That
// says nothing of the revision.
func TestHeldCanaryThatIsTakenBack(t *testing.T) {
	w := newWorld(t, true)
	w.join("c1", simagent.Ready, labels("canary"))
	w.join("c2", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		if s.Module.Name == "shop" && s.Revision == 2 {
			st.Holds = []fleet.ObjectHold{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "web"}, Version: "v1", Reason: "a look", By: "ana"}}
			st.States[0].Drift = fleet.DriftHeld
			st.Exceptions = []fleet.ObjectException{{Ordinal: 0, Reason: fleet.ObjectDrifted, Message: "ConfigMap default/web: data.a was changed by ana; held as it is"}}
		}
		return st
	}, labels("canary"))
	w.join("d1", simagent.Ready, nil)
	w.await("shop", w.put(staged("shop", "1", canaryThenRest())).GetRevision())
	put := w.put(staged("shop", "2", canaryThenRest()))
	s := w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		return r.GetStatus().GetReason() == rollout.ReasonHeldUnready || r.GetStatus().GetEnded() != nil
	}).GetStatus()
	if s.GetState() != "Waiting" || !slices.Equal(s.GetFacts().GetClusters(), []string{"c2"}) || w.held("d1", "shop").Revision != 1 {
		t.Errorf("%s %s %v; d1 has r%d", s.GetState(), s.GetReason(), s.GetFacts(), w.held("d1", "shop").Revision)
	}
}

// heldWithR2 is a fleet in which one of two canaries, c2, is held and not ready with r2.
func heldWithR2(t *testing.T) *world {
	return heldWith(t, func(value string) *towlinev1.Module { return staged("shop", value, canaryThenRest()) })
}

// heldWith is heldWithR2 of a module that is made for each revision.
func heldWith(t *testing.T, shop func(value string) *towlinev1.Module) *world {
	w := newWorld(t, true)
	w.join("c1", simagent.Ready, labels("canary"))
	w.join("c2", func(s fleet.Sync) fleet.SyncStatus {
		st := simagent.Ready(s)
		if s.Module.Name == "shop" && (s.Revision == 2 || s.Hold) {
			st.Ready, st.Phase = false, fleet.PhaseApplying
			for i := range st.States {
				st.States[i].Health = fleet.HealthProgressing
			}
		}
		if s.Hold {
			st.Phase = fleet.PhaseHeld
			for i := range st.States {
				if s.Revision == 1 {
					st.States[i].Sync, st.States[i].Drift = fleet.SyncOutOfSync, fleet.DriftHeld
				}
			}
		}
		return st
	}, labels("canary"))
	w.join("d1", simagent.Ready, nil)
	w.await("shop", w.put(shop("1")).GetRevision())
	put := w.put(shop("2"))
	w.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetSucceeded() == 1 })
	_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop", Cluster: "c2", Reason: "a look"})
	must(t, err)
	w.until("shop", put.GetRevision(), heldOrOver)
	return w
}

// takenBackWhileHeld is the same when r2 was rolled back to r1.
func takenBackWhileHeld(t *testing.T) *world {
	w := heldWithR2(t)
	said := w.act(client.Word{Module: "shop", Verb: rollout.VerbRollback})
	w.until("shop", said.GetRevision(), func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == string(rollout.RolledBack) })
	return w
}

// heldOrOver reports that the rollout waits for what is held and not ready, or has ended.
func heldOrOver(r *towlinev1.Rollout) bool {
	return r.GetStatus().GetReason() == rollout.ReasonHeldUnready || r.GetStatus().GetEnded() != nil
}

// TestHeldCanaryOfARevisionThatIsTakenBack: the rollout is rolled back while a canary is held and not ready, and the same revision is started
// again: nothing was written there, so that it is looked at with the new revision still, and keeps the next stage.
func TestHeldCanaryOfARevisionThatIsTakenBack(t *testing.T) {
	w := takenBackWhileHeld(t)
	again := w.act(client.Word{Module: "shop", Verb: rollout.VerbRetry})
	r := w.until("shop", again.GetRevision(), heldOrOver)
	if s := r.GetStatus(); r.GetId() != "shop/3" || s.GetState() != "Waiting" || !slices.Equal(s.GetFacts().GetClusters(), []string{"c2"}) || w.held("d1", "shop").Revision != 1 {
		t.Errorf("%s %s %s %v; d1 has r%d", r.GetId(), s.GetState(), s.GetReason(), s.GetFacts(), w.held("d1", "shop").Revision)
	}
}

// TestHeldCanaryOfARevisionThatComesAgain: what a canary is held with, taken back or not, is put again after another revision, which passed the canary
// by: it has another number then, and is what somebody looks at in the canary.
func TestHeldCanaryOfARevisionThatComesAgain(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *world{"taken back": takenBackWhileHeld, "still assigned": heldWithR2} {
		t.Run(name, func(t *testing.T) {
			w := start(t)
			w.await("shop", w.put(staged("shop", "3", canaryThenRest())).GetRevision())
			if got := w.held("d1", "shop").Revision; got != 3 {
				t.Fatalf("d1 has r%d after another revision", got)
			}
			again := w.put(staged("shop", "2", canaryThenRest()))
			r := w.until("shop", again.GetRevision(), heldOrOver)
			if s := r.GetStatus(); r.GetId() != "shop/4" || s.GetState() != "Waiting" || !slices.Equal(s.GetFacts().GetClusters(), []string{"c2"}) || w.held("d1", "shop").Revision != 3 {
				t.Errorf("%s %s %s %v; d1 has r%d", r.GetId(), s.GetState(), s.GetReason(), s.GetFacts(), w.held("d1", "shop").Revision)
			}
		})
	}
}

// TestFixOfAHeldCanaryByItsValues: a revision that differs in a literal value only is another one: the canary that is held with the one of before never
// had it, and keeps nobody from it.
func TestFixOfAHeldCanaryByItsValues(t *testing.T) {
	w := heldWith(t, tagged)
	put := w.put(tagged("3"))
	if s := w.until("shop", put.GetRevision(), heldOrOver).GetStatus(); s.GetState() != "Succeeded" || w.held("d1", "shop").Revision != 3 {
		t.Errorf("%s %s %v; d1 has r%d", s.GetState(), s.GetReason(), s.GetFacts(), w.held("d1", "shop").Revision)
	}
}

// tagged is a module whose bundle is the same whatever the value.
func tagged(value string) *towlinev1.Module {
	m := staged("shop", "${TAG}", canaryThenRest())
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "TAG", Value: &value}}
	return m
}
