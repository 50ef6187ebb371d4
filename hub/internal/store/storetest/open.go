package storetest

import (
	"context"
	"testing"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
)

// Store is an engine on which a test may write everything; As gives out what a part of the hub gets of it.
type Store struct{ *engine.Engine }

var _ store.Store = (*Store)(nil)

// Update is that of everyone.
func (s *Store) Update(ctx context.Context, fn func(store.Writer) error) (int64, error) {
	return s.As(store.Everyone).Update(ctx, fn)
}

// Batch is that of everyone.
func (s *Store) Batch(ctx context.Context, fence store.Fence, ops []store.Op) (int64, error) {
	return s.As(store.Everyone).Batch(ctx, fence, ops)
}

// New is an empty store in memory, until the test ends.
func New(t testing.TB) *Store {
	t.Helper()
	return On(t, memory.New(), engine.Options{})
}

// On is the store on a backend, until the test ends.
func On(t testing.TB, b backend.Backend, o engine.Options) *Store {
	t.Helper()
	e, err := engine.Open(timeout(t), b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &Store{e}
}

// All is what a part's store stands on, with every right: for what a test makes beside the part.
func All(s store.Store) store.Store {
	return s.(interface {
		As(owner store.Owner) store.Store
	}).As(store.Everyone)
}
