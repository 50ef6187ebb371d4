package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

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
	p := backend.Part{If: make([]backend.Compare, 1, 2+len(b.ops)), Then: make([]backend.Op, 0, len(b.ops))}
	p.If[0] = compareOf(b.fence)
	carried := false
	for _, o := range b.ops {
		raw := recordSpace + o.key
		was := snap.find(o.key)
		guard := backend.Compare{Key: raw, AtMost: true, Revision: base}
		if fresh {
			guard = backend.Compare{Key: raw, Revision: revisionOf(was)}
		}
		p.If = append(p.If, guard)
		if o.delete {
			p.Then = append(p.Then, backend.Op{Key: raw, Delete: true})
			continue
		}
		if fresh && was.holds(o.payload, o.sum) {
			continue
		}
		nonce := uint64(0)
		if !carried {
			nonce, carried = b.nonce, true
		}
		p.Then = append(p.Then, backend.Op{Key: raw, Value: seal(o.key, o.payload, o.sum, nonce)})
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

	mu      sync.Mutex
	waiting []*batch
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
		}
		todo = append(todo, w.take()...)
		if len(todo) == 0 {
			continue
		}
		g := w.pack(todo)
		sent := len(g.batches)
		again, ok := w.commit(g)
		if !ok {
			return
		}
		todo = append(again, todo[sent:]...)
	}
}

// pack takes from the front as many batches as one transaction can hold, guarded by the base.
func (w *batcher) pack(todo []*batch) group {
	snap := w.engine.model.snapshot()
	base := max(snap.revision, w.last)
	p := backend.NewPacker(w.engine.backend.Limits())
	n := 0
	for ; n < len(todo); n++ {
		part := todo[n].part(snap, base, snap.revision >= w.last)
		if part.If = append(part.If, w.engine.doubts.fence()); !p.Add(part) {
			break
		}
	}
	return group{batches: todo[:n:n], parts: p.Parts(), base: base}
}

// group is the batches that share a transaction.
type group struct {
	batches []*batch
	parts   []backend.Part // one for each
	base    int64          // that guards them
}

// commit sends the group until it is known what became of each batch, answers those that are decided, and returns the
// others. It reports false when the store closes.
func (w *batcher) commit(g group) ([]*batch, bool) {
	retry := backend.NewRetry()
	for doubt := false; ; doubt = true {
		again, err := w.send(&g, doubt)
		if err == nil {
			return again, true
		}
		if !backend.IsOpen(err) {
			for _, b := range g.batches {
				b.finish(0, err)
			}
			return nil, true
		}
		if len(wanted(slices.Clone(g.batches))) == 0 {
			return nil, true
		}
		if w.engine.pause(w.engine.ctx, retry.Next()) != nil {
			return nil, false
		}
	}
}

// send sends the group, in doubt without what has happened before, and answers the batches that are decided. It returns
// those that must go again: a key of theirs was changed by another after the base. When it fails, all that are still in
// the group are open.
func (w *batcher) send(g *group, doubt bool) ([]*batch, error) {
	if doubt {
		rev, err := w.engine.settle(w.engine.ctx, g.parts[0])
		if err == nil {
			err = w.recall(g, rev)
		}
		if err != nil || len(g.batches) == 0 {
			return nil, err
		}
	}
	fence := w.engine.doubts.fence()
	for i := range g.parts {
		g.parts[i] = fenced(g.parts[i], fence)
	}
	rev, happened, err := w.engine.transact(w.engine.ctx, g.parts)
	if err != nil {
		return nil, err
	}
	w.engine.suspect(g.base, rev)
	w.last = max(w.last, rev)
	g.drop(func(i int) bool {
		if happened[i] {
			g.batches[i].finish(rev, nil)
		}
		return happened[i]
	})
	if doubt {
		if err := w.recall(g, rev); err != nil {
			return nil, err
		}
	}
	return g.batches, w.refuse(g)
}

// recall answers the batches that have happened up to the revision, and those of which it cannot be told.
func (w *batcher) recall(g *group, revision int64) error {
	var failed error
	g.drop(func(i int) bool {
		if failed != nil {
			return false
		}
		b := g.batches[i]
		happened, at, err := w.engine.inquire(w.engine.ctx, b.ops[0].key, traceOf(g.parts[i], g.base, b.nonce), revision)
		if backend.IsOpen(err) {
			failed = err
			return false
		}
		if happened || err != nil {
			b.finish(at, err)
		}
		return happened || err != nil
	})
	return failed
}

// refuse answers the batches whose fence no longer holds.
func (w *batcher) refuse(g *group) error {
	if len(g.batches) == 0 {
		return nil
	}
	keys := make([]string, len(g.batches), len(g.batches)+1)
	for i, b := range g.batches {
		keys[i] = recordSpace + b.fence.Key
	}
	found, rev, err := w.engine.backend.Get(w.engine.ctx, 0, append(keys, w.engine.doubts.key)...)
	if err != nil {
		return err
	}
	w.engine.doubts.learn(found)
	w.last = max(w.last, rev)
	g.drop(func(i int) bool {
		b := g.batches[i]
		c := compareOf(b.fence)
		if c.Holds(found[c.Key]) {
			return false
		}
		b.finish(0, fleet.Errorf(fleet.ErrStale, "fence %s no longer holds", b.fence.Key))
		return true
	})
	return nil
}

// drop takes the batches out of the group for which answered says so; it is asked once for each.
func (g *group) drop(answered func(i int) bool) {
	var batches []*batch
	var parts []backend.Part
	for i := range g.batches {
		if !answered(i) {
			batches, parts = append(batches, g.batches[i]), append(parts, g.parts[i])
		}
	}
	g.batches, g.parts = batches, parts
}
