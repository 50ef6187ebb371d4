package store

import (
	"context"
	"testing"
	"time"
	"unsafe"
)

// stepped is a reading of a machine's clocks after the one that people see was set: the other goes on as it did.
func stepped(t time.Time, by time.Duration) time.Time {
	const monotonic = 1 << 63
	raw := (*struct {
		wall uint64 // bit 63: with a monotonic reading; then 33 bits of seconds and 30 of nanoseconds
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&t))
	if raw.wall&monotonic == 0 {
		panic("the time has no monotonic reading")
	}
	raw.wall = uint64(int64(raw.wall) + int64(by/time.Second)<<30)
	return t
}

// A clock that is put back must not keep the read model from being asked how far it is: who says hello waits for that.
func TestClockThatIsPutBackHoldsNoBarrier(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	opened, err := OpenEtcd(ctx, EtcdOptions{Dir: t.TempDir(), UnsafeNoFsync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = opened.Close() }()
	s := opened.(*engine)
	for i, by := range []time.Duration{0, -24 * time.Hour} {
		s.clock = func() time.Time { return stepped(time.Now(), by) }
		if _, err := s.Blobs().Put(ctx, []byte{byte(i)}); err != nil { // changes no record
			t.Fatal(err)
		}
		bounded, stop := context.WithTimeout(ctx, 5*time.Second)
		if _, err := s.Barrier(bounded); err != nil {
			t.Errorf("clock set by %s: %v", by, err)
		}
		stop()
	}
}
