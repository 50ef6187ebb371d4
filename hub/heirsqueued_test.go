package hub_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// elsewhereSource has the files of a module's source served by a server of its own. It is answered when served is closed; nil: at
// once.
func elsewhereSource(t *testing.T, m *towlinev1.Module, served <-chan struct{}) *towlinev1.Module {
	var all string
	for _, text := range m.GetSpec().GetSource().GetInline().GetFiles() {
		all += text + "---\n"
	}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		if served != nil {
			<-served
		}
		_, _ = rw.Write([]byte(all))
	}))
	t.Cleanup(srv.Close)
	m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: srv.URL + "/all.yaml"}}
	return m
}

// TestQueuedModuleIsHeir: what a module is going to list when its rollout that runs has ended is known, and kept for it, also
// for the module itself.
func TestQueuedModuleIsHeir(t *testing.T) {
	for name, from := range map[string]func(*towlinev1.Module) *towlinev1.Module{
		"its source is with it":   func(m *towlinev1.Module) *towlinev1.Module { return m },
		"its source is elsewhere": func(m *towlinev1.Module) *towlinev1.Module { return elsewhereSource(t, m, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeirs(t)
			w.put(queueing(listing("two", "b")))
			w.awaitTracker("two", "c", "ready", ready)
			w.queued(queueing(from(listing("two", "b", "m"))))
			w.put(queueing(listing("one", "a")))
			w.awaitHeir("c", "one", "m", "two")
			w.queued(queueing(from(listing("two", "b", "b2"))))
			w.awaitHeir("c", "one", "m", "")
			w.queued(queueing(from(listing("one", "a", "m"))))
			w.awaitHeir("c", "one", "m", "one")
			w.queued(queueing(from(listing("one", "a", "a2"))))
			w.awaitHeir("c", "one", "m", "")
		})
	}
}

// TestQueuedSourceIsFetchedAtOnce: while it is being fetched what the module is going to list, anything may be.
func TestQueuedSourceIsFetchedAtOnce(t *testing.T) {
	w := newHeirs(t)
	w.put(queueing(listing("two", "b")))
	w.awaitTracker("two", "c", "ready", ready)
	served := make(chan struct{})
	w.queued(queueing(elsewhereSource(t, listing("two", "b", "b2"), served)))
	w.put(queueing(listing("one", "a")))
	w.awaitHeir("c", "one", "m", "two")
	close(served)
	w.awaitHeir("c", "one", "m", "")
}

// TestPutThatIsBeingMadeEndsNoClaim: until a put has its revision, the rollout before it goes on, and comes to a cluster that the
// put leaves out, or that another program is to look after.
func TestPutThatIsBeingMadeEndsNoClaim(t *testing.T) {
	for name, change := range map[string]func(*towlinev1.Module) *towlinev1.Module{
		"it goes elsewhere": elsewhere,
		"another program is to assign it": func(m *towlinev1.Module) *towlinev1.Module {
			m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newHeirs(t)
			w.put(waiting(listing("two", "b", "m")))
			w.until("two", 1, func(r *towlinev1.Rollout) bool { return r.GetStatus().GetState() == "Waiting" })
			served := make(chan struct{})
			w.put(change(elsewhereSource(t, listing("two", "b", "b2"), served)))
			t.Cleanup(func() { close(served) })
			w.put(listing("one", "a"))
			w.awaitTracker("one", "c", "dropping m", func(tr *towlinev1.Tracker) bool { return tr.GetRevision() == 2 })
			w.awaitHeir("c", "one", "m", "two")
		})
	}
}

// TestRolloutDoesNotWaitForWhatIsQueuedBehindIt: a rollout takes a module from a cluster, where what it lists is kept for the put that
// is queued behind that rollout. It ends, so that the put has its turn, and nothing is deleted.
func TestRolloutDoesNotWaitForWhatIsQueuedBehindIt(t *testing.T) {
	w := newHeirs(t)
	leaving := elsewhere(listing("one", "a", "m"))
	leaving.Spec.Rollout = &towlinev1.RolloutStrategy{OnSupersede: "Queue"}
	w.put(leaving)
	held := w.awaitHold()
	back := w.put(listing("one", "a", "m"))
	w.confirm(held)
	if ro := w.await("one", back.GetRevision()); ro.GetId() != "one/3" || ro.GetStatus().GetState() != "Succeeded" || ro.GetStatus().GetSucceeded() != 1 {
		t.Errorf("the last rollout: %v", ro)
	}
}
