package engine

import (
	"context"
	"testing"
	"time"

	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/pkg/testkit/steptest"
)

// A clock that is put back must not keep the read model from being asked how far it is: who says hello waits for that.
func TestClockThatIsPutBackHoldsNoBarrier(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	b, err := etcd.Open(ctx, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(ctx, b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for i, by := range []time.Duration{0, -24 * time.Hour} {
		s.clock = func() time.Time { return steptest.Clocks(time.Now(), by) }
		if _, err := s.Blobs().Put(ctx, []byte{byte(i)}); err != nil { // changes no record
			t.Fatal(err)
		}
		bounded, stop := context.WithTimeout(ctx, time.Minute)
		if _, err := s.Barrier(bounded); err != nil {
			t.Errorf("clock set by %s: %v", by, err)
		}
		stop()
	}
}
