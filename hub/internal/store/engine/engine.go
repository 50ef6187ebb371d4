// Package engine is the store behind its port, on any backend: all records in memory for reads, kept up to date by one
// watch; optimistic updates; batches of many writers in one transaction. It owns the read model, subscriptions and feeds,
// the quarantine of what cannot be read, and what becomes of a commit whose answer is lost. It must not know what records
// mean.
//
// Its words: an update is a call of Update, and a draft is one run of its function; a batch is a call of Batch; a
// transaction is what the backend commits at once, a part of it that of one draft or batch; a record is what lives under a
// key in the read model; a change is one version of it, as the watch tells it.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/blobs"
	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/dirty"
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
	// Committed is told of each transaction of records; it may be nil.
	Committed func(took time.Duration, err error)
	// WentBack is told, before anything ends, that the store is given up for the backend serves another one, or an older copy of it, and what
	// was in it before; it may be nil.
	WentBack func(why error, last store.Reader)
}

// Stats are a store's figures.
type Stats struct {
	Records    int   // in the read model
	Corrupt    int   // of them quarantined
	Revision   int64 // of the read model
	Relists    int64 // how often the watch was lost and everything listed again
	BlobCached int64 // bytes
}

// Open makes a store on a backend, which it closes, and fills its read model.
func Open(ctx context.Context, b backend.Backend, o Options) (*Engine, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{backend: b, committed: o.Committed, wentBack: o.WentBack, log: o.Log, model: newModel(o.Log, o.StandIn), relist: make(chan struct{}, 1), rewatch: make(chan struct{}, 1), doubted: make(chan struct{}, 1), opened: time.Now(), clock: time.Now, doubts: newDoubts()}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.batches = newBatcher(e)
	var err error
	if e.blobs, err = blobs.New(blobs.Config{Backend: b, Life: e.ctx, Await: e.reach, CacheBytes: o.BlobCacheBytes}); err == nil {
		err = e.fill(ctx)
	}
	if err != nil {
		e.cancel()
		return nil, errors.Join(err, b.Close())
	}
	e.running.Go(e.follow)
	e.running.Go(e.mind)
	e.running.Go(e.batches.run)
	return e, nil
}

// Engine is the store on any Backend.
type Engine struct {
	backend backend.Backend
	log     *slog.Logger
	model   *model
	batches *batcher
	doubts  *doubts
	blobs   *blobs.Blobs
	own     atomic.Int64 // the newest revision that an Update of this store made
	relists atomic.Int64
	opened  time.Time
	clock   func() time.Time
	// committed is told of each transaction; nil: nobody is.
	committed func(time.Duration, error)
	// wentBack is told that the store is given up; nil: nobody is.
	wentBack func(error, store.Reader)
	nudged   atomic.Int64  // when the watch was asked last: nanoseconds since it was opened, by the clock that nobody sets
	relist   chan struct{} // asks follow for a new list
	rewatch  chan struct{} // asks follow for a new watch
	doubted  chan struct{} // asks mind to look whether the watch shows what is there
	watching atomic.Bool   // a watch is open

	ctx     context.Context // ends at Close
	cancel  context.CancelFunc
	running sync.WaitGroup
	closing sync.Once
}

// transact is Commit of the backend.
func (e *Engine) transact(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	began := time.Now()
	rev, happened, err := e.backend.Commit(ctx, parts)
	if e.committed != nil {
		e.committed(time.Since(began), err)
	}
	return rev, happened, e.answered(err)
}

// recordSpace is in front of the keys of records in the backend: one watch follows all of them and no blob.
const recordSpace = "r/"

// recordKey is the key of a record as the port has it.
func recordKey(raw string) string { return strings.TrimPrefix(raw, recordSpace) }

// Snapshot is the whole store as it is at one moment, in the format of its backend, which may have none.
func (e *Engine) Snapshot(ctx context.Context) (io.ReadCloser, error) {
	b, ok := e.backend.(interface {
		Snapshot(context.Context) (io.ReadCloser, error)
	})
	if !ok {
		return nil, fleet.Errorf(fleet.ErrPrecondition, "the store is in memory, which has no backup")
	}
	return b.Snapshot(ctx)
}

// As is the store as its owner may use it: what the owner does not own, it cannot write.
func (e *Engine) As(owner store.Owner) store.Store { return &handle{Engine: e, owner: owner} }

// handle is the engine in the hands of one owner.
type handle struct {
	*Engine
	owner store.Owner
}

// Update commits what fn changes, in one transaction.
func (h *handle) Update(ctx context.Context, fn func(store.Writer) error) (int64, error) {
	return h.update(ctx, h.owner, fn)
}

// Batch commits the ops in a transaction that others share.
func (h *handle) Batch(ctx context.Context, fence store.Fence, ops []store.Op) (int64, error) {
	return h.batch(ctx, h.owner, fence, ops)
}

// Stats returns the store's figures.
func (e *Engine) Stats() Stats {
	snap := e.model.snapshot()
	return Stats{
		Records: snap.tree.Len(), Corrupt: int(e.model.corrupt.Load()), Revision: snap.revision,
		Relists: e.relists.Load(), BlobCached: e.blobs.Cached(),
	}
}

// View runs fn on a snapshot.
func (e *Engine) View(ctx context.Context, minRevision int64, fn func(store.Reader) error) error {
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

// Subscribe takes the snapshot and starts the subscription together.
func (e *Engine) Subscribe(fn func(store.Reader), prefixes ...string) store.Subscription {
	snap, sub := e.model.subscribe(prefixes)
	if fn != nil {
		fn(&view{snapshot: snap})
	}
	return sub
}

// Feed is shared by all that ask for the class.
func (e *Engine) Feed(prefix string) *feed.Feed[store.Change] {
	class := store.ClassOf(prefix)
	if class == nil {
		panic("store: a feed of " + prefix + ", which is no class of records")
	}
	return e.model.feed(class)
}

// Barrier waits for what anybody was told is committed.
func (e *Engine) Barrier(ctx context.Context) (int64, error) {
	before := e.model.snapshot().revision
	rev, err := e.backend.Revision(ctx)
	if err != nil {
		return 0, e.answered(err)
	}
	if rev < before {
		e.suspect(before, rev)
		return 0, fleet.Errorf(fleet.ErrUnavailable, "store went back from revision %d to %d", before, rev)
	}
	snap, err := e.await(ctx, rev)
	if err != nil {
		return 0, err
	}
	return snap.revision, nil
}

// Blobs are beside the records, on the same backend.
func (e *Engine) Blobs() store.Blobs { return e.blobs }

// Full is whether the backend is.
func (e *Engine) Full() error { return e.backend.Full() }

// Usage is how much the backend holds.
func (e *Engine) Usage() store.Usage {
	u := e.backend.Usage()
	return store.Usage{Bytes: u.Bytes, Limit: u.Limit, NearlyFull: u.NearlyFull()}
}

// Close ends everything, then the backend.
func (e *Engine) Close() error {
	var err error
	e.closing.Do(func() {
		e.cancel()
		e.running.Wait()
		e.model.close()
		err = e.backend.Close()
	})
	return err
}

// reach waits until the read model is at the revision.
func (e *Engine) reach(ctx context.Context, revision int64) error {
	_, err := e.await(ctx, revision)
	return err
}

// await returns a snapshot that is at least at the revision.
func (e *Engine) await(ctx context.Context, revision int64) (*snapshot, error) {
	if e.ctx.Err() != nil {
		return nil, backend.Closed()
	}
	if snap := e.model.snapshot(); snap.revision >= revision {
		return snap, nil
	}
	arrived, giveUp := e.model.arrival(revision)
	defer giveUp()
	patience := firstNudge
	nudge := time.NewTimer(patience)
	defer nudge.Stop()
	doubt := time.NewTicker(longWait)
	defer doubt.Stop()
	for {
		select {
		case <-e.ctx.Done():
			return nil, backend.Closed()
		case <-arrived:
			return e.model.snapshot(), nil
		case <-ctx.Done():
			at := e.model.snapshot().revision
			return nil, fmt.Errorf("store is at revision %d, not at %d: %w", at, revision, backend.Open(ctx.Err()))
		case <-nudge.C:
			e.nudgeWatch(ctx)
			patience = min(2*patience, lastNudge)
			nudge.Reset(patience)
		case <-doubt.C:
			dirty.Poke(e.doubted)
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
func (e *Engine) nudgeWatch(ctx context.Context) {
	now, last := int64(e.clock().Sub(e.opened)), e.nudged.Load()
	if last != 0 && now-last < int64(firstNudge) || !e.nudged.CompareAndSwap(last, now) {
		return
	}
	if err := e.backend.Progress(ctx); err != nil {
		e.log.Debug("store: ask for progress", "error", err)
	}
}

// pause waits between two tries.
func (e *Engine) pause(ctx context.Context, d time.Duration) error {
	return backend.Pause(ctx, e.ctx, d)
}
