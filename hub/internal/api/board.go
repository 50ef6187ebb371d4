package api

import (
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/guard"
)

// boards are what watches of a kind are shown from: one board for each question that is asked, whose rows are looked at once
// for all that ask it.
type boards[T proto.Message] struct {
	api *API
	key func(T) string
	// linger is how long a board stays when its last watch has left, so that one that broke may go on.
	linger time.Duration

	mu    sync.Mutex
	asked map[string]*board[T]
}

// lingerTime is longer than clients take to come back.
const lingerTime = 10 * time.Second

// maxLingering bounds the boards that stay without a watch; the one that was left first goes.
const maxLingering = 8

func newBoards[T proto.Message](a *API, key func(T) string) *boards[T] {
	return &boards[T]{api: a, key: key, linger: lingerTime, asked: map[string]*board[T]{}}
}

// looking gives a board all rows, then eventSynced, and from then on every change and, behind the changes of each look, eventSynced.
type looking[T proto.Message] func(ctx context.Context, s *board[T]) error

// watching is what one watch asks for.
type watching[T proto.Message] struct {
	question string // names the board
	look     looking[T]
	match    func(T) bool // what of the board's rows it wants
	from     watchRequest
	send     func(told[T]) error
}

// watchRequest is the request of any watch of rows.
type watchRequest interface {
	proto.Message
	GetResumeToken() string
	GetMinRevision() int64
}

// told is a message of a watch.
type told[T proto.Message] struct {
	kind     string
	row      T
	revision int64
	token    string
}

// board has all rows of a question, from the first watch until some time after the last. While nobody watches it is not looked
// at: the next watch waits for a look.
type board[T proto.Message] struct {
	id      [8]byte // names it in resume tokens
	key     func(T) string
	watches int // guarded by the lock of all boards, as is left
	left    time.Time
	cancel  context.CancelFunc
	ended   chan struct{} // closed when it is looked at no more; then err says why
	err     error

	changes *feed.Feed[rowChange[T]]
	step    atomic.Int64 // the number of the newest change

	mu       sync.Mutex
	rows     map[string]T
	revision int64         // of the store, up to which the rows are looked at
	synced   bool          // all rows are there
	looked   chan struct{} // closed after the next look
	stale    bool          // they are as they were when the last watch left
	idle     bool          // nobody watches
	woken    chan struct{} // closed by who watches again; nil: the looking goes on
}

// rowChange is what became of a row; one that is not there before, or after, is the zero T.
type rowChange[T proto.Message] struct {
	key      string
	was, is  T
	had, has bool
	revision int64
}

// boardLimits bound what is kept of changes for watches that are slow, or come back.
var boardLimits = feed.Limits{Changes: 4096, Bytes: 8 << 20}

// watch sends the rows that match, and then their changes. With a resume token it begins with the changes since.
func (b *boards[T]) watch(ctx context.Context, w watching[T]) error {
	from, err := readWatchToken(w.from)
	if err == nil {
		err = b.api.reach(ctx, w.from.GetMinRevision())
	}
	if err != nil {
		return err
	}
	s := b.join(w)
	defer b.leave(w.question, s)
	if err := s.reach(ctx, w.from.GetMinRevision(), b.api.touches.signal); err != nil {
		return err
	}
	v := viewing[T]{watching: w, board: s, known: map[string]T{}, filter: from.filter}
	var step int64
	if from.resumes {
		step, err = v.resume(from)
	} else {
		step, err = v.list(b.key, true)
	}
	for err == nil {
		err = s.changes.Follow(ctx, step, v.tell)
		select {
		case <-s.ended:
			return s.err
		default:
		}
		if errors.Is(err, feed.ErrTooOld) {
			// More has changed than is kept for one that is slow: it is sent how what there is differs from what it knows.
			step, err = v.list(b.key, false)
		}
	}
	return err
}

// viewing is one watch of a board.
type viewing[T proto.Message] struct {
	watching[T]
	board  *board[T]
	known  map[string]T // what it was sent
	filter [8]byte
}

// list sends how the rows differ from what is known, and returns the newest change in them. The first time it says behind them
// that all is sent.
func (v *viewing[T]) list(key func(T) string, first bool) (step int64, err error) {
	rows, step, rev := v.board.all()
	rows = slices.DeleteFunc(rows, func(row T) bool { return !v.match(row) })
	err = sendDifference(v.known, rows, rev, key, func(kind string, row T, rev int64) error {
		return v.send(told[T]{kind: kind, row: row, revision: rev})
	})
	if err == nil && first {
		err = v.synced(rev, step)
	}
	return step, err
}

// resume sends the changes since a token, says that all is sent, and returns the newest of them.
func (v *viewing[T]) resume(from watchToken) (step int64, err error) {
	since, rev, err := v.board.since(from)
	if err != nil {
		return 0, err
	}
	v.known = since.known
	maps.DeleteFunc(v.known, func(_ string, row T) bool { return !v.match(row) })
	if err := v.tell(since.Page); err != nil {
		return 0, err
	}
	return since.Revision, v.synced(rev, since.Revision)
}

func (v *viewing[T]) synced(rev, step int64) error {
	return v.send(told[T]{kind: eventSynced, revision: rev, token: v.token(step)})
}

func (v *viewing[T]) token(step int64) string {
	return watchToken{board: v.board.id, filter: v.filter, step: step}.String()
}

// tell sends changes.
func (v *viewing[T]) tell(p feed.Page[rowChange[T]]) (err error) {
	p.Each(func(step int64, c rowChange[T]) bool {
		err = v.tellOf(step, c)
		return err == nil
	})
	return err
}

// tellOf sends a change as one who watches only what matches sees it.
func (v *viewing[T]) tellOf(step int64, c rowChange[T]) error {
	was, had := v.known[c.key]
	if c.has && v.match(c.is) {
		kind := eventAdded
		if had {
			kind = eventModified
		}
		v.known[c.key] = c.is
		return v.send(told[T]{kind, c.is, c.revision, v.token(step)})
	}
	if !had {
		return nil
	}
	delete(v.known, c.key)
	return v.send(told[T]{eventDeleted, was, c.revision, v.token(step)})
}

// join finds the board of the question, or begins it.
func (b *boards[T]) join(w watching[T]) *board[T] {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.asked[w.question]
	if !ok {
		s = b.begin(w.question, w.look)
		b.asked[w.question] = s
	}
	s.watches++
	s.wake()
	return s
}

func (b *boards[T]) leave(question string, s *board[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.watches--; s.watches > 0 || b.asked[question] != s {
		return
	}
	s.left = time.Now()
	s.rest()
	if b.linger == 0 {
		b.end(question, s)
		return
	}
	b.endSurplus()
	time.AfterFunc(b.linger, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if s.watches == 0 && b.asked[question] == s && time.Since(s.left) >= b.linger {
			b.end(question, s)
		}
	})
}

// endSurplus ends those that were left first.
func (b *boards[T]) endSurplus() {
	var idle []string
	for q, s := range b.asked {
		if s.watches == 0 {
			idle = append(idle, q)
		}
	}
	slices.SortFunc(idle, func(x, y string) int { return b.asked[x].left.Compare(b.asked[y].left) })
	for _, q := range idle[:max(0, len(idle)-maxLingering)] {
		b.end(q, b.asked[q])
	}
}

func (b *boards[T]) end(question string, s *board[T]) {
	s.cancel()
	delete(b.asked, question)
}

func (b *boards[T]) begin(question string, look looking[T]) *board[T] {
	ctx, cancel := context.WithCancel(context.Background())
	s := &board[T]{key: b.key, cancel: cancel, ended: make(chan struct{}), looked: make(chan struct{}), rows: map[string]T{}}
	_, _ = rand.Read(s.id[:]) // never fails: crypto/rand
	s.changes = feed.New[rowChange[T]](boardLimits, 0, s.step.Load)
	go func() {
		s.err = guard.Run(func() error { return look(ctx, s) })
		b.mu.Lock()
		if b.asked[question] == s {
			delete(b.asked, question) // who comes next begins anew
		}
		b.mu.Unlock()
		close(s.ended)
		s.changes.Close()
	}()
	return s
}

// take puts in what is looked at. Rows are shared from here on.
func (s *board[T]) take(kind string, row T, rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind == eventSynced {
		s.synced, s.stale, s.revision = true, false, rev
		close(s.looked)
		s.looked = make(chan struct{})
		return
	}
	k := s.key(row)
	if !s.synced { // nobody follows yet
		s.rows[k] = row
		return
	}
	c := rowChange[T]{key: k, revision: rev}
	c.was, c.had = s.rows[k]
	if kind == eventDeleted {
		delete(s.rows, k)
	} else {
		c.is, c.has = row, true
		s.rows[k] = row
	}
	s.changes.Add(s.step.Load()+1, proto.Size(c.was)+proto.Size(c.is), c)
	s.step.Add(1)
	s.changes.Wake()
}

// rest says that nobody watches.
func (s *board[T]) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = true
}

// wake says that somebody watches.
func (s *board[T]) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = false
	if s.woken != nil {
		close(s.woken)
		s.woken = nil
		s.stale = true
	}
}

// unwatched is closed once somebody watches; nil while somebody does.
func (s *board[T]) unwatched() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle && s.woken == nil {
		s.woken = make(chan struct{})
	}
	return s.woken
}

// reach waits until all rows are there, as they are at the revision or later.
func (s *board[T]) reach(ctx context.Context, revision int64, again func()) error {
	for {
		s.mu.Lock()
		coming := !s.synced || s.stale // a look that is under way, or begins by itself
		there, looked := !coming && s.revision >= revision, s.looked
		s.mu.Unlock()
		if there {
			return nil
		}
		if !coming {
			again()
		}
		select {
		case <-looked:
		case <-s.ended:
			return s.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// all are the rows, the number of the newest change in them, and the revision of the store.
func (s *board[T]) all() (rows []T, step, revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(s.rows)) {
		rows = append(rows, s.rows[k])
	}
	return rows, s.step.Load(), s.revision
}

// changesSince are the changes since a token, and the rows that were there when it was given out.
type changesSince[T proto.Message] struct {
	feed.Page[rowChange[T]]
	known map[string]T
}

// since takes the changes since a token back from the rows of now.
func (s *board[T]) since(from watchToken) (out changesSince[T], revision int64, err error) {
	if from.board != s.id {
		return out, 0, errTokenStale
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Page, err = s.changes.Since(from.step)
	if errors.Is(err, feed.ErrTooOld) {
		err = errTokenStale
	}
	if err != nil {
		return out, 0, err
	}
	out.known = maps.Clone(s.rows)
	back := map[string]bool{}
	out.Each(func(_ int64, c rowChange[T]) bool {
		if back[c.key] {
			return true
		}
		back[c.key] = true
		if delete(out.known, c.key); c.had {
			out.known[c.key] = c.was
		}
		return true
	})
	return out, s.revision, nil
}
