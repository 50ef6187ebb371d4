package engine

import (
	"context"
	"fmt"
	"sync/atomic"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
)

func (e *Engine) update(ctx context.Context, owner store.Owner, fn func(store.Writer) error) (int64, error) {
	retry := backend.NewRetry()
	at := e.own.Load()
	for tries := 0; ; tries++ {
		snap, err := e.await(ctx, at)
		if err != nil {
			return 0, err
		}
		d := newDraft(snap, owner)
		if err := d.run(fn); err != nil {
			return 0, err
		}
		part, err := d.part()
		if err != nil {
			return 0, err
		}
		if len(part.Then) == 0 {
			return snap.revision, nil
		}
		part.If = append(part.If, e.doubts.fence())
		if d.grows {
			if err := e.backend.Full(); err != nil {
				return 0, err
			}
		}
		out, err := e.commit(ctx, d, part)
		if err != nil {
			return 0, err
		}
		e.suspect(snap.revision, out.revision)
		if out.committed {
			raise(&e.own, out.revision)
			return out.revision, nil
		}
		if err := d.verdict(out.found); err != nil {
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

// outcome is what became of a draft.
type outcome struct {
	committed bool
	revision  int64
	found     map[string]backend.KV // what verdict asks for, when it is not committed
}

// commit sends the part until it is known what became of it. It is sent again only when what was sent before has happened, or
// never will.
func (e *Engine) commit(ctx context.Context, d *draft, part backend.Part) (outcome, error) {
	retry := backend.NewRetry()
	var doubt *trace // of what was sent before
	for {
		out, err := e.send(ctx, d, &part, doubt)
		if err == nil {
			return out, nil
		}
		t := traceOf(part, d.snap.revision, d.nonce)
		doubt = &t
		if !backend.IsOpen(err) {
			return outcome{}, err
		}
		if waitErr := e.pause(ctx, retry.Next()); waitErr != nil {
			return outcome{}, fmt.Errorf("%s: whether it was written is unknown: %w: %w", d.selfKey, waitErr, err)
		}
	}
}

// send sends the part, unless what was sent before has happened.
func (e *Engine) send(ctx context.Context, d *draft, part *backend.Part, doubt *trace) (outcome, error) {
	if doubt != nil {
		rev, err := e.settle(ctx, *part)
		if err != nil {
			return outcome{}, err
		}
		if happened, at, err := e.inquire(ctx, d.selfKey, *doubt, rev); happened || err != nil {
			return outcome{committed: happened, revision: at}, err
		}
	}
	*part = fenced(*part, e.doubts.fence())
	rev, happened, err := e.transact(ctx, []backend.Part{*part})
	if err != nil || happened[0] {
		return outcome{committed: err == nil, revision: rev}, err
	}
	if doubt != nil {
		if happened, at, err := e.inquire(ctx, d.selfKey, *doubt, rev); happened || err != nil {
			return outcome{committed: happened, revision: at}, err
		}
	}
	found, rev, err := e.backend.Get(ctx, 0, append(d.suspects(), e.doubts.key)...)
	if err == nil {
		e.doubts.learn(found)
	}
	return outcome{revision: rev, found: found}, err
}

// raise sets a to the revision if that is higher.
func raise(a *atomic.Int64, revision int64) {
	for {
		now := a.Load()
		if now >= revision || a.CompareAndSwap(now, revision) {
			return
		}
	}
}
