package fence

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// server keeps one Lease and one namespace as an API server does: with a compare-and-swap on resourceVersion.
type server struct {
	mu        sync.Mutex
	lease     *coordinationv1.Lease
	version   int
	puts      int
	namespace bool
	admission func(*coordinationv1.Lease) // changes what is put; nil: it is kept as it is
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	fail := func(code int, reason metav1.StatusReason) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(code), Reason: reason,
			Details: &metav1.StatusDetails{Name: path.Base(r.URL.Path)}})
	}
	if strings.HasPrefix(r.URL.Path, "/api/v1/namespaces") {
		s.namespace = true
		_, _ = w.Write(body)
		return
	}
	var in coordinationv1.Lease
	switch {
	case r.Method == http.MethodPost && !s.namespace:
		fail(404, metav1.StatusReasonNotFound)
		return
	case r.Method != http.MethodPost && s.lease == nil:
		fail(404, metav1.StatusReasonNotFound)
		return
	case r.Method == http.MethodPost && s.lease != nil:
		fail(409, metav1.StatusReasonAlreadyExists)
		return
	case r.Method == http.MethodGet:
	default:
		if err := json.Unmarshal(body, &in); err != nil {
			fail(400, metav1.StatusReasonBadRequest)
			return
		}
		if s.lease != nil && in.ResourceVersion != strconv.Itoa(s.version) {
			fail(409, metav1.StatusReasonConflict)
			return
		}
		if s.admission != nil {
			s.admission(&in)
		}
		s.puts++
		s.version++
		in.ResourceVersion = strconv.Itoa(s.version)
		s.lease = &in
	}
	_ = json.NewEncoder(w).Encode(s.lease)
}

func (s *server) edit(f func(*coordinationv1.Lease)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	f(s.lease)
	s.lease.ResourceVersion = strconv.Itoa(s.version)
}

func (s *server) admit(f func(*coordinationv1.Lease)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admission = f
}

func (s *server) state() (holder, epoch string, puts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease.Spec.HolderIdentity != nil {
		holder = *s.lease.Spec.HolderIdentity
	}
	return holder, s.lease.Annotations[EpochAnnotation], s.puts
}

// newFence is of a process whose Lease does not end while it lives, however late that is with renewing it on a busy machine.
func newFence(t *testing.T, url, identity string) *Fence {
	t.Helper()
	f, err := New(Options{Config: &rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Identity: identity,
		Duration: 10 * time.Minute, Period: 100 * time.Millisecond, BatchWrites: 10, BatchTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// unrenewed is a fence that swaps its Lease for writes only.
func unrenewed(f *Fence) *Fence {
	f.o.Period = time.Hour
	return f
}

// leader runs a fence and tells when it leads and when that ended.
type leader struct {
	f      *Fence
	leads  chan context.Context
	result chan error
	stop   func()
}

func lead(t *testing.T, url, identity string) *leader {
	t.Helper()
	return leadWith(t, newFence(t, url, identity))
}

func leadWith(t *testing.T, f *Fence) *leader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &leader{f: f, leads: make(chan context.Context, 8), result: make(chan error, 1), stop: cancel}
	go func() {
		l.result <- l.f.Run(ctx, func(ctx context.Context) error {
			l.leads <- ctx
			<-ctx.Done()
			return nil
		})
	}()
	t.Cleanup(cancel)
	return l
}

func (l *leader) wait(t *testing.T) context.Context {
	t.Helper()
	select {
	case ctx := <-l.leads:
		return ctx
	case <-time.After(time.Minute):
		t.Fatal("does not lead")
		return nil
	}
}

func TestOneLeads(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	a := lead(t, srv.URL, "a")
	a.wait(t)
	b := lead(t, srv.URL, "b")
	if err := b.f.Open(t.Context()); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("b may write though a leads: %v", err)
	}
	a.stop()
	if err := <-a.result; err != nil {
		t.Error(err)
	}
	b.wait(t)
	if holder, epoch, _ := s.state(); holder != "b" || epoch != "2" || b.f.Epoch() != 2 {
		t.Errorf("held by %q in epoch %s", holder, epoch)
	}
}

func TestBatchesShareOneSwap(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	a := leadWith(t, unrenewed(newFence(t, srv.URL, "a")))
	a.wait(t)
	_, _, before := s.state()
	var wait sync.WaitGroup
	for range 100 {
		wait.Go(func() {
			if err := a.f.Open(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if _, _, after := s.state(); after-before > 12 {
		t.Errorf("%d swaps for 100 writes in batches of 10", after-before)
	}
}

// A proof is a swap of its own, also while a batch has room: the API server may be another cluster's since that was opened.
func TestProveSwaps(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	f, err := New(Options{Config: &rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Identity: "a",
		Duration: 2 * time.Minute, Period: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	leadWith(t, f).wait(t)
	_, _, before := s.state()
	if err := f.Prove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, after := s.state(); after != before+1 {
		t.Errorf("%d swaps", after-before)
	}
	elsewhere := "b"
	s.edit(func(x *coordinationv1.Lease) { x.Spec.HolderIdentity = &elsewhere })
	if err := f.Prove(t.Context()); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("the Lease of another cluster: %v", err)
	}
}

// What is opened ahead spares the next write its swap; where there is room nothing is opened, and who does not lead asks
// for nothing.
func TestAhead(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	a := leadWith(t, unrenewed(newFence(t, srv.URL, "a")))
	a.wait(t)
	puts := func() int { _, _, n := s.state(); return n }
	before := puts()
	a.f.Ahead(t.Context())
	a.f.ahead.Wait()
	if puts() != before {
		t.Error("a batch with room was followed by another")
	}
	a.f.mu.Lock()
	a.f.opened = Moment{} // long ago
	a.f.mu.Unlock()
	before = puts()
	a.f.Ahead(t.Context())
	a.f.Ahead(t.Context())
	a.f.ahead.Wait()
	if err := a.f.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := puts() - before; got != 1 {
		t.Errorf("%d swaps, want the one made ahead", got)
	}
	b := newFence(t, srv.URL, "b")
	b.Ahead(t.Context())
	b.ahead.Wait()
	if err := b.Open(t.Context()); !errors.Is(err, fleet.ErrStale) {
		t.Errorf("b may write though a leads: %v", err)
	}
}

func TestLostSwapStopsWrites(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	f := newFence(t, srv.URL, "a")
	f.o.Duration = time.Second // that of the other one ends
	a := leadWith(t, f)
	ctx := a.wait(t)
	s.edit(func(l *coordinationv1.Lease) { l.Labels = map[string]string{"x": "y"} })
	for range 20 {
		if err := a.f.Open(t.Context()); err != nil {
			t.Fatalf("an edit by somebody else is no takeover: %v", err)
		}
	}
	other := "b"
	s.edit(func(l *coordinationv1.Lease) {
		l.Spec.HolderIdentity = &other
		l.Annotations[EpochAnnotation] = "9"
	})
	var err error
	for i := 0; i < 20 && err == nil; i++ {
		err = a.f.Open(t.Context())
	}
	if !errors.Is(err, fleet.ErrStale) {
		t.Errorf("writes go on: %v", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Error("the lead's context goes on")
	}
	if again := a.wait(t); again == nil || a.f.Epoch() != 10 {
		t.Errorf("after the other expired: epoch %d", a.f.Epoch())
	}
}

func TestSameIdentityTwice(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	a := lead(t, srv.URL, "a")
	a.wait(t)
	again := lead(t, srv.URL, "a")
	again.wait(t)
	select {
	case err := <-a.result:
		if !errors.Is(err, fleet.ErrConflict) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("two processes with one identity take turns")
	}
}

func TestUnreachableIsNotLost(t *testing.T) {
	s := &server{}
	var down sync.Map
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, off := down.Load("x"); off {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		s.ServeHTTP(w, r)
	}))
	defer srv.Close()
	a := lead(t, srv.URL, "a")
	ctx := a.wait(t)
	down.Store("x", true)
	var err error
	for i := 0; i < 20 && err == nil; i++ {
		err = a.f.Open(t.Context())
	}
	if !errors.Is(err, fleet.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("%v, lead %v", err, ctx.Err())
	}
	down.Delete("x")
	if err := a.f.Open(t.Context()); err != nil {
		t.Error(err)
	}
}

// Before the Lease is taken somebody else has a word: from which epoch on, and whether at all.
func TestAdmit(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	floor, refusal := uint64(41), error(fleet.ErrUnavailable)
	var asked int
	f, err := New(Options{Config: &rest.Config{Host: srv.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, Identity: "a",
		Period: 10 * time.Millisecond, Admit: func(context.Context) (uint64, error) {
			if asked++; asked < 3 {
				return 0, refusal
			}
			return floor, nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	led := func(context.Context) error {
		if holder, epoch, _ := s.state(); holder != "a" || epoch != strconv.FormatUint(floor+1, 10) || f.Epoch() != floor+1 {
			t.Errorf("held by %q in epoch %s, fence %d", holder, epoch, f.Epoch())
		}
		return nil
	}
	if err := f.Run(t.Context(), led); err != nil || asked != 3 {
		t.Fatalf("%v, asked %d times", err, asked)
	}
	floor = 7 // the Lease knows better
	if err := f.Run(t.Context(), func(context.Context) error {
		if f.Epoch() != 43 {
			t.Errorf("epoch %d", f.Epoch())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	asked, refusal = 0, fleet.Errorf(fleet.ErrPrecondition, "another cluster")
	_, _, before := s.state()
	if err := f.Run(t.Context(), led); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("error %v", err)
	}
	if _, _, after := s.state(); after != before {
		t.Error("the Lease was written all the same")
	}
}

// TestSignsOfTheServer: what holds the Lease hears whether the server does its work, and that its store went back.
func TestSignsOfTheServer(t *testing.T) {
	s := &server{}
	var down atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		s.ServeHTTP(w, r)
	}))
	defer srv.Close()
	signs, back := make(chan error, 1000), make(chan struct{}, 1000)
	f := newFence(t, srv.URL, "a")
	f.o.Heard, f.o.WentBack = func(err error) { signs <- err }, func() { back <- struct{}{} }
	await := func(what string, ok func(error) bool) {
		t.Helper()
		for deadline := time.After(time.Minute); ; {
			select {
			case err := <-signs:
				if ok(err) {
					return
				}
			case <-deadline:
				t.Fatalf("not heard: %s", what)
			}
		}
	}
	l := leadWith(t, f)
	defer l.stop()
	await("life", func(err error) bool { return err == nil })
	down.Store(true)
	await("trouble", func(err error) bool { return apierrors.IsServiceUnavailable(err) })
	down.Store(false)
	await("life again", func(err error) bool { return err == nil })
	s.edit(func(lease *coordinationv1.Lease) { lease.Annotations["by"] = "somebody" })
	await("life after an edit", func(err error) bool { return err == nil })
	select {
	case <-back:
		t.Error("an edit of the Lease is told as a restored store")
	default:
	}
	s.edit(func(lease *coordinationv1.Lease) { lease.Annotations[BatchAnnotation] = "1" })
	select {
	case <-back:
	case <-time.After(time.Minute):
		t.Error("a store that went back is not told")
	}
	await("life after the store went back", func(err error) bool { return err == nil })
}
