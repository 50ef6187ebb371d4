package store_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
)

func openMemory(t testing.TB, o store.Options) store.Store {
	t.Helper()
	s, err := store.NewMemory(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func openEtcd(t testing.TB, o store.Options) store.Store {
	t.Helper()
	return openDir(t, store.EtcdOptions{Options: o, Dir: t.TempDir(), UnsafeNoFsync: true})
}

func openDir(t testing.TB, o store.EtcdOptions) store.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := store.OpenEtcd(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMemory(t *testing.T) { storetest.Run(t, openMemory) }

func TestEtcd(t *testing.T) { storetest.Run(t, openEtcd) }

// TestMemoryInVirtualTime needs the store to be quiet when nothing happens, and to end with its bubble.
func TestMemoryInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		backend := store.NewMemoryBackend()
		var hubs []store.Store
		for range 2 {
			s, err := store.Open(t.Context(), backend, store.Options{})
			if err != nil {
				t.Fatal(err)
			}
			hubs = append(hubs, s)
		}
		sub := hubs[1].Subscribe(nil, "meta/")
		rev := count(t, hubs[0], "meta/n", 3)
		<-sub.C()
		if n := counted(t, hubs[1], rev, "meta/n"); n != 3 {
			t.Errorf("the other hub reads %d", n)
		}
		if _, err := hubs[0].Blobs().Put(t.Context(), []byte("blob")); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := hubs[1].Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		first, err := hubs[0].Campaign(t.Context(), store.Candidate{Instance: "control"})
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- hubs[0].Close() }()
		next, err := hubs[1].Campaign(t.Context(), store.Candidate{Instance: "control"})
		if err != nil {
			t.Fatal(err)
		}
		<-first.Lost()
		if first.Fence() == next.Fence() {
			t.Error("two leaders have one fence")
		}
		if took := time.Since(start); took > time.Second {
			t.Errorf("a barrier and a change of leaders took %v", took)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		shut(t, hubs[1])
	})
}
