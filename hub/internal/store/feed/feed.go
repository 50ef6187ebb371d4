// Package feed is a bounded log of changes by store revision that any number of readers follow: a change is put in once,
// and all readers share it. It owns order, bounds and waking; it must not know what the changes are or who reads them.
package feed

import (
	"context"
	"fmt"
	"sort"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// ErrTooOld says that the changes after a revision are not all kept: read everything anew, and go on from there.
var ErrTooOld error = &fleet.Named{Kind: fleet.ErrConflict, Message: "the changes since are no longer kept; read anew"}

// Limits bound what a feed keeps, so that readers can go on from where they were.
type Limits struct {
	Changes int // their number
	Bytes   int // the sum of what Add was told of them
}

// Feed is the log. A reader has nothing in it: it asks for what comes after the revision that it knows, and waits.
type Feed[T any] struct {
	limits Limits
	now    func() int64

	mu     sync.Mutex
	log    []entry[T] // ascending by revision; readers share it, so what is in it never changes
	bytes  int
	floor  int64         // changes up to this revision are not all in the log
	more   chan struct{} // closed at the next wake
	news   bool          // something was added since the last wake
	closed bool
}

type entry[T any] struct {
	revision int64
	bytes    int
	change   T
}

// New makes a feed that is complete after the revision. now says up to which revision at any time: all changes up to there
// have been added, and what was added beyond is shown when now gets there. It is called under the feed's lock.
func New[T any](limits Limits, after int64, now func() int64) *Feed[T] {
	return &Feed[T]{limits: limits, floor: after, now: now, more: make(chan struct{})}
}

// Add appends a change, which takes about so many bytes. Revisions never decrease. Those that wait do so until Wake.
func (f *Feed[T]) Add(revision int64, bytes int, change T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, entry[T]{revision: revision, bytes: bytes, change: change})
	f.bytes += bytes
	f.news = true
	if len(f.log) > 2*f.limits.Changes || f.bytes > 2*f.limits.Bytes {
		f.trim()
	}
}

// trim drops the oldest changes, down to the limits. The log is copied, because readers share it.
func (f *Feed[T]) trim() {
	n := 0
	for n < len(f.log) && (len(f.log)-n > f.limits.Changes || f.bytes > f.limits.Bytes) {
		f.bytes -= f.log[n].bytes
		f.floor = f.log[n].revision
		n++
	}
	f.log = append([]entry[T](nil), f.log[n:]...)
}

// Wake wakes those that wait, if anything was added since.
func (f *Feed[T]) Wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.news {
		f.wake()
	}
	f.news = false
}

func (f *Feed[T]) wake() {
	close(f.more)
	f.more = make(chan struct{})
}

// Close ends it: who waits or asks gets an error.
func (f *Feed[T]) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.wake()
}

// Page is what came after a revision.
type Page[T any] struct {
	log []entry[T]
	// Revision is from where to go on: the page has all changes up to it. What is read of the store at this revision has
	// them too.
	Revision int64
	// More is closed when there is more to ask for.
	More <-chan struct{}
}

// Len is the number of changes.
func (p Page[T]) Len() int { return len(p.log) }

// Each calls fn for the changes, in order, until it returns false.
func (p Page[T]) Each(fn func(revision int64, change T) bool) {
	for i := range p.log {
		if !fn(p.log[i].revision, p.log[i].change) {
			return
		}
	}
}

// Since returns what came after the revision, ErrTooOld if that is not all kept, or unknown because it is still to come.
func (f *Feed[T]) Since(after int64) (Page[T], error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return Page[T]{}, fleet.Errorf(fleet.ErrUnavailable, "store is closed")
	}
	now := f.now() // under the lock: what is not shown yet must wake who waits on the channel that is given out here
	if after < f.floor || after > now {
		return Page[T]{}, fmt.Errorf("revision %d, of %d to %d: %w", after, f.floor, now, ErrTooOld)
	}
	from, to := f.behind(after), f.behind(now)
	return Page[T]{log: f.log[from:to:to], Revision: now, More: f.more}, nil
}

// Now is the page of who reads everything anew: without changes, from where to go on.
func (f *Feed[T]) Now() (Page[T], error) {
	f.mu.Lock()
	at := f.now()
	f.mu.Unlock()
	return f.Since(at)
}

// behind is where the changes after the revision begin.
func (f *Feed[T]) behind(revision int64) int {
	return sort.Search(len(f.log), func(i int) bool { return f.log[i].revision > revision })
}

// Follow calls fn with what comes after the revision, until fn fails, ctx ends, the feed closes, or the reader is so slow
// that ErrTooOld is all there is for it. Pages have at least one change.
func (f *Feed[T]) Follow(ctx context.Context, after int64, fn func(Page[T]) error) error {
	for {
		page, err := f.Since(after)
		if err != nil {
			return err
		}
		if page.Len() > 0 {
			if err := fn(page); err != nil {
				return err
			}
		}
		after = page.Revision
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-page.More:
		}
	}
}
