package api

import (
	"context"
	"errors"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// readWait is how long a read waits until this hub has read of a write that its caller knows of.
const readWait = 5 * time.Second

// view runs fn on what there is at the revision or later.
func (a *API) view(ctx context.Context, minRevision int64, fn func(store.Reader) error) error {
	if err := a.reach(ctx, minRevision); err != nil {
		return err
	}
	return a.o.Store.View(ctx, minRevision, fn)
}

// reach waits until this hub has read the store up to a revision that the caller got from a write. A revision that the store
// has not come to at all is of what it was before it was restored from a copy, or of another hub: nobody waits for that.
func (a *API) reach(ctx context.Context, revision int64) error {
	if revision <= 0 || a.revision(ctx) >= revision {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, readWait)
	defer cancel()
	newest, err := a.o.Store.Barrier(waiting)
	switch {
	case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		return later(fleet.Errorf(fleet.ErrUnavailable, "this hub has read the store up to revision %d, and not up to %d yet", a.revision(ctx), revision))
	case err != nil:
		return err
	case newest < revision:
		return fleet.Errorf(fleet.ErrStale, "the store is at revision %d and has no %d: it was restored from a copy, or the revision is another hub's; read without min_revision",
			newest, revision)
	}
	return nil
}

// revision is up to where this hub has read the store.
func (a *API) revision(ctx context.Context) (revision int64) {
	_ = a.o.Store.View(ctx, 0, func(r store.Reader) error { // it fails where all others do
		revision = r.Revision()
		return nil
	})
	return revision
}
