package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

func TestMemory(t *testing.T) {
	storetest.Run(t, func(testing.TB) backend.Backend { return memory.New() })
}

func put(t *testing.T, s store.Store, key string, n uint64) int64 {
	t.Helper()
	rev, err := s.Update(t.Context(), func(w store.Writer) error {
		w.Put(key, &storev1.Counter{Value: n})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func read(t *testing.T, s store.Store, rev int64, key string) uint64 {
	t.Helper()
	var n uint64
	if err := s.View(t.Context(), rev, func(r store.Reader) error {
		c, _, _ := store.Get[*storev1.Counter](r, key)
		n = c.GetValue()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMemoryInVirtualTime needs the store to be quiet when nothing happens, and to end with its bubble.
func TestMemoryInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := memory.New()
		var hubs []*storetest.Store
		for range 2 {
			hubs = append(hubs, storetest.On(t, shared, engine.Options{}))
		}
		sub := hubs[1].Subscribe(nil, "meta/uid/")
		rev := put(t, hubs[0], "meta/uid/n", 3)
		<-sub.C()
		if n := read(t, hubs[1], rev, "meta/uid/n"); n != 3 {
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
		if err := hubs[1].Close(); err != nil {
			t.Error(err)
		}
	})
}
