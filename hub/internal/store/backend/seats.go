package backend

import (
	"context"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// Leadership is the right to lead, as a backend gives it out.
type Leadership interface {
	// Fence holds as long as nobody else leads.
	Fence() Compare
	// Lost is closed when it is lost.
	Lost() <-chan struct{}
	// Resign gives it up.
	Resign(ctx context.Context) error
}

// Seats holds the leader elections of a backend that is private to this process: a slot in memory says who leads, and a
// key that is made anew for each leader carries the fence.
type Seats struct {
	mu    sync.Mutex
	slots map[string]chan struct{}
}

// NewSeats makes them; nobody leads.
func NewSeats() *Seats { return &Seats{slots: make(map[string]chan struct{})} }

func (s *Seats) slot(key string) chan struct{} {
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

// Holder reads the key of a seat.
func Holder(ctx context.Context, b Backend, prefix string) ([]byte, bool, error) {
	found, _, err := b.Get(ctx, 0, prefix+holderKey)
	kv, ok := found[prefix+holderKey]
	return kv.Value, ok && err == nil, err
}

// Elect waits until nobody leads under the prefix.
func (s *Seats) Elect(ctx context.Context, b committer, prefix string, value []byte) (Leadership, error) {
	key := prefix + holderKey
	slot := s.slot(key)
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return nil, Open(ctx.Err())
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
	if _, _, err := b.Commit(ctx, []Part{{Then: []Op{{Key: key, Delete: true}}}}); err != nil {
		return 0, err
	}
	rev, made, err := b.Commit(ctx, []Part{{
		If:   []Compare{{Key: key, Created: true}},
		Then: []Op{{Key: key, Value: value}},
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

func (s *seat) Fence() Compare        { return Compare{Key: s.key, Created: true, Revision: s.rev} }
func (s *seat) Lost() <-chan struct{} { return s.lost }

func (s *seat) Resign(ctx context.Context) error {
	var err error
	s.once.Do(func() {
		_, _, err = s.backend.Commit(ctx, []Part{{
			If:   []Compare{{Key: s.key, Created: true, Revision: s.rev}},
			Then: []Op{{Key: s.key, Delete: true}},
		}})
		close(s.lost)
		<-s.slot
	})
	return err
}
