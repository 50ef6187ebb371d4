package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However many ask whether a process is ready, it finds that out once at a time, for as long as it may take and no longer; a panic is no answer
// that it is.
func TestReadinessIsFoundOutOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		panics := false
		x := &readiness{of: Process{Log: slog.New(slog.DiscardHandler), Ready: func(ctx context.Context) error {
			if panics {
				panic("broken")
			}
			asked.Add(1)
			<-ctx.Done()
			return errors.New("the store does not answer")
		}}}
		began := time.Now()
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if x.ask(t.Context()) {
					t.Error("ready")
				}
			})
		}
		wg.Wait()
		if n, took := asked.Load(), time.Since(began); n != 1 || took != ReadyPatience {
			t.Errorf("asked %d times, for %s", n, took)
		}
		panics = true
		if x.ask(t.Context()) {
			t.Error("ready by a panic")
		}
	})
}
