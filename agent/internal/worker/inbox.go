package worker

import (
	"context"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// assign gives the worker a target; the latest counts.
func (w *worker) assign(t target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.claim = w.m.claims.owe(w.ref)
	w.next = &t
	w.onHold.Store(t.hold)
	w.objects.Store(&t.held)
	dirty.Poke(w.signal)
}

// touch has an object looked at, or, if the module does not list it, all that is to go.
func (w *worker) touch(id fleet.ObjectID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dirty[id] = true
	dirty.Poke(w.signal)
}

// touchUsed has a Namespace looked at, if the module uses it.
func (w *worker) touchUsed(id fleet.ObjectID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.uses[id] {
		w.dirty[id] = true
		dirty.Poke(w.signal)
	}
}

// noteUse notes whether the module uses a Namespace that is somebody else's.
func (w *worker) noteUse(id fleet.ObjectID, does bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !does {
		delete(w.uses, id)
		return
	}
	if w.uses == nil {
		w.uses = map[fleet.ObjectID]bool{}
	}
	w.uses[id] = true
}

func (w *worker) touchKind(group, kind string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.groups[[2]string{group, kind}] = true
	dirty.Poke(w.signal)
}

func (w *worker) touchAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = true
	dirty.Poke(w.signal)
}

// touchUnreached has all tried again at once that the API server could not do.
func (w *worker) touchUnreached() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.anew = true
	dirty.Poke(w.signal)
}

// superseded reports that a newer target waits.
func (w *worker) superseded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next != nil
}

// take makes the newest target the current one, and collects what changed.
func (w *worker) take(ctx context.Context, now time.Time) {
	w.mu.Lock()
	next, dirty, groups, all, hurry, anew, rejudge, rebind := w.next, w.dirty, w.groups, w.all, w.hurry, w.anew, w.rejudge, w.rebind
	w.next, w.all, w.hurry, w.anew, w.rejudge, w.rebind = nil, false, nil, false, false, false
	if len(dirty) > 0 {
		w.dirty = map[fleet.ObjectID]bool{}
	} else {
		dirty = nil // the map is still the one that others write to
	}
	if len(groups) > 0 {
		w.groups = map[[2]string]bool{}
	} else {
		groups = nil
	}
	w.mu.Unlock()
	reload := w.loadError != nil && !now.Before(w.loadRetry)
	if next != nil {
		w.retarget(ctx, *next, now)
	} else if reload {
		w.load(ctx, now)
		w.pruning.touched = true
	}
	for id := range dirty {
		if it := w.byID[id]; it != nil {
			it.look = true
		} else {
			w.pruning.touched = true
		}
		w.binder.again = w.binder.again || w.binds(id)
	}
	for _, id := range hurry {
		if it := w.byID[id]; it != nil {
			it.clear()
		}
	}
	w.binder.again = w.binder.again || rebind || all || anew || rejudge || len(groups) > 0
	if anew {
		w.retryUnreached(now)
	}
	if rejudge {
		w.retryDenied(now)
	}
	if all || len(groups) > 0 {
		for _, it := range w.items {
			hit := groups[[2]string{it.entry.ID.Group, it.entry.ID.Kind}]
			exists := groups[[2]string{it.entry.ID.Group, ""}] && it.fail != nil && (it.fail.Reason == apply.ReasonNoKind || it.fail.Reason == apply.ReasonInvalid)
			if exists {
				it.next = time.Time{}
			}
			if exists && it.resource.Resource == "" && !w.search.retry.IsZero() {
				w.search.retry = now
			}
			it.look = it.look || all || hit || exists
		}
		w.pruning.touched = true // what is not wanted any more may be one of them
	}
}

// retryUnreached ends the back-off of what the API server could not do.
func (w *worker) retryUnreached(now time.Time) {
	for _, it := range w.items {
		if it.fail != nil && it.fail.Unreached() {
			it.clear()
			it.look = true
		}
	}
	if !w.search.retry.IsZero() {
		w.search = kindSearch{retry: now}
	}
	if w.pruning.failed != nil && w.pruning.failed.Unreached() {
		w.pruning.retry, w.pruning.touched = now, true
	}
}
