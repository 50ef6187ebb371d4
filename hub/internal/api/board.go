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

// boards are those of rows of which there are too many to have them all: one for each question that is asked.
type boards[T proto.Message] struct {
	mu    sync.Mutex
	asked map[string]*board[T]
	users map[*board[T]]int
}

// watch is that of the question's board, which make makes if nobody else asks the same.
func (b *boards[T]) watch(ctx context.Context, question string, make func() *board[T], send func(kind string, row T, rev int64) error) error {
	shared := b.take(question, make)
	defer b.release(question, shared)
	return shared.watch(ctx, func(T) bool { return true }, send)
}

func (b *boards[T]) take(question string, make func() *board[T]) *board[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	shared, ok := b.asked[question]
	if !ok {
		shared = make()
		b.asked[question] = shared
	}
	b.users[shared]++
	return shared
}

func (b *boards[T]) release(question string, shared *board[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users[shared]--; b.users[shared] == 0 {
		delete(b.users, shared)
		delete(b.asked, question)
	}
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
	synced   bool          // all rows are there
	complete chan struct{} // closed then
}

// rowChange is what became of a row; without has it is gone.
type rowChange[T proto.Message] struct {
	key      string
	is       T
	has      bool
	revision int64
}

// boardLimits bound what is kept of changes for watches that are slow.
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
	v := viewing[T]{match: match, send: send, known: map[string]T{}}
	synced := false
	for {
		rows, step, rev := s.all()
		rows = slices.DeleteFunc(rows, func(row T) bool { return !match(row) })
		if err := sendRows(v.known, &synced, rows, rev, b.key, send); err != nil {
			return err
		}
		err := s.changes.Follow(ctx, step, v.tell)
		select {
		case <-s.ended:
			return s.err
		default:
		}
		if !errors.Is(err, feed.ErrTooOld) {
			return err
		}
		// More has changed than is kept for one that is slow: it is sent how what there is differs from what it knows.
	}
}

// viewing is one watch of a board.
type viewing[T proto.Message] struct {
	match func(T) bool
	send  func(kind string, row T, rev int64) error
	known map[string]T // what it was sent
}

// tell sends changes.
func (v viewing[T]) tell(p feed.Page[rowChange[T]]) (err error) {
	p.Each(func(_ int64, c rowChange[T]) bool {
		err = v.tellOf(c)
		return err == nil
	})
	return err
}

// tellOf sends a change as one who watches only what matches sees it.
func (v viewing[T]) tellOf(c rowChange[T]) error {
	was, had := v.known[c.key]
	if c.has && v.match(c.is) {
		kind := eventAdded
		if had {
			kind = eventModified
		}
		v.known[c.key] = c.is
		return v.send(kind, c.is, c.revision)
	}
	if !had {
		return nil
	}
	delete(v.known, c.key)
	return v.send(eventDeleted, was, c.revision)
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
		s.synced = true
		close(s.complete)
		return
	}
	k := key(row)
	if !s.synced { // nobody follows yet
		s.rows[k] = row
		return
	}
	c := rowChange[T]{key: k, is: row, has: kind != eventDeleted, revision: rev}
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
