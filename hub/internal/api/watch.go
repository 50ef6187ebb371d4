package api

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// broadcast wakes every waiter; signals coalesce.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{ch: make(chan struct{})} }

func (b *broadcast) signal() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.ch)
	b.ch = make(chan struct{})
}

func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ch
}

// Types of watch events.
const (
	eventAdded    = "ADDED"
	eventModified = "MODIFIED"
	eventDeleted  = "DELETED"
	eventSynced   = "SYNCED"
)

// watchers are the watches under way.
type watchers struct{ n atomic.Int64 }

// pace keeps watches from taking more than a fifth of a core together, and a single one more than a tenth: each may look
// for as long as it has saved up, and rests when that is spent, at most a second. So what changes now and then is looked
// at at once.
type pace struct {
	all   *watchers
	saved time.Duration
	last  time.Time // when saved was right
	next  time.Time
}

const (
	maxRest  = time.Second
	maxSaved = 2 * time.Millisecond
)

// join begins a watch; leave ends it.
func (w *watchers) join() *pace {
	w.n.Add(1)
	return &pace{all: w, saved: maxSaved, last: time.Now()}
}

func (p *pace) leave() { p.all.n.Add(-1) }

// looked takes what a look took from what is saved.
func (p *pace) looked(began time.Time) { p.spend(began, time.Now(), p.all.n.Load()) }

func (p *pace) spend(began, now time.Time, watches int64) {
	share := time.Duration(max(10, 5*watches))
	p.saved = min(p.saved+now.Sub(p.last)/share, maxSaved) - now.Sub(began)
	p.saved = max(p.saved, -maxRest/share)
	p.last, p.next = now, now.Add(max(0, -p.saved*share))
}

// watchRows keeps a board: it lists again after every change under the prefixes and gives it the difference, so that whatever was
// missed in between, the board ends with what is. Behind each list comes eventSynced.
func watchRows[T proto.Message](ctx context.Context, a *API, prefixes []string, list func(ctx context.Context) ([]T, int64, error), s *board[T]) error {
	sub := a.o.Store.Subscribe(nil, prefixes...)
	defer sub.Stop()
	known := map[string]T{}
	take := func(kind string, row T, rev int64) error {
		s.take(kind, row, rev)
		return nil
	}
	p := a.watchers.join()
	defer p.leave()
	for {
		touched, began := a.touches.wait(), time.Now()
		sub.Take()
		rows, rev, err := list(ctx)
		if err != nil {
			return err
		}
		if err := sendDifference(known, rows, rev, s.key, take); err != nil {
			return err
		}
		var none T
		s.take(eventSynced, none, rev)
		p.looked(began)
		if err := p.wait(ctx, sub, touched, nil); err != nil {
			return err
		}
		if err := untilWatched(ctx, sub, s.unwatched()); err != nil {
			return err
		}
	}
}

// untilWatched returns at once where the channel is nil.
func untilWatched(ctx context.Context, sub store.Subscription, watched <-chan struct{}) error {
	for watched != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-watched:
			return nil
		case _, ok := <-sub.C():
			if !ok {
				return errStopping()
			}
			sub.Take()
		}
	}
	return nil
}

// errStopping ends the watches of a hub that stops.
func errStopping() error {
	return later(fleet.Errorf(fleet.ErrUnavailable, "the hub is stopping; watch again"))
}

// weight is what a changed key means to a watch.
type weight int

const (
	irrelevant weight = iota
	relevant
	// important changes are few, and what a person waits for: they are shown ten times sooner than the pace has it.
	important
)

// wait returns after a relevant change or a touch, no earlier than the pace allows. A nil weigh takes every change as
// relevant.
func (p *pace) wait(ctx context.Context, sub store.Subscription, touched <-chan struct{}, weigh func(key string) weight) error {
	var due <-chan time.Time
	most := irrelevant
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due:
			return nil
		case <-touched:
			touched, most = nil, max(most, relevant)
		case _, ok := <-sub.C():
			if !ok {
				return errStopping()
			}
			keys, _ := sub.Take()
			most = max(most, heaviest(keys, weigh))
		}
		if most != irrelevant {
			due = time.After(p.rest(time.Now(), most))
		}
	}
}

func heaviest(keys []string, weigh func(string) weight) weight {
	if weigh == nil {
		return relevant
	}
	most := irrelevant
	for _, k := range keys {
		most = max(most, weigh(k))
	}
	return most
}

// rest is how long to wait before the next look.
func (p *pace) rest(now time.Time, w weight) time.Duration {
	if w == important {
		return p.last.Add(p.next.Sub(p.last) / importance).Sub(now)
	}
	return p.next.Sub(now)
}

const importance = 10

func sendDifference[T proto.Message](known map[string]T, rows []T, rev int64, key func(T) string, send func(string, T, int64) error) error {
	seen := make(map[string]bool, len(rows))
	for _, row := range rows {
		k := key(row)
		seen[k] = true
		old, ok := known[k]
		if ok && proto.Equal(old, row) {
			continue
		}
		known[k] = row
		kind := eventModified
		if !ok {
			kind = eventAdded
		}
		if err := send(kind, row, rev); err != nil {
			return err
		}
	}
	for k, old := range known {
		if seen[k] {
			continue
		}
		delete(known, k)
		if err := send(eventDeleted, old, rev); err != nil {
			return err
		}
	}
	return nil
}
