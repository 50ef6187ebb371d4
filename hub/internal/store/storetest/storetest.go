// Package storetest is what a store must do on every backend, as tests that each backend runs. It owns the contract's examples;
// it must not know how a backend keeps its data.
package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
)

// Opener opens an empty backend. The store that a test opens on it closes it.
type Opener func(t testing.TB) backend.Backend

// Run runs the suite.
func Run(t *testing.T, open Opener) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Opener)
	}{
		{"View", testView},
		{"Update", testUpdate},
		{"Conflict", testConflict},
		{"Unchanged", testUnchanged},
		{"DeletesWhatComes", testDeletesWhatComes},
		{"Fence", testFence},
		{"Owners", testOwners},
		{"Batch", testBatch},
		{"Subscribe", testSubscribe},
		{"Feed", testFeed},
		{"Corrupt", testCorrupt},
		{"LostAnswer", testLostAnswer},
		{"GivenUp", testGivenUp},
		{"Recovery", testRecovery},
		{"Forgotten", testForgotten},
		{"BrokenWatch", testBrokenWatch},
		{"Shown", testShown},
		{"Blobs", testBlobs},
		{"Collect", testCollect},
		{"Stream", testStream},
		{"Keep", testKeep},
		{"Campaign", testCampaign},
		{"Close", testClose},
		{"Model", testModel},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open) })
	}
}

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func opened(t testing.TB, b backend.Backend, o engine.Options) *Store {
	t.Helper()
	return On(t, b, o)
}

func counter(n uint64) *storev1.Counter { return &storev1.Counter{Value: n} }

// key is where counters live.
func key(format string, args ...any) string { return store.GuardPrefix + fmt.Sprintf(format, args...) }

func put(t testing.TB, s store.Store, key string, value proto.Message) int64 {
	t.Helper()
	rev, err := s.Update(timeout(t), func(w store.Writer) error {
		w.Put(key, value)
		return nil
	})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return rev
}

// read returns the counter under the key, and whether it is there, at the revision or later.
func read(t testing.TB, s store.Store, rev int64, key string) (uint64, bool) {
	t.Helper()
	var n uint64
	var there bool
	err := s.View(timeout(t), rev, func(r store.Reader) error {
		var c *storev1.Counter
		c, _, there = store.Get[*storev1.Counter](r, key)
		n = c.GetValue()
		return nil
	})
	if err != nil {
		t.Fatalf("read %s: %v", key, err)
	}
	return n, there
}

func expect(t testing.TB, s store.Store, rev int64, key string, want uint64) {
	t.Helper()
	if got, there := read(t, s, rev, key); !there || got != want {
		t.Fatalf("%s is %d (there: %v), want %d", key, got, there, want)
	}
}

// increment adds one to a counter.
func increment(key string) func(store.Writer) error {
	return func(w store.Writer) error {
		c, _, _ := store.Get[*storev1.Counter](w, key)
		w.Put(key, counter(c.GetValue()+1))
		return nil
	}
}

// await waits for the subscription's signal.
func await(t testing.TB, sub store.Subscription) ([]string, int64) {
	t.Helper()
	select {
	case <-sub.C():
	case <-time.After(patience):
		t.Fatal("no signal")
	}
	return sub.Take()
}
