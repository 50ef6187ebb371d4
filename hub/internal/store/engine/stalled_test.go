package engine

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
)

// stalling is a backend behind something that keeps its connections open and passes nothing on: all the watches that are open when it stalls
// say nothing more, and are not ended.
type stalling struct {
	backend.Backend
	watches atomic.Int64
	stalled atomic.Int64 // of the watches, by their number, the last that says nothing more
	deaf    atomic.Bool  // nobody answers requests for progress
}

func (b *stalling) stall() { b.stalled.Store(b.watches.Load()) }

func (b *stalling) Watch(ctx context.Context, prefix string, from int64, fn func(backend.Changes)) error {
	n := b.watches.Add(1)
	return b.Backend.Watch(ctx, prefix, from, func(c backend.Changes) {
		if b.stalled.Load() < n && (!b.deaf.Load() || len(c.List) > 0) {
			fn(c)
		}
	})
}

func openStalling(t *testing.T, deaf bool) (*stalling, *Engine) {
	t.Helper()
	b := &stalling{Backend: memory.New()}
	b.deaf.Store(deaf)
	e, err := Open(t.Context(), b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	synctest.Wait()
	return b, e
}

func setTo(ctx context.Context, e *Engine, n uint64) (int64, error) {
	return e.As(store.Everyone).Update(ctx, func(w store.Writer) error {
		w.Put("meta/uid/n", &storev1.Counter{Value: n})
		return nil
	})
}

// A watch that says nothing more, and is not cut, keeps nobody waiting for good: it is begun anew where it was, so that nothing is missed and what
// became of a commit can still be told.
func TestWatchThatStallsIsBegunAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := openStalling(t, false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b.stall()
		rev, err := setTo(ctx, e, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.View(ctx, rev, func(r store.Reader) error {
			if c, _, _ := store.Get[*storev1.Counter](r, "meta/uid/n"); c.GetValue() != 1 {
				t.Errorf("it reads %v", c)
			}
			return nil
		}); err != nil {
			t.Error("who waits for what was written:", err)
		}
		if n := e.Stats().Relists; n != 0 {
			t.Errorf("all was listed %d times for it", n)
		}
	})
}

// A hub that waits for nothing notices as well: else it would show people, and send agents, what was.
func TestWatchThatStallsIsNoticedByNobodyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := openStalling(t, false)
		other, err := Open(t.Context(), &stalling{Backend: unclosed{b.Backend}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Close() }()
		sub := e.Subscribe(nil, "meta/")
		defer sub.Stop()
		b.stall()
		if _, err := setTo(t.Context(), other, 1); err != nil {
			t.Fatal(err)
		}
		select {
		case <-sub.C():
		case <-time.After(time.Minute):
			t.Error("what another hub wrote is not seen")
		}
	})
}

// Where nobody answers how far a watch is, as etcd's own gRPC proxy does not, what changes no record is found out by a list.
func TestWatchThatSaysNotHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, e := openStalling(t, true)
		for n := range uint64(3) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			if _, err := setTo(ctx, e, n); err != nil {
				t.Fatal(err)
			}
			if _, err := e.Blobs().Put(ctx, []byte{byte(n)}); err != nil {
				t.Fatal(err)
			}
			if _, err := e.Barrier(ctx); err != nil {
				t.Error("who waits for all that there is:", err)
			}
			cancel()
		}
	})
}

// That a new watch was of no use once, as while its server was too busy to answer, does not count for good: of a large store a list is dear.
func TestNewWatchIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := openStalling(t, true)
		if _, err := e.Blobs().Put(t.Context(), []byte("blob")); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		b.deaf.Store(false)
		<-time.After(2 * time.Hour)
		before := e.Stats().Relists
		b.stall()
		if rev, err := setTo(t.Context(), e, 1); err != nil || e.View(t.Context(), rev, func(store.Reader) error { return nil }) != nil {
			t.Fatal(rev, err)
		}
		if before == 0 || e.Stats().Relists != before {
			t.Errorf("all was listed %d times before, and %d times after", before, e.Stats().Relists)
		}
	})
}

// While all is as it should be nothing is begun anew, however long that lasts.
func TestQuietWatchIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, e := openStalling(t, false)
		if _, err := setTo(t.Context(), e, 1); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if n := b.watches.Load(); n != 1 || e.Stats().Relists != 0 {
			t.Errorf("%d watches, %d lists", n, e.Stats().Relists)
		}
	})
}

// A hub that waits for nothing notices as well that its store is another one by now: of that no watch tells.
func TestStoreThatWentBackEndsByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &restored{Backend: memory.New()}
		e, err := Open(t.Context(), b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		if _, err := setTo(t.Context(), e, 1); err != nil {
			t.Fatal(err)
		}
		sub := e.Subscribe(nil, "meta/")
		defer sub.Stop()
		older := memory.New()
		defer func() { _ = older.Close() }()
		b.older.Store(&older)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ends(ctx, t, sub)
	})
}
