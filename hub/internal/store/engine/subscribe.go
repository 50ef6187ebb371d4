package engine

import (
	"slices"
	"sync/atomic"

	"towline.dev/towline/pkg/dirty"
)

// subscription is one reader's set of dirty keys.
type subscription struct {
	model    *model
	prefixes []string
	keys     *dirty.Set[string]
	revision atomic.Int64
}

func newSubscription(m *model, prefixes []string) *subscription {
	s := &subscription{model: m, prefixes: slices.Clone(prefixes), keys: dirty.New[string]()}
	s.revision.Store(m.snapshot().revision)
	return s
}

func (s *subscription) C() <-chan struct{} { return s.keys.C() }

func (s *subscription) Take() ([]string, int64) {
	keys := s.keys.Take()
	slices.Sort(keys)
	return keys, s.revision.Load()
}

func (s *subscription) Stop() {
	s.model.unsubscribe(s)
	s.keys.Close()
}

// subscribers finds the subscriptions that a key concerns in one look-up for each length of prefix in use, so that ten
// thousand sessions with a prefix each cost a change no more than one.
type subscribers struct {
	byPrefix map[string]map[*subscription]struct{}
	lengths  map[int]int // how many prefixes have it
}

func newSubscribers() subscribers {
	return subscribers{byPrefix: make(map[string]map[*subscription]struct{}), lengths: make(map[int]int)}
}

func (s *subscribers) add(sub *subscription) {
	for _, p := range sub.prefixes {
		set, ok := s.byPrefix[p]
		if !ok {
			set = make(map[*subscription]struct{})
			s.byPrefix[p] = set
			s.lengths[len(p)]++
		}
		set[sub] = struct{}{}
	}
}

func (s *subscribers) remove(sub *subscription) {
	for _, p := range sub.prefixes {
		set, ok := s.byPrefix[p]
		if !ok {
			continue
		}
		delete(set, sub)
		if len(set) > 0 {
			continue
		}
		delete(s.byPrefix, p)
		if s.lengths[len(p)]--; s.lengths[len(p)] == 0 {
			delete(s.lengths, len(p))
		}
	}
}

// mark tells the subscriptions that the key has changed. The revision is set before the key can be taken.
func (s *subscribers) mark(key string, revision int64) {
	for n := range s.lengths {
		if n > len(key) {
			continue
		}
		for sub := range s.byPrefix[key[:n]] {
			sub.revision.Store(revision)
			sub.keys.Mark(key)
		}
	}
}

func (s *subscribers) close() {
	for _, set := range s.byPrefix {
		for sub := range set {
			sub.keys.Close()
		}
	}
}
