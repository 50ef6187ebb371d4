package fence

import (
	"context"
	"errors"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Two processes with a copy of one state, each of which is started again when it ends, do not take the Lease from each other without
// end, and say that there are two.
func TestTwinsTakeTurnsSlowly(t *testing.T) {
	const tenure = 2 * time.Second
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var took, told atomic.Int64
	turns := make(chan struct{}, 1000)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range 2 {
		running.Go(func() {
			for ctx.Err() == nil {
				f := newFence(t, srv.URL, "a")
				f.o.Duration, f.o.MinTenure, f.o.Twin = time.Second, tenure, func() { told.Add(1) }
				err := f.Run(ctx, func(ctx context.Context) error {
					took.Add(1)
					turns <- struct{}{}
					<-ctx.Done()
					return nil
				})
				if err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrConflict) {
					t.Error(err)
				}
			}
		})
	}
	<-turns
	<-turns
	began, before := time.Now(), took.Load()
	<-time.After(3 * tenure)
	if n, most := took.Load()-before, int64(time.Since(began)/tenure)+1; n > most {
		t.Errorf("%d turns in %s, want at most one in %s", n, time.Since(began), tenure)
	}
	if told.Load() == 0 {
		t.Error("nobody is told that there are two")
	}
}

// A process that began anew has its Lease at once.
func TestRestartTakesTheLeaseAtOnce(t *testing.T) {
	s := &server{}
	srv := httptest.NewServer(s)
	defer srv.Close()
	dead := newFence(t, srv.URL, "a")
	if err := dead.acquire(t.Context()); err != nil { // it is killed: nothing is given back
		t.Fatal(err)
	}
	again := newFence(t, srv.URL, "a")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := again.acquire(ctx); err != nil || again.Epoch() != 2 {
		t.Errorf("epoch %d: %v", again.Epoch(), err)
	}
}
