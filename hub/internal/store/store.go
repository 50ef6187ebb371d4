package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"towline.dev/towline/pkg/backoff"
	"towline.dev/towline/pkg/fleet"
)

// Options are what every store takes.
type Options struct {
	// Log takes what the store has to say; nil: nothing is said.
	Log *slog.Logger
	// BlobCacheBytes bounds the compressed blobs that are kept in memory; 0: 64 MiB.
	BlobCacheBytes int64
	// StandIn replaces records that cannot be read; nil: nothing does.
	StandIn StandIn
	// Wrap puts something around the backend, such as faults in a test.
	Wrap func(Backend) Backend
}

// Stats are a store's figures; every Store of this package has a method Stats.
type Stats struct {
	Records    int   // in the read model
	Corrupt    int   // of them quarantined
	Revision   int64 // of the read model
	Relists    int64 // how often the watch was lost and everything listed again
	BlobCached int64 // bytes
}

// Open makes a store on a backend, which it closes, and fills its read model.
func Open(ctx context.Context, b Backend, o Options) (Store, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Wrap != nil {
		b = o.Wrap(b)
	}
	e := &engine{backend: b, log: o.Log, model: newModel(o.Log, o.StandIn), relist: make(chan struct{}, 1), opened: time.Now(), clock: time.Now}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.batches = newBatcher(e)
	var err error
	if e.blobs, err = newBlobs(e, o.BlobCacheBytes); err == nil {
		err = e.fill(ctx)
	}
	if err != nil {
		e.cancel()
		return nil, errors.Join(err, b.Close())
	}
	e.running.Go(e.follow)
	e.running.Go(e.batches.run)
	return e, nil
}

// engine is the Store on any Backend.
type engine struct {
	backend Backend
	log     *slog.Logger
	model   *model
	batches *batcher
	blobs   *blobs
	own     atomic.Int64 // the newest revision that an Update of this store made
	relists atomic.Int64
	opened  time.Time
	clock   func() time.Time
	nudged  atomic.Int64  // when the watch was asked last: nanoseconds since it was opened, by the clock that nobody sets
	relist  chan struct{} // asks follow for a new list

	ctx     context.Context // ends at Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	closing sync.Once
}

// Stats returns the store's figures.
func (e *engine) Stats() Stats {
	snap := e.model.snapshot()
	return Stats{
		Records: snap.tree.Len(), Corrupt: int(e.model.corrupt.Load()), Revision: snap.revision,
		Relists: e.relists.Load(), BlobCached: e.blobs.cache.size(),
	}
}

func (e *engine) View(ctx context.Context, minRevision int64, fn func(Reader) error) error {
	snap, err := e.await(ctx, minRevision)
	if err != nil {
		return err
	}
	v := &view{snapshot: snap}
	err = fn(v)
	if v.corrupt != nil && (err == nil || errors.Is(err, fleet.ErrNotFound)) {
		return v.corrupt
	}
	return err
}

func (e *engine) Subscribe(fn func(Reader), prefixes ...string) Subscription {
	snap, sub := e.model.subscribe(prefixes)
	if fn != nil {
		fn(&view{snapshot: snap})
	}
	return sub
}

func (e *engine) Barrier(ctx context.Context) (int64, error) {
	before := e.model.snapshot().revision
	rev, err := e.backend.Revision(ctx)
	if err != nil {
		return 0, err
	}
	if rev < before {
		e.askRelist()
		return 0, fleet.Errorf(fleet.ErrUnavailable, "store went back from revision %d to %d; reading it anew", before, rev)
	}
	snap, err := e.await(ctx, rev)
	if err != nil {
		return 0, err
	}
	return snap.revision, nil
}

func (e *engine) Blobs() Blobs { return e.blobs }

func (e *engine) Full() error { return e.backend.Full() }

func (e *engine) Campaign(ctx context.Context, who Candidate) (Leadership, error) {
	if e.ctx.Err() != nil {
		return nil, errClosed()
	}
	value, err := sealCandidate(who)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	inner, err := e.backend.Elect(ctx, recordSpace+leaderKey, value)
	if err != nil {
		return nil, err
	}
	fence := inner.Fence()
	fence.Key = strings.TrimPrefix(fence.Key, recordSpace)
	l := &leadership{inner: inner, fence: fence, lost: make(chan struct{})}
	held, stop := context.WithCancel(e.ctx)
	l.stop = stop
	e.running.Go(func() {
		defer stop()
		defer close(l.lost)
		select {
		case <-inner.Lost():
		case <-held.Done():
		}
		if e.ctx.Err() != nil {
			e.giveUp(inner)
		}
	})
	return l, nil
}

func (e *engine) Leader(ctx context.Context) (Candidate, bool, error) {
	value, ok, err := e.backend.Holder(ctx, recordSpace+leaderKey)
	if err != nil || !ok {
		return Candidate{}, false, err
	}
	who, err := openCandidate(value)
	return who, err == nil, err
}

// giveUp resigns at the close, so that the next leader need not wait.
func (e *engine) giveUp(l Leadership) {
	ctx, cancel := context.WithTimeout(context.Background(), resignTimeout)
	defer cancel()
	if err := l.Resign(ctx); err != nil {
		e.log.Warn("store: resign at close", "error", err)
	}
}

const (
	// leaderKey is the one key that all hubs of a store campaign under.
	leaderKey     = "leader/hub"
	resignTimeout = 2 * time.Second
)

func (e *engine) Close() error {
	var err error
	e.closing.Do(func() {
		e.cancel()
		e.running.Wait()
		e.model.close()
		err = e.backend.Close()
	})
	return err
}

// await returns a snapshot that is at least at the revision.
func (e *engine) await(ctx context.Context, revision int64) (*snapshot, error) {
	if e.ctx.Err() != nil {
		return nil, errClosed()
	}
	if snap := e.model.snapshot(); snap.revision >= revision {
		return snap, nil
	}
	arrived, giveUp := e.model.arrival(revision)
	defer giveUp()
	patience := firstNudge
	nudge := time.NewTimer(patience)
	defer nudge.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return nil, errClosed()
		case <-arrived:
			return e.model.snapshot(), nil
		case <-ctx.Done():
			at := e.model.snapshot().revision
			return nil, fmt.Errorf("store is at revision %d, not at %d: %w", at, revision, unavailable(ctx.Err()))
		case <-nudge.C:
			e.nudgeWatch(ctx)
			patience = min(2*patience, lastNudge)
			nudge.Reset(patience)
		}
	}
}

// A commit that changes no record, such as that of a blob, reaches the read model only when the watch is asked how far
// it is.
const (
	firstNudge = 2 * time.Millisecond
	lastNudge  = 250 * time.Millisecond
)

// nudgeWatch asks the watch how far it is, once for all that wait.
func (e *engine) nudgeWatch(ctx context.Context) {
	now, last := int64(e.clock().Sub(e.opened)), e.nudged.Load()
	if last != 0 && now-last < int64(firstNudge) || !e.nudged.CompareAndSwap(last, now) {
		return
	}
	if err := e.backend.Progress(ctx); err != nil {
		e.log.Debug("store: ask for progress", "error", err)
	}
}

func errClosed() error { return fleet.Errorf(fleet.ErrUnavailable, "store is closed") }

// pause waits between two tries.
func (e *engine) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-e.ctx.Done():
		return errClosed()
	case <-ctx.Done():
		return unavailable(ctx.Err())
	case <-t.C:
		return nil
	}
}

func newRetry() *backoff.Backoff {
	return backoff.New(backoff.Policy{Min: 2 * time.Millisecond, Max: time.Second, Jitter: 1}, rand.Float64)
}
