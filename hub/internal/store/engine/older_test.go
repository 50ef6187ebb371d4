package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// restored is a backend in whose place another one is put, as when an etcd is restored from a copy under a running hub. The
// watch of the one before says nothing more.
type restored struct {
	backend.Backend
	older atomic.Pointer[backend.Backend]
}

func (b *restored) now() backend.Backend {
	if older := b.older.Load(); older != nil {
		return *older
	}
	return b.Backend
}

func (b *restored) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	return b.now().Commit(ctx, parts)
}

func (b *restored) Get(ctx context.Context, revision int64, keys ...string) (map[string]backend.KV, int64, error) {
	return b.now().Get(ctx, revision, keys...)
}

func (b *restored) Range(ctx context.Context, q backend.RangeQuery) (backend.Page, error) {
	return b.now().Range(ctx, q)
}

func (b *restored) Revision(ctx context.Context) (int64, error) { return b.now().Revision(ctx) }

// openRestored is a store on such a backend, for half a minute.
func openRestored(t *testing.T) (context.Context, *restored, *Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	b := &restored{Backend: memory.New()}
	e, err := Open(ctx, b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return ctx, b, e
}

// ends waits for the end of the store that a subscription is of.
func ends(ctx context.Context, t *testing.T, sub store.Subscription) {
	t.Helper()
	for open := true; open; {
		select {
		case _, open = <-sub.C():
		case <-ctx.Done():
			t.Fatal("it goes on")
		}
	}
}

// A store in whose place an older copy is put ends, whoever notices it first: what waits for revisions that never come fails
// instead of waiting, and nothing is read of two stores at once.
func TestStoreThatWentBackEnds(t *testing.T) {
	fence := store.Fence{Key: "meta/uid/fence", CreateRevision: 1 << 40}
	for name, notice := range map[string]func(context.Context, *Engine) error{
		"barrier": func(ctx context.Context, e *Engine) error { _, err := e.Barrier(ctx); return err },
		"update": func(ctx context.Context, e *Engine) error {
			_, err := e.As(store.Everyone).Update(ctx, func(w store.Writer) error {
				w.Put("meta/uid/new", &storev1.Counter{Value: 1})
				return nil
			})
			return err
		},
		"batch": func(ctx context.Context, e *Engine) error {
			_, err := e.As(store.Everyone).Batch(ctx, fence, []store.Op{{Key: "meta/uid/new", Value: &storev1.Counter{Value: 1}}})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, b, e := openRestored(t)
			older := memory.New()
			defer func() { _ = older.Close() }()
			for n := range uint64(10) {
				if _, err := e.As(store.Everyone).Update(ctx, func(w store.Writer) error {
					w.Put("meta/uid/n", &storev1.Counter{Value: n})
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := e.Barrier(ctx); err != nil {
				t.Fatal(err)
			}
			sub := e.Subscribe(nil, "meta/")
			defer sub.Stop()
			b.older.Store(&older)
			_ = notice(ctx, e) // it may succeed: the older one has taken it
			ends(ctx, t, sub)
			if err := e.View(ctx, 1<<40, func(store.Reader) error { return nil }); !errors.Is(err, fleet.ErrUnavailable) || ctx.Err() != nil {
				t.Errorf("who waits for what never comes: %v", err)
			}
			if _, err := e.As(store.Everyone).Update(ctx, func(w store.Writer) error { w.Delete("meta/uid/n"); return nil }); !errors.Is(err, fleet.ErrUnavailable) || ctx.Err() != nil {
				t.Errorf("an update of what the store was: %v", err)
			}
		})
	}
}

// A store in whose place another one is put is not taken for it because that has come as far meanwhile: what its own records say
// counts, not only how many changes it has seen.
func TestAnotherStoreThatCameAsFarEnds(t *testing.T) {
	count := func(ctx context.Context, e *Engine, key string, n uint64) {
		t.Helper()
		if _, err := e.As(store.Everyone).Update(ctx, func(w store.Writer) error {
			w.Put(key, &storev1.Counter{Value: n})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for name, key := range map[string]string{"an older copy": "meta/uid/n", "an empty one": "meta/uid/other"} {
		t.Run(name, func(t *testing.T) {
			ctx, b, e := openRestored(t)
			older := memory.New()
			defer func() { _ = older.Close() }()
			if _, err := e.As(store.Hub).Update(ctx, func(w store.Writer) error { w.Put(store.HubKey, &storev1.Hub{HubId: "h"}); return nil }); err != nil {
				t.Fatal(err)
			}
			for n := range uint64(10) {
				count(ctx, e, "meta/uid/n", n)
			}
			other, err := Open(ctx, older, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close() }()
			count(ctx, other, key, 1)
			for n := range uint64(20) {
				count(ctx, other, "meta/uid/more", n)
			}
			sub := e.Subscribe(nil, "meta/")
			defer sub.Stop()
			b.older.Store(&older)
			e.askRelist() // as when the watch breaks
			ends(ctx, t, sub)
		})
	}
}
