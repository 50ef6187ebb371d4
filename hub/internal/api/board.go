package api

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/fleet"
)

// board has all rows of a kind for those who watch it: what changes is looked at once, and all are told of it. It looks only
// while somebody watches.
type board[T proto.Message] struct {
	// look sends all rows and then their changes, as watchRows does.
	look func(ctx context.Context, send func(kind string, row T, rev int64) error) error
	key  func(T) string

	mu      sync.Mutex
	running *showing[T] // nil: nobody watches
}

// showing is a board from the first watch to the last.
type showing[T proto.Message] struct {
	watches int // guarded by the board's lock
	cancel  context.CancelFunc
	ended   chan struct{} // closed when it looks no more; then err says why
	err     error

	changes *feed.Feed[rowChange[T]]
	step    atomic.Int64 // the number of the newest change

	mu       sync.Mutex
	rows     map[string]T
	revision int64         // of the store, up to which the rows are looked at
	complete chan struct{} // closed when all rows are there
}

// rowChange is what happened to a row: from nothing, or to nothing.
type rowChange[T proto.Message] struct {
	was, is  T
	had, has bool
	revision int64
}

// boardLimits bound what is kept for watches that are slow.
var boardLimits = feed.Limits{Changes: 4096, Bytes: 8 << 20}

// watch sends the rows that match, and then their changes.
func (b *board[T]) watch(ctx context.Context, match func(T) bool, send func(kind string, row T, rev int64) error) error {
	s := b.join()
	defer b.leave(s)
	select {
	case <-s.complete:
	case <-s.ended:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
	rows, step, rev := s.all()
	for _, row := range rows {
		if !match(row) {
			continue
		}
		if err := send(eventAdded, row, rev); err != nil {
			return err
		}
	}
	var none T
	if err := send(eventSynced, none, rev); err != nil {
		return err
	}
	err := s.changes.Follow(ctx, step, func(p feed.Page[rowChange[T]]) (err error) {
		p.Each(func(_ int64, c rowChange[T]) bool {
			err = c.tell(match, send)
			return err == nil
		})
		return err
	})
	select {
	case <-s.ended:
		return s.err
	default:
	}
	if errors.Is(err, feed.ErrTooOld) {
		return fleet.Errorf(fleet.ErrUnavailable, "more has changed than is kept for a watch that is slow; watch again")
	}
	return err
}

// tell sends a change as one who watches only what matches sees it.
func (c rowChange[T]) tell(match func(T) bool, send func(kind string, row T, rev int64) error) error {
	was, is := c.had && match(c.was), c.has && match(c.is)
	switch {
	case was && is:
		return send(eventModified, c.is, c.revision)
	case is:
		return send(eventAdded, c.is, c.revision)
	case was:
		return send(eventDeleted, c.was, c.revision)
	}
	return nil
}

func (b *board[T]) join() *showing[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running == nil {
		b.running = b.begin()
	}
	b.running.watches++
	return b.running
}

func (b *board[T]) leave(s *showing[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.watches--; s.watches > 0 {
		return
	}
	s.cancel()
	if b.running == s {
		b.running = nil
	}
}

func (b *board[T]) begin() *showing[T] {
	ctx, cancel := context.WithCancel(context.Background())
	s := &showing[T]{cancel: cancel, ended: make(chan struct{}), complete: make(chan struct{}), rows: map[string]T{}}
	s.changes = feed.New[rowChange[T]](boardLimits, 0, s.step.Load)
	go func() {
		s.err = b.look(ctx, func(kind string, row T, rev int64) error {
			s.take(kind, b.key, row, rev)
			return nil
		})
		b.mu.Lock()
		if b.running == s {
			b.running = nil // who comes next begins anew
		}
		b.mu.Unlock()
		close(s.ended)
		s.changes.Close()
	}()
	return s
}

// take puts in what is looked at. Rows are shared from here on.
func (s *showing[T]) take(kind string, key func(T) string, row T, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revision = rev
	if kind == eventSynced {
		close(s.complete)
		return
	}
	k := key(row)
	c := rowChange[T]{is: row, has: kind != eventDeleted, revision: rev}
	c.was, c.had = s.rows[k]
	if c.has {
		s.rows[k] = row
	} else {
		delete(s.rows, k)
	}
	s.changes.Add(s.step.Load()+1, proto.Size(row), c)
	s.step.Add(1)
	s.changes.Wake()
}

// all are the rows, the number of the newest change in them, and the revision of the store.
func (s *showing[T]) all() (rows []T, step, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(s.rows)) {
		rows = append(rows, s.rows[k])
	}
	return rows, s.step.Load(), s.revision
}
