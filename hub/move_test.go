package hub_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// rollsBack has the first failure of a module's rollout send it back, so that a rollout which succeeds never had one.
func rollsBack(m *towlinev1.Module) *towlinev1.Module {
	m.Spec.Rollout = &towlinev1.RolloutStrategy{OnFailure: "Rollback"}
	return m
}

// awaits waits until a module waits for what another one owns, and checks that everything says so and nothing calls it failed.
func (w *world) awaits(name, cluster, owner string) {
	w.t.Helper()
	var tr *towlinev1.Tracker
	var status *towlinev1.ModuleStatus
	var objects []*towlinev1.Object
	w.eventually(func() bool { // an agent that has just come back has not said yet how it stands
		tr = w.awaitTracker(name, cluster, "waiting for "+owner, func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "AwaitingOwner" })
		status, objects = w.module(name).GetStatus(), w.objects(&towlinev1.ObjectFilter{Module: name, Cluster: cluster})
		return (status.GetProgressing() == 1 || status.GetBad() > 0) &&
			!slices.ContainsFunc(objects, func(o *towlinev1.Object) bool { return o.GetHealth() == "Unknown" })
	})
	if tr.GetReady() || tr.GetHealth() != "Progressing" || !strings.Contains(tr.GetMessage(), "waits for module "+owner) {
		w.t.Errorf("%s in %s: %v", name, cluster, tr)
	}
	if status.GetBad() != 0 {
		w.t.Errorf("%s counts as failed: %v", name, status)
	}
	for _, o := range objects {
		if o.GetObject().GetName() == "m" && (o.GetReason() != "AwaitingOwner" || o.GetHealth() != "Progressing" || o.GetDrift() != "InSync") {
			w.t.Errorf("the object: %v", o)
		}
	}
	w.eventually(func() bool { // the rollout may not have heard what the cluster says
		why, err := w.Rollouts.ExplainRollout(w.ctx, &towlinev1.ExplainRolloutRequest{Module: name})
		must(w.t, err)
		return strings.Contains(why.String(), "waits for module "+owner)
	})
}

// succeeds waits for the end of a module's newest rollout.
func (w *world) succeeds(name string, revision int64) {
	w.t.Helper()
	if r := w.await(name, revision); r.GetStatus().GetState() != "Succeeded" || r.GetRevision() != revision {
		w.t.Errorf("%s: %v", name, r)
	}
}

// newMove is a world in which one has m, and two is there without it.
func newMove(t *testing.T) *world {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	w.await("one", w.put(listing("one", "a", "m")).GetRevision())
	w.await("two", w.put(listing("two", "b")).GetRevision())
	return w
}

// TestMoveIsNoFailure: whichever of two modules is first, the one that takes an object waits for the one that is about to let it
// go, and its rollout succeeds.
func TestMoveIsNoFailure(t *testing.T) {
	for name, letGo := range map[string]struct {
		first func(*world) // the owner is about to let m go
		then  func(*world) // and does
	}{
		"its rollout waits": {
			func(w *world) { w.put(waiting(listing("one", "a"))) },
			func(w *world) { w.put(listing("one", "a")) },
		},
		"its rollout is paused by a person": {
			func(w *world) {
				w.put(waiting(listing("one", "a")))
				w.until("one", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
				w.act(client.Word{Module: "one", Verb: "pause", Reason: "lunch"})
			},
			func(w *world) { w.put(listing("one", "a")) },
		},
		"it leaves the cluster": {
			func(w *world) {
				m := waiting(listing("one", "a", "m"))
				m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"other"}}
				w.put(m)
			},
			func(w *world) { w.put(listing("one", "a")) },
		},
		"it is deleted, in a hold": {
			func(w *world) {
				_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "one"})
				must(w.t, err)
				_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "one"})
				must(w.t, err)
			},
			func(w *world) {
				holds, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
				must(w.t, err)
				_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: holds.GetHolds()[0].GetId()})
				must(w.t, err)
			},
		},
		"another program assigns it": {
			func(w *world) {
				m := listing("one", "a")
				m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
				w.put(m)
			},
			func(w *world) {
				_, err := w.Assignments.PutAssignments(w.ctx, &towlinev1.PutAssignmentsRequest{Module: "one", Revision: 2, Clusters: []string{"c"}})
				must(w.t, err)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newMove(t)
			letGo.first(w)
			w.put(rollsBack(listing("two", "b", "m")))
			w.awaits("two", "c", "one")
			letGo.then(w)
			w.succeeds("two", 2)
			w.awaitTracker("two", "c", "ready", ready)
		})
	}
}

// TestMoveInOneApply: the modules of one batch are put one after the other, and the one that takes an object may be the first of
// them, or new.
func TestMoveInOneApply(t *testing.T) {
	for _, order := range []string{"one two", "two one", "one new", "new one"} {
		t.Run(order, func(t *testing.T) {
			w := newMove(t)
			put := func(m *towlinev1.Module, more bool) {
				_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, Batch: "x", More: more})
				must(t, err)
			}
			names := strings.Fields(order)
			for i, name := range names {
				m := map[string]*towlinev1.Module{"one": listing("one", "a"), "two": rollsBack(listing("two", "b", "m")), "new": listing("new", "m")}[name]
				put(m, i == 0)
				if name == "new" && i == 0 {
					w.awaits("new", "c", "one") // it is there before the owner is put
				}
			}
			for _, name := range names {
				w.succeeds(name, map[string]int64{"one": 2, "two": 2, "new": 1}[name])
			}
		})
	}
}

// TestOwnerThatKeepsWhatItHas: who waits for an owner that is not going to let the object go after all is in conflict, from the
// moment at which that is known.
func TestOwnerThatKeepsWhatItHas(t *testing.T) {
	for name, keep := range map[string]func(*world){
		"its rollout is aborted": func(w *world) { w.act(client.Word{Module: "one", Verb: "abort"}) },
		"it is rolled back": func(w *world) {
			w.act(client.Word{Module: "one", Verb: "rollback", Revision: 1, Reason: "no"})
		},
		"its cluster is pinned": func(w *world) {
			w.act(client.Word{Module: "one", Verb: "pin", Clusters: []string{"c"}, Reason: "no"})
		},
		"it lists it again": func(w *world) { w.put(waiting(listing("one", "a", "a2", "m"))) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newMove(t)
			w.put(waiting(listing("one", "a")))
			w.put(listing("two", "b", "m"))
			w.awaits("two", "c", "one")
			keep(w)
			w.conflicted("two", "c", "one")
		})
	}
}

// TestOwnerThatStaysBehind: after a rollback of only those that failed, or to an older revision than the one before, clusters keep
// what is newer. Who wants something of that is in conflict.
func TestOwnerThatStaysBehind(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	w.enroll("d", nil)
	w.connectWith("d", simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus {
		if s.Module.Name == "one" && s.Revision == 2 {
			return simagent.Failing(s)
		}
		return simagent.Ready(s)
	}})
	w.await("one", w.put(listing("one", "a")).GetRevision())
	w.await("two", w.put(listing("two", "b")).GetRevision())
	one := listing("one", "a", "m")
	one.Spec.Rollout = &towlinev1.RolloutStrategy{OnFailure: "Rollback", Rollback: &towlinev1.RollbackStrategy{Scope: "Failed"}}
	w.put(one)
	if r := w.await("one", 2); r.GetStatus().GetState() != "RolledBack" || w.held("c", "one").Revision != 2 {
		t.Fatalf("%v; c has r%d", r, w.held("c", "one").Revision)
	}
	w.put(listing("two", "b", "m"))
	w.conflicted("two", "c", "one")
	w.awaitTracker("two", "d", "ready", ready)
}

// TestMoveFromAnOwnerThatNeverComes: the deadline of the rollout ends the wait.
func TestMoveFromAnOwnerThatNeverComes(t *testing.T) {
	w := newMove(t)
	w.put(waiting(listing("one", "a")))
	two := rollsBack(listing("two", "b", "m"))
	two.Spec.Rollout.ProgressDeadline = "1s"
	w.put(two)
	w.awaits("two", "c", "one")
	if r := w.await("two", 2); r.GetStatus().GetState() != "RolledBack" {
		t.Errorf("%v", r)
	}
}

// TestOwnerIsBeingMade: while the source of the owner's next revision is being fetched it is not known whether that lists the
// object. It is a conflict as soon as it is known that it does.
func TestOwnerIsBeingMade(t *testing.T) {
	w := newMove(t)
	answer := make(chan struct{})
	source := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		<-answer
		http.Error(rw, "no", http.StatusNotFound)
	}))
	t.Cleanup(source.Close)
	one := listing("one")
	one.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: source.URL + "/a.tar.gz"}}
	w.put(one)
	w.put(listing("two", "b", "m"))
	w.awaits("two", "c", "one")
	close(answer) // there is no such revision: one goes on as it is
	w.conflicted("two", "c", "one")
}

// TestWaitOutlivesTheHub: a hub that starts looks again at who waits for whom.
func TestWaitOutlivesTheHub(t *testing.T) {
	w := newWorld(t, false)
	w.grace = time.Minute // the cluster is not away in between
	w.join("c", nil, nil)
	w.await("one", w.put(listing("one", "a", "m")).GetRevision())
	w.await("two", w.put(listing("two", "b")).GetRevision())
	w.put(waiting(listing("one", "a")))
	w.put(listing("two", "b", "m"))
	w.awaits("two", "c", "one")
	w.restart()
	w.awaits("two", "c", "one")
	if y := w.held("c", "two").Yields; len(y) != 1 || len(y[0].Ending) != 1 || y[0].Owner != (fleet.ModuleRef{Project: "default", Name: "one"}) {
		t.Errorf("the agent is told %+v", y)
	}
	w.act(client.Word{Module: "one", Verb: "abort"})
	w.conflicted("two", "c", "one")
}

// TestOwnerWithAQueue: whether an owner is about to let an object go is known of what is queued behind its rollout, too.
func TestOwnerWithAQueue(t *testing.T) {
	w := newMove(t)
	w.put(queueing(listing("one", "a", "a2", "m")))
	w.awaitTracker("one", "c", "at r2", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
	w.queued(queueing(listing("one", "a")))
	w.put(listing("two", "b", "m"))
	w.awaits("two", "c", "one")
	w.queued(queueing(listing("one", "a3", "m")))
	w.conflicted("two", "c", "one")
}
