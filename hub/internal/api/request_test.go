package api

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

var asked = fleet.ModuleRef{Project: "default", Name: "shop"}

// newAsked has a module of which somebody asks for something. Nobody leads until somebody answers.
func newAsked(t *testing.T) *API {
	t.Helper()
	return newAPI(t, func(w store.Writer) {
		putModule(w, "default", "shop", func(m *storev1.ModuleRecord) { m.Module.Metadata.Uid = "first" })
	})
}

// answers answers the next requests, as the leader does, each with a refusal or without one, and says what was asked for.
func (a *API) answers(t *testing.T, refusals ...error) (wait func() []*storev1.RequestRecord) {
	t.Helper()
	var list []*storev1.RequestRecord
	var wg sync.WaitGroup
	sub := a.o.Store.Subscribe(nil, store.RequestPrefix)
	t.Cleanup(sub.Stop)
	wg.Go(func() {
		for i, refusal := range refusals {
			for len(list) <= i {
				select {
				case <-sub.C():
					sub.Take()
				case <-t.Context().Done():
					return
				}
				list = append(list, a.answerAll(t, uint64(i+1), refusal)...)
			}
		}
	})
	return func() []*storev1.RequestRecord {
		wg.Wait()
		return list
	}
}

func (a *API) answerAll(t *testing.T, generation uint64, refusal error) (list []*storev1.RequestRecord) {
	if _, err := storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
		list = nil
		store.Scan(w, store.RequestPrefix, func(q *storev1.RequestRecord, e store.Entry) bool {
			list = append(list, q)
			said := &storev1.AnswerRecord{RequestId: q.GetRequestId(), Said: q.GetSaid(), At: timestamppb.Now(), Generation: generation}
			if refusal != nil {
				said.Generation = 0
				said.Refusal, _ = rpc.Pack(refusal)
			}
			w.Put(store.AnswerPrefix+strings.TrimPrefix(e.Key, store.RequestPrefix), said)
			w.Delete(e.Key)
			return true
		})
		return nil
	}); err != nil {
		t.Errorf("answer: %v", err)
	}
	return list
}

// open are the requests that nobody has answered.
func (a *API) open(t *testing.T) (n int) {
	t.Helper()
	if _, err := a.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		r.Scan(store.RequestPrefix, func(store.Entry) bool { n++; return true })
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

func put(id string, revision int64, clusters ...string) *towlinev1.PutAssignmentsRequest {
	return &towlinev1.PutAssignmentsRequest{Module: "shop", Revision: revision, Clusters: clusters, RequestId: id}
}

// The leader is asked for what the caller wants, each cluster once, and what it says is the answer.
func TestLeaderAnswersRequests(t *testing.T) {
	a := newAsked(t)
	refusal := fleet.Forbids(fleet.ClusterName("b").Object(), "cluster b is cordoned")
	wait := a.answers(t, nil, refusal, nil)
	got, err := a.PutAssignments(t.Context(), put("", 4, "b", "a", "b"))
	if err != nil || got.GetGeneration() != 1 || got.GetRevision() == 0 {
		t.Errorf("put: %v, %v", got, err)
	}
	if _, err := a.PutAssignments(t.Context(), put("", 4, "b")); !errors.Is(err, fleet.ErrPrecondition) || err.Error() != refusal.Error() || fleet.HintOf(err) != fleet.HintOf(refusal) {
		t.Errorf("refused: %v", err)
	}
	if taken, err := a.DeleteAssignments(t.Context(), &towlinev1.DeleteAssignmentsRequest{Module: "shop", Clusters: []string{"a"}}); err != nil || taken.GetRevision() <= got.GetRevision() {
		t.Errorf("delete: %v, %v", taken, err)
	}
	list := wait()
	if q := list[0]; q.GetRevision() != 4 || strings.Join(q.GetClusters(), " ") != "a b" || q.GetModuleUid() != "first" || q.GetLeave() {
		t.Errorf("asked for %v", q)
	}
	if q := list[2]; !q.GetLeave() || strings.Join(q.GetClusters(), " ") != "a" {
		t.Errorf("asked for %v", q)
	}
}

// A request that comes again, late, because its answer was lost, is answered as it was, a refusal too; nobody is asked a second time, so
// that what was asked for since stays.
func TestRepeatedRequestIsAnsweredAlike(t *testing.T) {
	a := newAsked(t)
	wait := a.answers(t, nil, nil, fleet.Forbids(fleet.ClusterName("b").Object(), "cluster b is cordoned"))
	first, err := a.PutAssignments(t.Context(), put("one", 1, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.PutAssignments(t.Context(), put("two", 2, "a")); err != nil {
		t.Fatal(err)
	}
	if again, err := a.PutAssignments(t.Context(), put("one", 1, "a")); err != nil || again.GetGeneration() != first.GetGeneration() || again.GetRevision() != first.GetRevision() {
		t.Errorf("first %v, again %v, %v", first, again, err)
	}
	_, refused := a.PutAssignments(t.Context(), put("three", 3, "b"))
	if _, err := a.PutAssignments(t.Context(), put("three", 3, "b")); err == nil || refused == nil || err.Error() != refused.Error() {
		t.Errorf("refused %v, again %v", refused, err)
	}
	for name, call := range map[string]func() error{
		"another revision": func() error { _, err := a.PutAssignments(t.Context(), put("one", 2, "a")); return err },
		"another verb": func() error {
			_, err := a.DeleteAssignments(t.Context(), &towlinev1.DeleteAssignmentsRequest{Module: "shop", Clusters: []string{"a"}, RequestId: "one"})
			return err
		},
	} {
		if err := call(); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), `"one" was another request`) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(wait()); n != 3 || a.open(t) != 0 {
		t.Errorf("the leader was asked %d times", n)
	}
}

// impatient is a store whose caller leaves when it begins to wait for what it has recorded.
type impatient struct {
	store.Store
	leave func()
}

func (s impatient) Subscribe(fn func(store.Reader), prefixes ...string) store.Subscription {
	defer s.leave()
	return s.Store.Subscribe(fn, prefixes...)
}

// leaves makes the context of a caller that leaves when what it asks for is recorded, and nobody has answered.
func (a *API) leaves(t *testing.T) (ctx context.Context, stays func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	whole := a.o.Store
	a.o.Store = impatient{whole, cancel}
	return ctx, func() { a.o.Store = whole }
}

// Without a leader a request comes to nothing, and its caller is told so; what a caller waits for that is gone comes to nothing, too.
func TestRequestWithoutALeaderComesToNothing(t *testing.T) {
	a := newAsked(t)
	ctx, stays := a.leaves(t)
	_, err := a.PutAssignments(ctx, put("one", 1, "a"))
	stays()
	if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "nothing was done, and nothing will be") || fleet.HintOf(err).RetryAfter == 0 {
		t.Errorf("%v", err)
	}
	if a.open(t) != 0 {
		t.Error("a leader that comes would do it")
	}
	wait := a.answers(t, nil)
	if got, err := a.PutAssignments(t.Context(), put("one", 1, "a")); err != nil || got.GetGeneration() != 1 {
		t.Errorf("tried again: %v, %v", got, err)
	}
	wait()
}

// Whoever still waits for a request that ended without an answer is told that it was not carried out, and why, if that is known.
func TestRequestThatEndedWithoutAnAnswer(t *testing.T) {
	remake := func(w store.Writer) {
		putModule(w, "default", "shop", func(m *storev1.ModuleRecord) { m.Module.Metadata.Uid = "second" })
	}
	for name, tc := range map[string]struct {
		meanwhile func(w store.Writer)
		kind      error
	}{
		"taken back":            {func(store.Writer) {}, fleet.ErrUnavailable},
		"its module is gone":    {func(w store.Writer) { w.Delete(store.ModuleKey(asked)) }, fleet.ErrNotFound},
		"its module is another": {remake, fleet.ErrPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAsked(t)
			p := pending{ref: asked, id: "x"}
			rev, err := a.o.Store.Update(t.Context(), func(w store.Writer) error {
				return putRequest(w, &p, "", &storev1.RequestRecord{})
			})
			if err != nil {
				t.Fatal(err)
			}
			waiting, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if _, err := a.awaitAnswer(waiting, p, rev); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while it is there: %v", err)
			}
			rev, err = storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
				tc.meanwhile(w)
				w.Delete(store.RequestKey(asked, "x"))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := a.awaitAnswer(t.Context(), p, rev); !errors.Is(err, tc.kind) {
				t.Errorf("%v", err)
			}
		})
	}
}
