package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/fleet"
)

func (e *Engine) update(ctx context.Context, owner store.Owner, fn func(store.Writer) error) (int64, error) {
	retry := backend.NewRetry()
	at := e.own.Load()
	for tries := 0; ; tries++ {
		snap, err := e.await(ctx, at)
		if err != nil {
			return 0, err
		}
		t := newTransaction(snap, owner)
		if err := t.run(fn); err != nil {
			return 0, err
		}
		part, err := t.part()
		if err != nil {
			return 0, err
		}
		if len(part.Then) == 0 {
			return snap.revision, nil
		}
		if t.grows {
			if err := e.backend.Full(); err != nil {
				return 0, err
			}
		}
		out, err := e.settle(ctx, t, part)
		if err != nil {
			return 0, err
		}
		if out.committed {
			raise(&e.own, out.revision)
			return out.revision, nil
		}
		if err := t.verdict(out.found); err != nil {
			return 0, err
		}
		at = out.revision
		if tries == 0 {
			continue
		}
		if err := e.pause(ctx, retry.Next()); err != nil {
			return 0, fmt.Errorf("update lost the race %d times: %w", tries+1, err)
		}
	}
}

// outcome is what became of a transaction.
type outcome struct {
	committed bool
	revision  int64
	found     map[string]backend.KV // when it is not committed
}

// settle commits the part and finds out what became of it, also when the answer is lost. The part may be sent again:
// it compares a key that it changes itself, so it happens once at most.
func (e *Engine) settle(ctx context.Context, t *transaction, part backend.Part) (outcome, error) {
	retry := backend.NewRetry()
	for doubt := false; ; doubt = true {
		rev, happened, err := e.backend.Commit(ctx, []backend.Part{part})
		if err == nil && happened[0] {
			return outcome{committed: true, revision: rev}, nil
		}
		if err == nil {
			var out outcome
			if out, err = e.postMortem(ctx, t, doubt); err == nil {
				return out, nil
			}
		}
		if !backend.IsOpen(err) {
			return outcome{}, err
		}
		if waitErr := e.pause(ctx, retry.Next()); waitErr != nil {
			return outcome{}, fmt.Errorf("%s: whether it was written is unknown: %w: %w", t.selfKey, waitErr, err)
		}
	}
}

// postMortem reads what a lost transaction compared.
func (e *Engine) postMortem(ctx context.Context, t *transaction, doubt bool) (outcome, error) {
	found, rev, err := e.backend.Get(ctx, 0, t.suspects()...)
	out := outcome{revision: rev, found: found}
	if err == nil && doubt {
		out.committed, out.revision, err = e.wasCommitted(ctx, t, out)
	}
	return out, err
}

// wasCommitted looks for the transaction's nonce in what its first key holds and held since the snapshot.
func (e *Engine) wasCommitted(ctx context.Context, t *transaction, lost outcome) (bool, int64, error) {
	key := recordSpace + t.selfKey
	kv, there := lost.found[key]
	for range maxVersions {
		if !there {
			return t.selfDeletes, lost.revision, nil
		}
		if kv.Mod <= t.snap.revision {
			return false, lost.revision, nil
		}
		if !t.selfDeletes && envelope.Nonce(kv.Value) == t.nonce {
			return true, kv.Mod, nil
		}
		if t.selfDeletes && kv.Create > t.snap.revision {
			return true, kv.Create, nil
		}
		found, _, err := e.backend.Get(ctx, kv.Mod-1, key)
		if errors.Is(err, backend.ErrCompacted) {
			break
		}
		if err != nil {
			return false, 0, err
		}
		kv, there = found[key]
	}
	return false, 0, fleet.Errorf(fleet.ErrConflict, "%s: whether it was written is unknown: it was overwritten too often since", t.selfKey)
}

// maxVersions is how far wasCommitted goes back.
const maxVersions = 1000

// raise sets a to the revision if that is higher.
func raise(a *atomic.Int64, revision int64) {
	for {
		now := a.Load()
		if now >= revision || a.CompareAndSwap(now, revision) {
			return
		}
	}
}
