package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// waiting has the module's rollout wait for a person before it begins.
func waiting(m *towlinev1.Module) *towlinev1.Module {
	m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", Before: []*towlinev1.Gate{{Approval: &towlinev1.ApprovalGate{Approvers: 1}}}}}}
	return m
}

// elsewhere places a module in another cluster.
func elsewhere(m *towlinev1.Module) *towlinev1.Module {
	m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"other"}}
	return m
}

// awaitHeir waits until the agent of a cluster is told who is to have a ConfigMap that a module lets go; empty: nobody.
func (w *world) awaitHeir(cluster, module, name, heir string) {
	w.t.Helper()
	w.awaitHeirOf(cluster, module, fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: name}, heir)
}

// awaitHeirOf is awaitHeir for an object of any kind.
func (w *world) awaitHeirOf(cluster, module string, id fleet.ObjectID, heir string) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var got []fleet.Heir
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
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
			w.t.Fatalf("heir of %s's %s in %s: want %q, the agent has %+v", module, id, cluster, heir, got)
		}
	}
}

// newHeirs is a world in which one has m, and the agent keeps what is told to be let go, and what its second revision drops.
func newHeirs(t *testing.T) *world { return newHeirsOf(t, listing("one", "a", "m")) }

// newHeirsOf is newHeirs with one as it is given.
func newHeirsOf(t *testing.T, one *towlinev1.Module) *world {
	w := newWorld(t, true)
	w.keepsForHeirs()
	w.await("one", w.put(one).GetRevision())
	return w
}

// keepsForHeirs connects c, whose agent keeps what it is told to keep, and what the second revision of one drops.
func (w *world) keepsForHeirs() {
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{
		Report: func(s fleet.Sync) fleet.SyncStatus {
			st := simagent.Ready(s)
			left(&st, s.Heirs, s.Module.Name == "one" && s.Revision == 2)
			return st
		},
		Remove: removedButKept,
	})
}

// left says that m is left, where it is kept for heirs or is slow to go.
func left(s *fleet.SyncStatus, heirs []fleet.Heir, slow bool) {
	if id := (fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "m"}); len(heirs) > 0 || slow {
		s.Extras = []fleet.ExtraObject{{ID: id, Version: "v1", Reason: "AwaitingHeir", State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}}}
	}
}

// removedButKept is what an agent tells of a tombstone: while m is kept for heirs the module is not removed.
func removedButKept(t fleet.Tombstone) fleet.SyncStatus {
	st := simagent.Removed(t)
	if left(&st, t.Heirs, false); len(st.Extras) > 0 {
		st.Phase = fleet.PhaseRemoving
	}
	return st
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
	w.until("two", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
	w.act(client.Word{Module: "two", Verb: "abort"})
	w.awaitHeir("c", "one", "m", "two")
	w.put(waiting(listing("two", "b")))
	w.awaitHeir("c", "one", "m", "")
}

// tills lists custom resources of one name, each in a namespace of its own. Whether their kind has namespaces only the cluster
// knows.
func tills(name string, namespaces ...string) *towlinev1.Module {
	files := map[string]string{}
	for _, ns := range namespaces {
		files[ns+".yaml"] = fmt.Sprintf("apiVersion: x.io/v1\nkind: Till\nmetadata: {name: t, namespace: %s}\nspec: {by: %s}\n", ns, name)
	}
	return module(name, files)
}

// TestNameOfAnotherNamespaceHidesNoHeir: a custom resource has an heir though the module that drops it, or the heir, has one of
// its name in another namespace.
func TestNameOfAnotherNamespaceHidesNoHeir(t *testing.T) {
	for name, tc := range map[string]struct{ one, rest, two, next []string }{
		"the module keeps one": {[]string{"a", "b"}, []string{"a"}, []string{"c"}, []string{"c", "b"}},
		"the heir has one":     {[]string{"b", "x"}, []string{"x"}, []string{"a"}, []string{"a", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.enroll("c", nil)
			w.connectWith("c", simagent.Options{Report: simagent.Ready})
			w.await("one", w.put(tills("one", tc.one...)).GetRevision())
			w.await("two", w.put(tills("two", tc.two...)).GetRevision())
			w.put(waiting(tills("two", tc.next...)))
			w.until("two", 2, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
			w.await("one", w.put(tills("one", tc.rest...)).GetRevision())
			w.awaitTracker("one", "c", "at its second revision", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
			till := func(ns string) fleet.ObjectID {
				return fleet.ObjectID{Group: "x.io", Kind: "Till", Namespace: ns, Name: "t"}
			}
			w.awaitHeirOf("c", "one", till("b"), "two")
			w.awaitHeirOf("c", "one", till("elsewhere"), "")
		})
	}
}

// TestModuleIsItsOwnHeir: what a revision drops is kept where the module is on its way to one that lists it again, for as long
// as it is. It is not waited for.
func TestModuleIsItsOwnHeir(t *testing.T) {
	for name, tc := range map[string]struct {
		way  func(*world)
		heir string
	}{
		"it comes there":      {func(w *world) { w.put(listing("one", "a", "a3", "m")) }, ""},
		"it is aborted":       {func(w *world) { w.act(client.Word{Module: "one", Verb: "abort"}) }, ""},
		"another drops it":    {func(w *world) { w.put(waiting(listing("one", "a", "a4"))) }, ""},
		"another lists it":    {func(w *world) { w.put(waiting(listing("one", "a", "a4", "m"))) }, "one"},
		"the module is gone":  {func(w *world) { w.delete("one", false) }, ""},
		"another would, too":  {func(w *world) { w.put(waiting(listing("two", "m"))) }, "one"},
		"it is paused":        {func(w *world) { w.act(client.Word{Module: "one", Verb: "pause"}) }, "one"},
		"it is not for there": {func(w *world) { w.put(elsewhere(waiting(listing("one", "a", "a5", "m")))) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeirs(t)
			w.await("one", w.put(listing("one", "a")).GetRevision())
			w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetExtra() == 1 })
			w.put(waiting(listing("one", "a", "a3", "m")))
			w.awaitHeir("c", "one", "m", "one")
			w.until("one", 3, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
			tc.way(w)
			w.awaitHeir("c", "one", "m", tc.heir)
		})
	}
}

// TestHeirOfTheRevisionBefore: what a revision drops is kept in clusters that go back to one that lists it.
func TestHeirOfTheRevisionBefore(t *testing.T) {
	w := newHeirs(t)
	w.enroll("d", nil)
	var went atomic.Bool
	w.connectWith("d", simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus {
		switch st := simagent.Ready(s); {
		case s.Revision == 2:
			went.Store(true)
			return simagent.Failing(s)
		case went.Load(): // it takes its time to come back, so that the other cluster waits
			st.Phase, st.Ready = fleet.PhaseApplying, false
			return st
		default:
			return st
		}
	}})
	w.awaitTracker("one", "d", "ready", ready)
	m := listing("one", "a")
	m.Spec.Rollout = &towlinev1.RolloutStrategy{OnFailure: "Rollback", Stages: []*towlinev1.Stage{{Name: "all", MaxConcurrency: "1"}},
		Rollback: &towlinev1.RollbackStrategy{MaxConcurrency: "1"}}
	w.put(m)
	w.awaitHeir("c", "one", "m", "one")
	if s := w.held("c", "one"); s.Revision != 2 {
		t.Errorf("not kept in the revision that drops it: %+v", s)
	}
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

// TestHeirsBelowAProblem: where the next revision cannot be assigned, the one before goes on to let go what it drops, and what
// others are about to list of that is kept for them.
func TestHeirsBelowAProblem(t *testing.T) {
	for name, tc := range map[string]struct {
		before func(*world)
		heir   string
		after  func(*world)
		next   string
	}{
		"one comes": {func(*world) {}, "", func(w *world) { w.put(waiting(listing("two", "b", "m"))) }, "two"},
		"one goes":  {func(w *world) { w.put(waiting(listing("two", "b", "m"))) }, "two", func(w *world) { w.put(waiting(listing("two", "b"))) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeirs(t)
			tc.before(w)
			w.await("one", w.put(listing("one", "a")).GetRevision())
			w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetExtra() == 1 })
			unbound := listing("one", "a")
			unbound.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
			w.put(unbound)
			w.awaitTracker("one", "c", "without a value", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 3 && tr.GetReason() == "CannotAssign" })
			w.awaitHeir("c", "one", "m", tc.heir)
			tc.after(w)
			w.awaitHeir("c", "one", "m", tc.next)
		})
	}
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

// silentSource is an address that does not answer before it is told to, or the test ends; then there is nothing.
func silentSource(t *testing.T) (url string, answer func()) {
	told := make(chan struct{})
	source := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		<-told
		http.Error(rw, "no", http.StatusNotFound)
	}))
	answer = sync.OnceFunc(func() { close(told) })
	t.Cleanup(func() {
		answer()
		source.Close()
	})
	return source.URL + "/a.tar.gz", answer
}

// TestHeirsAreNotKnownYet: while the source of another module is being fetched, nothing that this one may list is let go.
func TestHeirsAreNotKnownYet(t *testing.T) {
	w := newHeirs(t)
	url, answer := silentSource(t)
	two := listing("two", "b")
	two.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: url}}
	w.put(two)
	w.await("one", w.put(listing("one", "a")).GetRevision())
	w.awaitHeir("c", "one", "m", "two")
	answer()
	w.awaitHeir("c", "one", "m", "")
}

// in gives a cluster its zone.
func (w *world) in(cluster, zone string) {
	w.t.Helper()
	_, err := w.Clusters.PutCluster(w.ctx, &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{
		Metadata: &towlinev1.Metadata{Name: cluster, Labels: map[string]string{"zone": zone}}}})
	must(w.t, err)
}

// zoned binds ZONE to the label of the cluster.
func zoned(m *towlinev1.Module) *towlinev1.Module {
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "ZONE", ClusterLabel: "zone"}}
	return m
}

// TestMoreIsLetGoBeforeHeirsAreKnown: what a module comes to let go while it is not known what another one lists is kept, too.
func TestMoreIsLetGoBeforeHeirsAreKnown(t *testing.T) {
	w := newHeirs(t)
	url, answer := silentSource(t)
	w.in("c", "eu")
	two := listing("two", "b")
	two.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: url}}
	w.put(two)
	w.put(zoned(listing("one", "a", "n-${ZONE}")))
	w.awaitHeir("c", "one", "m", "two")
	w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetExtra() == 1 })
	w.in("c", "us")
	w.awaitHeir("c", "one", "n-eu", "two")
	answer()
	w.awaitHeir("c", "one", "n-eu", "")
}

// TestHeirWithoutAValue: what a module lets go is kept for one that lists it and cannot be assigned yet, for want of a label.
func TestHeirWithoutAValue(t *testing.T) {
	w := newHeirs(t)
	w.put(zoned(listing("two", "m", "n-${ZONE}")))
	w.awaitTracker("two", "c", "without a value", func(tr *towlinev1.Tracker) bool { return tr.GetReason() == "CannotAssign" })
	w.await("one", w.put(listing("one", "a")).GetRevision())
	w.awaitHeir("c", "one", "m", "two")
	w.in("c", "eu")
	w.awaitTracker("two", "c", "assigned", func(tr *towlinev1.Tracker) bool { return w.held("c", "two").Revision == 1 })
	w.awaitHeir("c", "one", "m", "")
}

// TestHeirsOfAnExternalModule: what another program takes from a cluster is kept for one that is queued from the first word on.
func TestHeirsOfAnExternalModule(t *testing.T) {
	w := newWorld(t, true)
	w.enroll("c", nil)
	m := fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "m"}
	var bare atomic.Bool
	w.connectWith("c", simagent.Options{
		Took: func(a fleet.Assemblage) {
			for _, t := range a.Tombstones {
				if _, found := assemble.HeirOf(t.Heirs, m); !found {
					bare.Store(true)
				}
			}
		},
		Remove: func(fleet.Tombstone) fleet.SyncStatus { return fleet.SyncStatus{} },
	})
	one := listing("one", "a", "m")
	one.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	w.await("one", w.put(one).GetRevision())
	_, err := w.Assignments.PutAssignments(w.ctx, &towlinev1.PutAssignmentsRequest{Module: "one", Revision: 1, Clusters: []string{"c"}})
	must(t, err)
	w.awaitTracker("one", "c", "ready", ready)
	w.put(queueing(listing("two", "b")))
	w.awaitTracker("two", "c", "ready", ready)
	w.queued(queueing(listing("two", "b", "m")))
	_, err = w.Assignments.DeleteAssignments(w.ctx, &towlinev1.DeleteAssignmentsRequest{Module: "one", Clusters: []string{"c"}})
	must(t, err)
	w.awaitHeir("c", "one", "m", "two")
	if bare.Load() {
		t.Error("the agent was told to remove it before it was told who is to have it")
	}
}

// TestHeirThatGoesBack: a module whose rollout goes back is to have what the older revision lists, though its newest one does not.
func TestHeirThatGoesBack(t *testing.T) {
	for name, dropped := range map[string]bool{"and the object is dropped then": false, "and the object was dropped before": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, true)
			w.enroll("c", nil)
			w.connectWith("c", simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus {
				st := simagent.Ready(s)
				if s.Module.Name == "one" && s.Revision == 2 {
					st.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "m"}, Version: "v1", Reason: "AwaitingReady",
						State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}}}
				}
				return st
			}})
			w.enroll("d", nil)
			var went atomic.Bool
			w.connectWith("d", simagent.Options{Report: func(s fleet.Sync) fleet.SyncStatus {
				st := simagent.Ready(s)
				switch {
				case s.Module.Name == "two" && s.Revision == 2:
					went.Store(true)
				case s.Module.Name == "two" && went.Load(): // it takes its time to come back, so that the other cluster waits
					st.Phase, st.Ready = fleet.PhaseApplying, false
				}
				return st
			}})
			slowly := func(m *towlinev1.Module) *towlinev1.Module {
				m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{{Name: "all", MaxConcurrency: "1"}},
					Rollback: &towlinev1.RollbackStrategy{MaxConcurrency: "1"}}
				return m
			}
			w.await("two", w.put(slowly(listing("two", "b", "m"))).GetRevision())
			w.await("two", w.put(slowly(listing("two", "b"))).GetRevision())
			w.await("one", w.put(listing("one", "a", "m")).GetRevision())
			drop := func() {
				w.put(listing("one", "a"))
				w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetExtra() == 1 })
			}
			if dropped {
				drop()
				w.awaitHeir("c", "one", "m", "")
			}
			w.act(client.Word{Module: "two", Verb: "rollback", Revision: 1})
			w.awaitTracker("two", "d", "going back", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 1 })
			if !dropped {
				drop()
			}
			w.awaitHeir("c", "one", "m", "two")
			if s := w.held("c", "two"); s.Revision != 2 {
				t.Errorf("not kept before the revision that lists it comes: %+v", s)
			}
			w.act(client.Word{Module: "two", Verb: "abort"})
			w.awaitHeir("c", "one", "m", "")
		})
	}
}

// TestPutsOfABatch: whichever module of one apply is put first, what it lets go is known to be another's in everything that
// the agent is told.
func TestPutsOfABatch(t *testing.T) {
	putsOfABatch(newWorld(t, true), 10, nil)
}

// TestBatchOutlivesTheHub: a hub that starts between two puts of one apply, or another one that leads then, knows that others are to come: what
// the first module lets go is not deleted before the second one lists it.
func TestBatchOutlivesTheHub(t *testing.T) {
	w := newWorld(t, false)
	w.grace = time.Minute
	putsOfABatch(w, 2, func() {
		w.restart()
		w.until("one", 0, func(r *towlinev1.Rollout) bool {
			s := r.GetStatus()
			return s.GetState() == "Pending" && s.GetReason() == "PutsAhead" || s.GetState() != "Pending"
		})
	})
}

// putsOfABatch has m go from one module to another in one apply, so many times, with whatever happens between the two puts.
func putsOfABatch(w *world, times int64, between func()) {
	t := w.t
	t.Helper()
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
	for n := range times {
		w.await("two", w.put(listing("two", "b")).GetRevision())
		w.await("one", w.put(listing("one", "a", "m")).GetRevision())
		put(listing("one", "a"), true)
		if between != nil {
			between()
		}
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

// queueing has the module's rollout wait for a person at its end, and what is put meanwhile wait for that.
func queueing(m *towlinev1.Module) *towlinev1.Module {
	m.Spec.Rollout = &towlinev1.RolloutStrategy{OnSupersede: "Queue", Stages: []*towlinev1.Stage{{Name: "all", After: []*towlinev1.Gate{{Approval: &towlinev1.ApprovalGate{Approvers: 1}}}}}}
	return m
}

// queued puts a module behind its own rollout.
func (w *world) queued(m *towlinev1.Module) {
	w.t.Helper()
	w.put(m)
	if now := w.module(m.GetMetadata().GetName()).GetStatus(); now.GetRolloutReason() != "Queued" {
		w.t.Fatalf("not queued: %v", now)
	}
}

// TestExternalModuleIsHeir: a module that another program assigns is to have what its newest revision lists, where the program
// has assigned the module at all.
func TestExternalModuleIsHeir(t *testing.T) {
	external := func(m *towlinev1.Module) *towlinev1.Module {
		m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		return m
	}
	for name, assigned := range map[string]bool{"where it is": true, "where it is not": false} {
		t.Run(name, func(t *testing.T) {
			w := newHeirs(t)
			w.await("two", w.put(external(listing("two", "b"))).GetRevision())
			assign := func(revision int64) {
				_, err := w.Assignments.PutAssignments(w.ctx, &towlinev1.PutAssignmentsRequest{Module: "two", Revision: revision, Clusters: []string{"c"}})
				must(t, err)
			}
			heir := ""
			if assigned {
				assign(1)
				heir = "two"
			}
			w.await("two", w.put(external(listing("two", "b", "m"))).GetRevision())
			w.await("one", w.put(listing("one", "a")).GetRevision())
			w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetExtra() == 1 })
			w.awaitHeir("c", "one", "m", heir)
			assign(2)
			w.awaitTracker("two", "c", "ready", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 && tr.GetReady() })
			w.awaitHeir("c", "one", "m", "")
		})
	}
}
