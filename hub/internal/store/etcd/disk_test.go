package etcd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/etcd"
	"towline.dev/towline/pkg/fleet"
)

// Before the disk is so full that etcd ends the process, what makes the store larger is refused with what to do; the rest goes on,
// and all of it when there is room again.
func TestDiskThatIsNearlyFull(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 40)
	s := openDir(t, etcd.Options{Dir: t.TempDir(), UnsafeNoFsync: true, DiskFree: func(string) (int64, bool) { return free.Load(), true }})
	defer shut(t, s)
	put := func(ctx context.Context) error { _, err := s.Blobs().Put(ctx, noise(1000)); return err }
	if err := put(within(t)); err != nil {
		t.Fatal(err)
	}
	free.Store(10 << 20)
	ctx := within(t)
	var err error
	for err == nil && ctx.Err() == nil { // until the disk is looked at again
		err = put(ctx)
	}
	if !errors.Is(err, fleet.ErrExhausted) || !strings.Contains(err.Error(), "10 MiB are free") || !strings.Contains(err.Error(), "make room there") {
		t.Errorf("a nearly full disk: %v", err)
	}
	if _, err := s.Update(within(t), func(w store.Writer) error {
		w.Put(store.SessionKey("c1"), &storev1.SessionRecord{Epoch: 2})
		return nil
	}); err != nil {
		t.Errorf("a session: %v", err)
	}
	free.Store(1 << 40)
	untilFree(t, put)
}

// A start that fails for etcd cannot make its files is an error that says what to do.
func TestStartOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "etcd", "member"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := etcd.Open(within(t), etcd.Options{Dir: dir, UnsafeNoFsync: true, DiskFree: func(string) (int64, bool) { return 3 << 20, true }})
	if err == nil || !strings.Contains(err.Error(), "3 MiB free: make room there") {
		t.Errorf("it started, or says: %v", err)
	}
}
