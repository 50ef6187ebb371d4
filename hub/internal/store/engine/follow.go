package engine

import (
	"context"
	"errors"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// fill lists all records at one revision and makes the read model equal to them.
func (e *Engine) fill(ctx context.Context) error {
	kvs, rev, err := backend.RangeAll(ctx, e.backend, backend.RangeQuery{Prefix: recordSpace, Limit: backend.ListPage})
	if err != nil {
		return err
	}
	if before := e.model.snapshot(); rev < before.revision || another(before, kvs) {
		return e.abandon(fleet.Errorf(fleet.ErrPrecondition, "store went back from revision %d to %d: another one, or an older copy, is served. If it was restored, stop all hubs, mark it with towline-hub restore --etcd-endpoints, and start them",
			before.revision, rev))
	}
	e.model.replace(kvs, rev)
	return nil
}

// another reports that a list is of another store, or of an older copy, which may have come as far since as this one was: a record
// is older in it, or the hub's own one, which is never deleted, is missing.
func another(before *snapshot, kvs []backend.KV) bool {
	missing := before.find(store.HubKey) != nil
	for _, kv := range kvs {
		key := recordKey(kv.Key)
		if old := before.find(key); old != nil && kv.Mod < old.ModRevision {
			return true
		}
		missing = missing && key != store.HubKey
	}
	return missing
}

// abandon ends the store because the backend serves another one, or an older copy of this. What this process has read and
// decided is of a future that never was, and the revisions that it waits for may never come: only a start anew reads all of
// it again.
func (e *Engine) abandon(err error) error {
	e.log.Error("store: given up", "error", err)
	if e.wentBack != nil {
		e.wentBack(err, &view{snapshot: e.model.snapshot()})
	}
	e.cancel()
	e.model.close()
	return err
}

// answered looks at what became of a request: the store is given up if another one answers.
func (e *Engine) answered(err error) error {
	if errors.Is(err, backend.ErrAnother) && e.ctx.Err() == nil {
		return e.abandon(err)
	}
	return err
}

// suspect asks for a new list if the backend is not as far as it was.
func (e *Engine) suspect(before, now int64) {
	if now < before {
		e.askRelist()
	}
}

// follow keeps the read model up to date until the store closes.
func (e *Engine) follow() {
	retry := backend.NewRetry()
	for e.ctx.Err() == nil {
		before := e.model.snapshot().revision
		err := e.answered(e.watch())
		if e.ctx.Err() != nil {
			return
		}
		if e.model.snapshot().revision != before {
			retry.Reset()
		}
		if errors.Is(err, errStalled) {
			continue
		}
		if errors.Is(err, backend.ErrCompacted) || errors.Is(err, errRelist) {
			e.relists.Add(1)
			err = e.fill(e.ctx)
			if err == nil {
				continue
			}
		}
		wait := retry.Next()
		e.log.Warn("store: watch is broken", "revision", e.model.snapshot().revision, "error", err, "retry", wait)
		if e.pause(e.ctx, wait) != nil {
			return
		}
	}
}

var errRelist = fleet.Errorf(fleet.ErrUnavailable, "store: the list is void")

// watch follows the changes from where the read model is, until the watch breaks or a new list is asked for.
func (e *Engine) watch() error {
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	done := make(chan struct{})
	e.running.Go(func() {
		select {
		case <-e.relist:
			cancel(errRelist)
		case <-e.rewatch:
			cancel(errStalled)
		case <-done:
		}
	})
	defer close(done)
	e.watching.Store(true)
	defer e.watching.Store(false)
	err := e.backend.Watch(ctx, recordSpace, e.model.snapshot().revision+1, e.model.apply)
	if cause := context.Cause(ctx); cause == errRelist || cause == errStalled {
		return cause
	}
	return err
}

func (e *Engine) askRelist() {
	dirty.Poke(e.relist)
}
