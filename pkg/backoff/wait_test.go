package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/pkg/backoff"
)

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := backoff.Wait(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if err := backoff.Wait(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped meanwhile: %v", err)
		}
		if err := backoff.Wait(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped before: %v", err)
		}
	})
}
