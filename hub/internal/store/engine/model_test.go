package engine

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"

	"towline.dev/towline/hub/internal/store"
)

func version(key string, revision int64) step {
	return step{key: key, revision: revision, rec: &record{Entry: store.Entry{Key: key, ModRevision: revision}}}
}

// A look-up under a snapshot finds what the snapshot has, whatever has changed since, and while it changes.
func TestLookUpIsOfItsSnapshot(t *testing.T) {
	m := newModel(slog.New(slog.DiscardHandler), nil)
	random := rand.New(rand.NewPCG(1, 2))
	key := func(n int) string { return fmt.Sprint("floors/", n) }
	kept := make(chan *snapshot, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var held []*snapshot
		for s := range kept {
			held = append(held[max(0, len(held)-20):], s)
			for _, s := range held {
				for n := range 12 {
					want, _ := s.tree.Get(item{key: key(n)})
					if got := s.find(key(n)); got != want.record {
						t.Errorf("%s at revision %d: %+v, want %+v", key(n), s.revision, got, want.record)
					}
				}
			}
		}
	}()
	for revision := int64(1); revision < 2000; revision++ {
		var steps []step
		for range 1 + random.IntN(3) {
			if s := version(key(random.IntN(12)), revision); random.IntN(3) > 0 {
				steps = append(steps, s)
			} else {
				steps = append(steps, step{key: s.key, revision: revision})
			}
		}
		m.mu.Lock()
		m.advance(steps, revision)
		m.mu.Unlock()
		kept <- m.snapshot()
	}
	close(kept)
	<-done
}

// BenchmarkLookUp finds records one cluster after the other, among as many as 1,000 clusters with 200 modules have.
func BenchmarkLookUp(b *testing.B) {
	m := newModel(slog.New(slog.DiscardHandler), nil)
	key := func(c, n int) string { return fmt.Sprintf("desired/cluster-%04d/default/module-%03d", c, n) }
	for n := range 200 {
		var steps []step
		for c := range 1000 {
			steps = append(steps, version(key(c, n), 1))
		}
		m.advance(steps, 1)
	}
	keys := make([]string, 1000)
	for c := range keys {
		keys[c] = key(c, 77)
	}
	s, i := m.snapshot(), 0
	for b.Loop() {
		if i++; s.find(keys[i%len(keys)]) == nil {
			b.Fatal("not found")
		}
	}
}
