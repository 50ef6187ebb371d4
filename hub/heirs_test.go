package hub_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// waiting has the module's rollout wait for a person before it begins.
func waiting(m *towlinev1.Module) *towlinev1.Module {
	m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", Before: []*towlinev1.Gate{{Approval: &towlinev1.ApprovalGate{Approvers: 1}}}}}}
	return m
}

// awaitHeir waits until the agent of a cluster is told who is to have a ConfigMap that a module lets go; empty: nobody.
func (w *world) awaitHeir(cluster, module, name, heir string) {
	w.t.Helper()
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: name}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var got []fleet.Heir
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		got = w.held(cluster, module).Heirs
		for _, t := range w.agents[cluster].Held().Tombstones {
			if t.Module.Name == module {
				got = t.Heirs
			}
		}
		to, found := assemble.HeirOf(got, id)
		if found == (heir != "") && to.Module.Name == heir {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("heir of %s's %s in %s: want %q, the agent has %+v", module, name, cluster, heir, got)
		}
	}
}

// newHeirs is a world in which one has m, and the agent keeps what is told to be let go.
func newHeirs(t *testing.T) *world {
	w := newWorld(t, true)
	left := func(s *fleet.SyncStatus, heirs []fleet.Heir) {
		if id := (fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "m"}); len(heirs) > 0 {
			s.Extras = []fleet.ExtraObject{{ID: id, Version: "v1", Reason: "AwaitingHeir", State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}}}
		}
	}
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{
		Report: func(s fleet.Sync) fleet.SyncStatus {
			st := simagent.Ready(s)
			left(&st, s.Heirs)
			return st
		},
		Remove: func(t fleet.Tombstone) fleet.SyncStatus {
			st := simagent.Removed(t)
			if left(&st, t.Heirs); len(st.Extras) > 0 {
				st.Phase = fleet.PhaseRemoving
			}
			return st
		},
	})
	w.await("one", w.put(listing("one", "a", "m")).GetRevision())
	return w
}

// TestDroppedObjectHasAnHeir: what a module lets go is kept for one whose newest revision lists it, for as long as it does,
// whatever becomes of its rollout.
func TestDroppedObjectHasAnHeir(t *testing.T) {
	w := newHeirs(t)
	w.put(waiting(listing("two", "b", "m")))
	w.await("one", w.put(listing("one", "a")).GetRevision())
	w.awaitHeir("c", "one", "m", "two")
	w.await("one", w.put(listing("one", "a", "a2")).GetRevision())
	w.awaitHeir("c", "one", "m", "two")
	w.act(&towlinev1.ActOnRolloutRequest{Module: "two", Verb: "abort"})
	w.awaitHeir("c", "one", "m", "two")
	w.put(waiting(listing("two", "b")))
	w.awaitHeir("c", "one", "m", "")
}

// TestHeirComesAfterTheDrop: a module that begins to list what another has let go, and that is still there.
func TestHeirComesAfterTheDrop(t *testing.T) {
	w := newHeirs(t)
	w.put(waiting(listing("keeper", "m")))
	w.await("one", w.put(listing("one", "a")).GetRevision())
	w.awaitHeir("c", "one", "m", "keeper")
	w.put(waiting(listing("late", "m")))
	_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "keeper"})
	must(t, err)
	w.awaitHeir("c", "one", "m", "late")
}

// TestDeletedModuleHasHeirs: the same for a module that is deleted, or that leaves the cluster.
func TestDeletedModuleHasHeirs(t *testing.T) {
	for name, letGo := range map[string]func(*world){
		"deleted": func(w *world) {
			_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "one"})
			must(w.t, err)
		},
		"left the placement": func(w *world) {
			m := listing("one", "a", "m")
			m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"other"}}
			w.put(m)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeirs(t)
			w.await("base", w.put(listing("base", "b")).GetRevision()) // or one could not leave without a confirm
			w.put(waiting(listing("two", "m")))
			letGo(w)
			w.awaitHeir("c", "one", "m", "two")
			_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "two"})
			must(t, err)
			w.awaitTracker("one", "c", "gone", func(tr *towlinev1.Tracker) bool { return tr == nil })
		})
	}
}

// TestHeirsAreNotKnownYet: while the source of another module is being fetched, nothing that this one may list is let go.
func TestHeirsAreNotKnownYet(t *testing.T) {
	w := newHeirs(t)
	answer := make(chan struct{})
	source := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		<-answer
		http.Error(rw, "no", http.StatusNotFound)
	}))
	t.Cleanup(source.Close)
	two := listing("two", "b")
	two.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: source.URL + "/a.tar.gz"}}
	w.put(two)
	w.await("one", w.put(listing("one", "a")).GetRevision())
	w.awaitHeir("c", "one", "m", "two")
	close(answer)
	w.awaitHeir("c", "one", "m", "")
}

// TestPutsOfABatch: whichever module of one apply is put first, what it lets go is known to be another's in everything that
// the agent is told.
func TestPutsOfABatch(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	m := assemble.HeirKey(fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "m"})
	var mu sync.Mutex
	var lost []fleet.Assemblage
	w.connectWith("c", simagent.Options{Took: func(a fleet.Assemblage) {
		for _, s := range a.Syncs {
			two := slices.IndexFunc(a.Syncs, func(x fleet.Sync) bool { return x.Module.Name == "two" })
			inherits := slices.ContainsFunc(s.Heirs, func(h fleet.Heir) bool { return slices.Contains(h.Keys, m) })
			if s.Module.Name == "one" && s.Revision%2 == 0 && !inherits && (two < 0 || a.Syncs[two].Revision < s.Revision) {
				mu.Lock()
				lost = append(lost, a)
				mu.Unlock()
			}
		}
	}})
	put := func(m *towlinev1.Module, more bool) {
		_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, Batch: "x", More: more})
		must(t, err)
	}
	for n := range int64(10) {
		w.await("two", w.put(listing("two", "b")).GetRevision())
		w.await("one", w.put(listing("one", "a", "m")).GetRevision())
		put(listing("one", "a"), true)
		put(listing("two", "b", "m"), false)
		for _, name := range []string{"one", "two"} {
			w.awaitTracker(name, "c", "moved", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2*(n+1) && tr.GetReady() })
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(lost) > 0 {
		t.Errorf("m is let go to nobody: %+v", lost)
	}
}
