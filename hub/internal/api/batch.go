package api

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

const (
	// maxBatch is how long the name of a batch may be.
	maxBatch = 64
	// maxBatches is how many batches may be under way.
	maxBatches = 1024
	// batchBeat is how often is noted that a batch is under way, if nothing else of it is written.
	batchBeat = record.BatchPatience / 3
)

// ofBatch is a request that may belong to a batch.
type ofBatch interface {
	GetBatch() string
	GetDryRun() bool
}

// batchOf is the batch of a request; empty: it stands alone.
func batchOf(ctx context.Context, req ofBatch) string {
	if req.GetBatch() == "" || req.GetDryRun() {
		return ""
	}
	return record.BatchID(who(ctx), req.GetBatch())
}

func checkBatch(req ofBatch) error {
	if n := len(req.GetBatch()); n > maxBatch {
		return fleet.Invalidf("batch", "has %d bytes; at most %d", n, maxBatch)
	}
	return nil
}

// gather notes in the transaction of a put that others of its batch are to come, or that this is the last one. What begins nothing has
// nobody wait, but for those that wait already. A put that is refused ends no batch: whoever puts it may mend it. One that comes when the batch
// has been broken off is refused: those before it have not begun, and what it lets go may be what they list.
func (a *API) gather(ctx context.Context, w store.Writer, req *towlinev1.PutModuleRequest, begins bool) error {
	id := batchOf(ctx, req)
	if id == "" {
		return nil
	}
	key := store.BatchKey(id)
	old, _, open := store.Get[*storev1.BatchRecord](w, key)
	if (!req.GetMore() || !open && begins) && record.BrokenOff(w, id) {
		return fleet.Errorf(fleet.ErrPrecondition, "it comes too late: what was put with it before did not begin, since nothing more came for %s; put all of it again, as a new batch (towline apply)", record.BatchPatience)
	}
	put := !req.GetMore() && req.GetDeletes()
	switch {
	case !req.GetMore() && !put:
		if open {
			w.Delete(key)
		}
		return nil
	case !begins && (!open || old.GetPut() == put && notedAt(old.GetLast().AsTime(), a.now())):
		return nil
	case !open:
		if err := mayOpen(w); err != nil {
			return err
		}
	}
	w.Put(key, &storev1.BatchRecord{Last: timestamppb.New(a.now()), Put: put})
	return nil
}

// endsWith notes in the transaction of a deletion that others of its batch are to come, or ends the batch. One whose puts are not all in goes on:
// whoever deletes before that has not put what the rest lists.
func (a *API) endsWith(ctx context.Context, w store.Writer, req *towlinev1.DeleteModuleRequest) {
	id := batchOf(ctx, req)
	if id == "" {
		return
	}
	key := store.BatchKey(id)
	switch b, _, _ := store.Get[*storev1.BatchRecord](w, key); {
	case !b.GetPut():
	case !req.GetMore():
		w.Delete(key)
	case !notedAt(b.GetLast().AsTime(), a.now()):
		w.Put(key, &storev1.BatchRecord{Last: timestamppb.New(a.now()), Put: true})
	}
}

// endsRefused is endsWith for a deletion that is refused: what it was to delete stays, and is waited for no longer than it has to be. If that cannot
// be written the batch ends by itself.
func (a *API) endsRefused(ctx context.Context, req *towlinev1.DeleteModuleRequest) {
	if batchOf(ctx, req) == "" || req.GetMore() {
		return
	}
	if _, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		a.endsWith(ctx, w, req)
		return nil
	}); err != nil && ctx.Err() == nil {
		a.o.Log.Warn("a batch could not be ended; it ends by itself", "after", record.BatchPatience, "error", err)
	}
}

// notedAt reports that it need not be noted again that a batch is under way. The word before may be of another hub, whose clock is ahead.
func notedAt(last, now time.Time) bool {
	since := now.Sub(last)
	return since >= 0 && since < batchBeat
}

// endBatches ends the batches of modules of a catalog that were put by looks before, or by tries of this one, as far as of says that they are to
// end: nothing of the files is to come any more.
func (a *API) endBatches(ctx context.Context, look record.CatalogLook, files []catalogFile, of func(store.Reader, fleet.ModuleRef) string) error {
	keys := map[string]bool{}
	if err := a.o.Store.View(ctx, 0, func(r store.Reader) error {
		for _, f := range files {
			ro := rollouts.Last(r, f.m.Ref)
			if id := of(r, f.m.Ref); id != "" && ro.GetRollout().GetStatus().GetStartedBy() == fleet.CatalogOrigin(look.Ref.Name) {
				keys[store.BatchKey(id)] = true
			}
		}
		return nil
	}); err != nil || len(keys) == 0 {
		return err
	}
	_, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		if err := authorOf(look).may(w); err != nil {
			return err
		}
		for key := range keys {
			w.Delete(key)
		}
		return nil
	})
	return err
}

// mayOpen refuses more batches than may be under way.
func mayOpen(r store.Reader) error {
	n := 0
	store.Untracked(r).Scan(store.BatchPrefix, func(store.Entry) bool {
		n++
		return n < maxBatches
	})
	if n >= maxBatches {
		return fleet.Errorf(fleet.ErrExhausted, "%d batches of puts are under way, which is as many as there may be; try again in %s", n, record.BatchPatience)
	}
	return nil
}

// gathering has the other puts of a batch wait for one, however long it takes, until done is called.
func (a *API) gathering(ctx context.Context, id string) (done func()) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		beat := time.NewTicker(batchBeat)
		defer beat.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-beat.C:
				a.beat(ctx, id)
			}
		}
	}()
	return func() {
		cancel()
		<-stopped
	}
}

// beat notes that a batch is under way still. If that cannot be written the next beat may be.
func (a *API) beat(ctx context.Context, id string) {
	_, err := a.o.Store.Update(ctx, func(w store.Writer) error {
		if b, _, open := store.Get[*storev1.BatchRecord](w, store.BatchKey(id)); open {
			w.Put(store.BatchKey(id), &storev1.BatchRecord{Last: timestamppb.New(a.now()), Put: b.GetPut()})
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		a.o.Log.Warn("that a batch is under way could not be noted; without that its modules do not begin", "error", err)
	}
}
