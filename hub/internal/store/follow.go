package store

import (
	"context"
	"errors"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// listPage is how many records one page of a list holds.
const listPage = 2000

// fill lists all records at one revision and makes the read model equal to them.
func (e *engine) fill(ctx context.Context) error {
	kvs, rev, err := e.rangeAll(ctx, RangeQuery{Prefix: recordSpace, Limit: listPage})
	if err != nil {
		return err
	}
	if before := e.model.snapshot().revision; rev < before {
		e.log.Error("store: revision went back; another or an older store is served now", "from", before, "to", rev)
	}
	e.model.replace(kvs, rev)
	return nil
}

// rangeAll reads all pages at the revision of the first.
func (e *engine) rangeAll(ctx context.Context, q RangeQuery) ([]KV, int64, error) {
	var all []KV
	for restarts := 0; ; {
		page, err := e.backend.Range(ctx, q)
		if errors.Is(err, ErrCompacted) && restarts < 3 {
			restarts++
			all, q.After, q.Revision = nil, "", 0
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		all = append(all, page.KVs...)
		if !page.More || len(page.KVs) == 0 {
			return all, page.Revision, nil
		}
		q.After, q.Revision = page.KVs[len(page.KVs)-1].Key, page.Revision
	}
}

// follow keeps the read model up to date until the store closes.
func (e *engine) follow() {
	retry := newRetry()
	for e.ctx.Err() == nil {
		before := e.model.snapshot().revision
		err := e.watch()
		if e.ctx.Err() != nil {
			return
		}
		if e.model.snapshot().revision != before {
			retry.Reset()
		}
		if errors.Is(err, ErrCompacted) || errors.Is(err, errRelist) {
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
func (e *engine) watch() error {
	ctx, cancel := context.WithCancelCause(e.ctx)
	defer cancel(nil)
	done := make(chan struct{})
	e.running.Go(func() {
		select {
		case <-e.relist:
			cancel(errRelist)
		case <-done:
		}
	})
	defer close(done)
	err := e.backend.Watch(ctx, recordSpace, e.model.snapshot().revision+1, e.model.apply)
	if cause := context.Cause(ctx); errors.Is(cause, errRelist) {
		return errRelist
	}
	return err
}

func (e *engine) askRelist() {
	dirty.Poke(e.relist)
}
