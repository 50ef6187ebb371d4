package engine

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

func (e *Engine) batch(ctx context.Context, owner store.Owner, fence store.Fence, ops []store.Op) (int64, error) {
	b, err := newBatch(owner, fence, ops)
	if err != nil {
		return 0, err
	}
	if len(ops) == 0 {
		return e.model.snapshot().revision, nil
	}
	e.batches.enqueue(b)
	select {
	case <-b.done:
		return b.revision, b.err
	case <-ctx.Done():
		b.abandoned.Store(true)
		return 0, backend.Open(ctx.Err())
	case <-e.ctx.Done():
		return 0, backend.Closed()
	}
}

// batch is the ops of one call of Batch on their way into a shared transaction.
type batch struct {
	fence     store.Fence
	ops       []batchOp
	nonce     uint64
	self      string // raw key that carries the nonce; empty when the batch only deletes
	abandoned atomic.Bool

	done     chan struct{}
	revision int64
	err      error
}

type batchOp struct {
	key     string
	payload []byte
	sum     uint32
	delete  bool
}

func newBatch(owner store.Owner, fence store.Fence, ops []store.Op) (*batch, error) {
	if err := fence.Check(); err != nil {
		return nil, err
	}
	if len(ops) > store.MaxOps {
		return nil, fleet.Errorf(fleet.ErrExhausted, "batch has %d changes, more than %d", len(ops), store.MaxOps)
	}
	b := &batch{fence: fence, nonce: envelope.DrawNonce(), done: make(chan struct{}), ops: make([]batchOp, 0, len(ops))}
	seen := make(map[string]int, len(ops))
	bytes := 0
	for _, o := range ops {
		op := batchOp{key: o.Key, delete: o.Delete}
		if err := may(owner, o); err != nil {
			return nil, err
		}
		if !o.Delete {
			payload, err := payloadOf(o.Key, o.Value)
			if err != nil {
				return nil, err
			}
			op.payload, op.sum = payload, envelope.Checksum(payload)
		}
		bytes += len(op.payload) + len(op.key) + backend.OpOverhead
		if i, twice := seen[o.Key]; twice {
			b.ops[i] = op
			continue
		}
		seen[o.Key] = len(b.ops)
		b.ops = append(b.ops, op)
	}
	if bytes > maxUpdateBytes {
		return nil, fleet.Errorf(fleet.ErrExhausted, "batch has %d bytes, more than %d", bytes, maxUpdateBytes)
	}
	return b, nil
}

// part guards the batch by its fence and by what is known of its keys: none has changed after base. A put of what the
// snapshot holds already is only guarded; fresh says that the snapshot is not behind this writer's own commits.
func (b *batch) part(snap *snapshot, base int64, fresh bool) backend.Part {
	p := backend.Part{If: make([]backend.Compare, 1, 1+len(b.ops)), Then: make([]backend.Op, 0, len(b.ops))}
	p.If[0] = compareOf(b.fence)
	b.self = ""
	for _, o := range b.ops {
		raw := recordSpace + o.key
		p.If = append(p.If, backend.Compare{Key: raw, AtMost: true, Revision: base})
		if o.delete {
			p.Then = append(p.Then, backend.Op{Key: raw, Delete: true})
			continue
		}
		if fresh && snap.find(o.key).holds(o.payload, o.sum) {
			continue
		}
		nonce := uint64(0)
		if b.self == "" {
			nonce, b.self = b.nonce, raw
		}
		p.Then = append(p.Then, backend.Op{Key: raw, Value: envelope.Seal(o.payload, o.sum, nonce)})
	}
	return p
}

func may(owner store.Owner, o store.Op) error {
	if o.Delete {
		return owner.MayDelete(o.Key)
	}
	return owner.MayPut(o.Key)
}

func (b *batch) finish(revision int64, err error) {
	b.revision, b.err = revision, err
	close(b.done)
}

// batcher packs what waits into transactions, one after the other: what comes while one is under way shares the next.
type batcher struct {
	engine *Engine
	wake   chan struct{}
	last   int64 // revision of the newest answer; of run only
	crowd  crowd // of run only

	mu      sync.Mutex
	waiting []*batch
}

// crowd tells when many batches come at about the same time, as when a step of a rollout is done: then a short wait
// makes one transaction of what would be several.
type crowd struct {
	n  int // batches since at
	at time.Time
}

const (
	crowded    = 4
	crowdSpan  = 20 * time.Millisecond
	crowdGrace = 500 * time.Microsecond // for all of them
	crowdQuiet = 100 * time.Microsecond // for one more

	crowdYields = 10_000
)

func (c *crowd) note(batches int) {
	if time.Since(c.at) > crowdSpan {
		c.n, c.at = 0, time.Now()
	}
	c.n += batches
}

func (c *crowd) here() bool { return c.n >= crowded && time.Since(c.at) <= 2*crowdSpan }

// gather waits, in a crowd, until no more batches come. It yields instead of sleeping: the shortest sleep of an idle
// process is a millisecond, longer than the transaction.
func (w *batcher) gather() {
	if !w.crowd.here() {
		return
	}
	began := time.Now()
	n, at := w.count(), began
	for range crowdYields { // bounded, because the clock of a simulation stands still meanwhile
		runtime.Gosched()
		now := time.Now()
		if more := w.count(); more != n {
			n, at = more, now
		}
		if now.Sub(began) > crowdGrace || now.Sub(at) > crowdQuiet {
			return
		}
	}
}

func (w *batcher) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting)
}

func newBatcher(e *Engine) *batcher { return &batcher{engine: e, wake: make(chan struct{}, 1)} }

func (w *batcher) enqueue(b *batch) {
	w.mu.Lock()
	w.waiting = append(w.waiting, b)
	w.mu.Unlock()
	dirty.Poke(w.wake)
}

// take returns all that wait and are still wanted.
func (w *batcher) take() []*batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	taken := w.waiting
	w.waiting = nil
	return wanted(taken)
}

func wanted(list []*batch) []*batch {
	kept := list[:0]
	for _, b := range list {
		if !b.abandoned.Load() {
			kept = append(kept, b)
		}
	}
	return kept
}

// run is the one writer; it ends at the store's close.
func (w *batcher) run() {
	var todo []*batch
	for {
		if len(todo) == 0 {
			select {
			case <-w.wake:
			case <-w.engine.ctx.Done():
				return
			}
			w.gather()
		}
		todo = append(todo, w.take()...)
		if len(todo) == 0 {
			continue
		}
		group, parts := w.pack(todo)
		w.crowd.note(len(group))
		again, ok := w.commit(group, parts)
		if !ok {
			return
		}
		todo = append(again, todo[len(group):]...)
	}
}

// pack takes from the front as many batches as one transaction can hold.
func (w *batcher) pack(todo []*batch) ([]*batch, []backend.Part) {
	snap := w.engine.model.snapshot()
	base := max(snap.revision, w.last)
	p := backend.NewPacker(w.engine.backend.Limits())
	n := 0
	for n < len(todo) && p.Add(todo[n].part(snap, base, snap.revision >= w.last)) {
		n++
	}
	return todo[:n:n], p.Parts()
}

// commit sends the group until its outcome is known, answers those that have one, and returns the others. It reports
// false when the store closes.
func (w *batcher) commit(group []*batch, parts []backend.Part) ([]*batch, bool) {
	retry := backend.NewRetry()
	for doubt := false; ; doubt = true {
		rev, happened, err := w.engine.backend.Commit(w.engine.ctx, parts)
		if err == nil {
			w.last = max(w.last, rev)
			var again []*batch
			if again, err = w.judge(group, rev, happened, doubt); err == nil {
				return again, true
			}
		}
		if !backend.IsOpen(err) {
			for _, b := range group {
				b.finish(0, err)
			}
			return nil, true
		}
		if len(wanted(slices.Clone(group))) == 0 {
			return nil, true
		}
		if w.engine.pause(w.engine.ctx, retry.Next()) != nil {
			return nil, false
		}
	}
}

// judge answers the batches by what happened and returns those that must go again: a key of theirs was changed by
// another after the snapshot they were guarded by. It answers nobody when it fails.
func (w *batcher) judge(group []*batch, rev int64, happened []bool, doubt bool) ([]*batch, error) {
	var keys []string
	for i, b := range group {
		if happened[i] {
			continue
		}
		keys = append(keys, recordSpace+b.fence.Key)
		if doubt && b.self != "" {
			keys = append(keys, b.self)
		}
	}
	var found map[string]backend.KV
	if len(keys) > 0 {
		var err error
		if found, rev, err = w.engine.backend.Get(w.engine.ctx, 0, keys...); err != nil {
			return nil, err
		}
		w.last = max(w.last, rev)
	}
	var again []*batch
	for i, b := range group {
		c, self := compareOf(b.fence), found[b.self]
		switch {
		case happened[i]:
			b.finish(rev, nil)
		case doubt && b.self != "" && envelope.Nonce(self.Value) == b.nonce:
			b.finish(self.Mod, nil)
		case !c.Holds(found[c.Key]):
			b.finish(0, fleet.Errorf(fleet.ErrStale, "fence %s no longer holds", b.fence.Key))
		default:
			again = append(again, b)
		}
	}
	return again, nil
}
