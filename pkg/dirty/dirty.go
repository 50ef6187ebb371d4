// Package dirty is a set of keys that wait for someone to look at them: what waits for a slow reader is a key, never a
// queue of payloads. It owns the coalescing and the wake-up; it must not know what the keys stand for.
package dirty

import "sync"

// Set is a latest-wins set of keys with a one-slot signal. All methods are safe for concurrent use and none blocks.
type Set[K comparable] struct {
	mu     sync.Mutex
	keys   map[K]struct{}
	signal chan struct{}
	closed bool
}

// New returns an empty set.
func New[K comparable]() *Set[K] {
	return &Set[K]{keys: make(map[K]struct{}), signal: make(chan struct{}, 1)}
}

// Mark adds keys and wakes the reader. After Close it does nothing.
func (s *Set[K]) Mark(keys ...K) {
	if len(keys) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for _, k := range keys {
		s.keys[k] = struct{}{}
	}
	Poke(s.signal)
}

// Poke puts a wake-up into a channel with one slot, unless one is in it already.
func Poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Take returns the keys in no order and empties the set.
func (s *Set[K]) Take() []K {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.keys) == 0 {
		return nil
	}
	out := make([]K, 0, len(s.keys))
	for k := range s.keys {
		out = append(out, k)
	}
	if len(out) > shrinkAbove {
		s.keys = make(map[K]struct{})
		return out
	}
	clear(s.keys)
	return out
}

// shrinkAbove is the size from which Take lets go of the map, so that one burst does not stay in memory.
const shrinkAbove = 64

// Len is the number of keys that wait.
func (s *Set[K]) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}

// C carries a wake-up when keys were marked since the last one was received. It is closed by Close.
func (s *Set[K]) C() <-chan struct{} { return s.signal }

// Close ends the set and its channel; keys that are in it can still be taken. Closing twice is no error.
func (s *Set[K]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	close(s.signal)
}
