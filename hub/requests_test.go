package hub_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// foreign puts a module that another program assigns, twice: it has two revisions.
func (w *world) foreign(name string) {
	w.t.Helper()
	for _, object := range []string{"a", "b"} {
		m := listing(name, name+"-"+object)
		m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		w.await(name, w.put(m).GetRevision())
	}
}

func assigning(module string, revision int64, id string, clusters ...string) *towlinev1.PutAssignmentsRequest {
	return &towlinev1.PutAssignmentsRequest{Module: module, Revision: revision, Clusters: clusters, RequestId: id}
}

// assigned are what a module is assigned, by cluster.
func (w *world) assigned(module string) map[string]*towlinev1.Assignment {
	w.t.Helper()
	got, err := w.Assignments.ListAssignments(w.ctx, &towlinev1.ListAssignmentsRequest{Module: module})
	must(w.t, err)
	out := map[string]*towlinev1.Assignment{}
	for _, a := range got.GetAssignments() {
		out[a.GetCluster()] = a
	}
	return out
}

// TestAssignmentThatComesAgainLate: the answer to a request is lost, the program asks for something else, and then the first request
// comes again. Nothing goes back.
func TestAssignmentThatComesAgainLate(t *testing.T) {
	w := newWorld(t, true)
	w.join("c", nil, nil)
	w.foreign("shop")
	first, err := w.Assignments.PutAssignments(w.ctx, assigning("shop", 1, "first", "c"))
	must(t, err)
	second, err := w.Assignments.PutAssignments(w.ctx, assigning("shop", 2, "second", "c"))
	must(t, err)
	again, err := w.Assignments.PutAssignments(w.ctx, assigning("shop", 1, "first", "c"))
	must(t, err)
	if again.GetGeneration() != first.GetGeneration() || again.GetRevision() != first.GetRevision() {
		t.Errorf("first %v, again %v", first, again)
	}
	if got := w.assigned("shop")["c"]; got.GetRevision() != 2 || got.GetGeneration() < second.GetGeneration() {
		t.Errorf("assigned %v after %v", got, second)
	}
	leave := &towlinev1.DeleteAssignmentsRequest{Module: "shop", Clusters: []string{"c"}, RequestId: "third"}
	_, err = w.Assignments.DeleteAssignments(w.ctx, leave)
	must(t, err)
	_, err = w.Assignments.PutAssignments(w.ctx, assigning("shop", 2, "second", "c"))
	must(t, err)
	if got := w.assigned("shop"); len(got) != 0 {
		t.Errorf("it is back: %v", got)
	}
	_, err = w.Assignments.PutAssignments(w.ctx, assigning("shop", 1, "fourth", "c"))
	must(t, err)
	_, err = w.Assignments.DeleteAssignments(w.ctx, leave)
	must(t, err)
	if got := w.assigned("shop")["c"]; got.GetRevision() != 1 {
		t.Errorf("it is taken away again: %v", got)
	}
}

// TestManyAskAtOnce: programs that ask for one module at once, each request in two copies, are all answered, each request is carried out
// once, in all of its clusters, and what is assigned in the end is what was carried out last.
func TestManyAskAtOnce(t *testing.T) {
	w := newWorld(t, true)
	for _, c := range []string{"a", "b"} {
		w.join(c, nil, nil)
	}
	w.foreign("shop")
	type done struct {
		revision int64
		*towlinev1.PutAssignmentsResponse
	}
	var mu sync.Mutex
	answers := map[string]done{}
	var wg sync.WaitGroup
	for n := range 12 {
		for range 2 {
			wg.Go(func() {
				id, revision := fmt.Sprintf("n%d", n), int64(n%2+1)
				got, err := w.Assignments.PutAssignments(w.ctx, assigning("shop", revision, id, "a", "b"))
				if err != nil {
					t.Errorf("%s: %v", id, err)
				}
				mu.Lock()
				defer mu.Unlock()
				if other, twice := answers[id]; twice && other.GetGeneration() != got.GetGeneration() {
					t.Errorf("%s: %v and %v", id, other, got)
				}
				answers[id] = done{revision, got}
			})
		}
	}
	wg.Wait()
	var last done
	seen := map[uint64]string{}
	for id, a := range answers {
		if other := seen[a.GetGeneration()]; other != "" {
			t.Errorf("%s and %s have generation %d", id, other, a.GetGeneration())
		}
		seen[a.GetGeneration()] = id
		if a.GetGeneration() > last.GetGeneration() {
			last = a
		}
	}
	for c, got := range w.assigned("shop") {
		if got.GetRevision() != last.revision || got.GetGeneration() < last.GetGeneration() {
			t.Errorf("%s is assigned %v; carried out last: %v", c, got, last)
		}
	}
}

// TestRequestsAcrossRestarts: a program repeats each request until it is answered, while the hub is started again and again. Each is
// carried out once, in the order in which the program asks.
func TestRequestsAcrossRestarts(t *testing.T) {
	w := newWorld(t, false)
	w.join("c", nil, nil)
	w.foreign("shop")
	c, err := client.Dial(w.ctx, client.Options{Config: filepath.Join(w.dir, hub.AdminFile)})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		last := uint64(0)
		for n := int64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			got, err := untilAnswered(w, func() (*towlinev1.PutAssignmentsResponse, error) {
				return c.Assignments.PutAssignments(w.ctx, assigning("shop", n%2+1, fmt.Sprint(n), "c"))
			})
			if err != nil || got.GetGeneration() <= last {
				t.Errorf("request %d: %v after %d, %v", n, got, last, err)
				return
			}
			last = got.GetGeneration()
			if n == 0 {
				continue
			}
			if _, err := untilAnswered(w, func() (*towlinev1.PutAssignmentsResponse, error) {
				return c.Assignments.PutAssignments(w.ctx, assigning("shop", (n-1)%2+1, fmt.Sprint(n-1), "c"))
			}); err != nil {
				t.Errorf("request %d, again: %v", n-1, err)
				return
			}
			list, err := untilAnswered(w, func() (*towlinev1.ListAssignmentsResponse, error) {
				return c.Assignments.ListAssignments(w.ctx, &towlinev1.ListAssignmentsRequest{Module: "shop", MinRevision: got.GetRevision()})
			})
			if a := list.GetAssignments(); err != nil || len(a) != 1 || a[0].GetRevision() != n%2+1 || a[0].GetGeneration() < last {
				t.Errorf("after request %d of generation %d it is assigned %v, %v", n, last, a, err)
				return
			}
		}
	})
	for range 4 {
		w.restart()
	}
	close(stop)
	wg.Wait()
}

// untilAnswered repeats a call until the hub is there.
func untilAnswered[T any](w *world, call func() (T, error)) (T, error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		got, err := call()
		if !errors.Is(err, fleet.ErrUnavailable) || w.ctx.Err() != nil {
			return got, err
		}
		<-tick.C
	}
}
