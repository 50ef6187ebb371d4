package store

import (
	"context"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// seats are the leaderships of a backend that only this process uses: a slot in memory says who leads, and a key that is
// made anew for each leader carries the fence.
type seats struct {
	mu    sync.Mutex
	slots map[string]chan struct{}
}

func newSeats() *seats { return &seats{slots: make(map[string]chan struct{})} }

func (s *seats) slot(key string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.slots[key]
	if !ok {
		c = make(chan struct{}, 1)
		s.slots[key] = c
	}
	return c
}

// committer is the part of a Backend that a seat needs.
type committer interface {
	Commit(ctx context.Context, parts []Part) (int64, []bool, error)
}

const holderKey = "/holder"

// holder reads the key of a seat.
func holder(ctx context.Context, b Backend, prefix string) ([]byte, bool, error) {
	found, _, err := b.Get(ctx, 0, prefix+holderKey)
	kv, ok := found[prefix+holderKey]
	return kv.Value, ok && err == nil, err
}

func (s *seats) elect(ctx context.Context, b committer, prefix string, value []byte) (Leadership, error) {
	key := prefix + holderKey
	slot := s.slot(key)
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return nil, unavailable(ctx.Err())
	}
	rev, err := takeSeat(ctx, b, key, value)
	if err != nil {
		<-slot
		return nil, err
	}
	return &seat{backend: b, key: key, rev: rev, slot: slot, lost: make(chan struct{})}, nil
}

// takeSeat deletes the key and makes it again, so that it has a new create revision.
func takeSeat(ctx context.Context, b committer, key string, value []byte) (int64, error) {
	if _, _, err := b.Commit(ctx, []Part{{Then: []RawOp{{Key: key, Delete: true}}}}); err != nil {
		return 0, err
	}
	rev, made, err := b.Commit(ctx, []Part{{
		If:   []Compare{{Key: key, Created: true}},
		Then: []RawOp{{Key: key, Value: value}},
	}})
	if err != nil {
		return 0, err
	}
	if !made[0] {
		return 0, fleet.Errorf(fleet.ErrUnavailable, "leadership %s: taken by another process", key)
	}
	return rev, nil
}

type seat struct {
	backend committer
	key     string
	rev     int64
	slot    chan struct{}
	once    sync.Once
	lost    chan struct{}
}

func (s *seat) Fence() Fence          { return Fence{Key: s.key, CreateRevision: s.rev} }
func (s *seat) Lost() <-chan struct{} { return s.lost }

func (s *seat) Resign(ctx context.Context) error {
	var err error
	s.once.Do(func() {
		_, _, err = s.backend.Commit(ctx, []Part{{
			If:   []Compare{{Key: s.key, Created: true, Revision: s.rev}},
			Then: []RawOp{{Key: s.key, Delete: true}},
		}})
		close(s.lost)
		<-s.slot
	})
	return err
}

// leadership is a backend's leadership in the words of the store: logical keys, and lost when the store closes.
type leadership struct {
	inner Leadership
	fence Fence
	lost  chan struct{}
	stop  func()
}

func (l *leadership) Fence() Fence          { return l.fence }
func (l *leadership) Lost() <-chan struct{} { return l.lost }

func (l *leadership) Resign(ctx context.Context) error {
	l.stop()
	return l.inner.Resign(ctx)
}
