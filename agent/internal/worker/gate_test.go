package worker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// leaseFence is a fence that a test ends.
type leaseFence struct {
	openFence
	opened  atomic.Int64
	refuse  atomic.Bool // to open
	gone    atomic.Bool // found by Check only
	covered context.Context
}

func (f *leaseFence) Open(context.Context) error {
	if f.opened.Add(1); f.refuse.Load() {
		return fleet.Errorf(fleet.ErrStale, "the lease is held by b")
	}
	return nil
}

func (f *leaseFence) Check() error {
	if f.gone.Load() {
		return fleet.Errorf(fleet.ErrStale, "the lease may be another's by now")
	}
	return nil
}

func (f *leaseFence) Covered() context.Context { return f.covered }

// busy answers the first write with "come again in a second".
type busy struct {
	requests atomic.Int64
	first    func()
	hang     bool
}

func (b *busy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // only then does the server see that the client has gone
	n := b.requests.Add(1)
	if n == 1 && b.first != nil {
		b.first()
	}
	if b.hang {
		<-r.Context().Done()
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if n > 1 {
		_, _ = w.Write([]byte(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","uid":"uid-a"}}`))
		return
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests) // as API servers say it
}

func gated(t *testing.T, b *busy, f Fence) func(context.Context) error {
	t.Helper()
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	store := newMemory()
	m, err := New(Options{Config: &rest.Config{Host: server.URL}, Contents: store, State: store, HubID: "h", ClusterUID: "u",
		Report: func(fleet.SyncStatus) {}, Fence: f})
	if err != nil {
		t.Fatal(err)
	}
	res := apply.Resource{GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Kind: "ConfigMap", Namespaced: true}
	return func(ctx context.Context) error {
		return m.write(ctx, func(ctx context.Context) error {
			_, err := m.client.Apply(ctx, res, "default", "a", []byte(`{}`), apply.ApplyOptions{})
			return err
		})
	}
}

// A busy server is asked again, but not before the fence was.
func TestBusyServerIsAskedAgainBehindTheFence(t *testing.T) {
	f := &leaseFence{covered: context.Background()}
	b := &busy{}
	if err := gated(t, b, f)(t.Context()); err != nil || b.requests.Load() != 2 || f.opened.Load() != 2 {
		t.Errorf("%v, %d requests, fence opened %d times", err, b.requests.Load(), f.opened.Load())
	}
	f = &leaseFence{covered: context.Background()}
	b = &busy{first: func() { f.refuse.Store(true) }}
	err := gated(t, b, f)(t.Context())
	if !errors.Is(err, fleet.ErrStale) || b.requests.Load() != 1 {
		t.Errorf("the lease was lost while the server was busy: %v, %d requests", err, b.requests.Load())
	}
}

// A process that stood still after it was let through sends nothing.
func TestRequestIsCheckedRightBeforeItIsSent(t *testing.T) {
	f := &leaseFence{covered: context.Background()}
	f.gone.Store(true)
	b := &busy{}
	err := gated(t, b, f)(t.Context())
	var why *apply.Failure
	if !errors.As(err, &why) || why.Reason != "NotLeader" || b.requests.Load() != 0 {
		t.Errorf("%v, %d requests", err, b.requests.Load())
	}
}

// A request under way ends when the fence does not cover it any more.
func TestRequestEndsWithTheFence(t *testing.T) {
	covered, lapse := context.WithCancelCause(context.Background())
	f := &leaseFence{covered: covered}
	b := &busy{hang: true, first: func() { lapse(fleet.Errorf(fleet.ErrStale, "the lease was not renewed")) }}
	err := gated(t, b, f)(t.Context())
	var why *apply.Failure
	if !errors.As(err, &why) || why.Reason != "NotLeader" || !why.Transient {
		t.Errorf("%v", err)
	}
}
