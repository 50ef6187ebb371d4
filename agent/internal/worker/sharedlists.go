package worker

import (
	"context"
	"sync"

	"towline.dev/towline/pkg/plan"
)

// around is where that is which may go with one object: in its namespace, or anywhere.
type around struct {
	space    string
	anywhere bool
}

func aroundOf(r plan.Record) around {
	return around{space: r.ID.Namespace, anywhere: reachOf([]plan.Record{r}).anywhere}
}

// together has those share bindings who ask for the same at the same time, as when many objects are made again: each is told by lists that began after
// it asked, as if it had asked alone.
type together struct {
	mu      sync.Mutex
	waiting map[around]*asking // have not begun, and take who comes
	running map[around]*asking // began last, and are not through
}

type asking struct {
	through chan struct{}
	bound   bindings
	whole   bool // else it was given up, and says nothing
}

// bindings are what find finds, for this call or for another one.
func (t *together) bindings(ctx context.Context, at around, find func(context.Context) bindings) bindings {
	x, before, first := t.join(at)
	if !first {
		select {
		case <-x.through:
		case <-ctx.Done():
		}
		if ctx.Err() == nil && x.whole {
			return x.bound
		}
		return find(ctx)
	}
	defer close(x.through)
	if before != nil {
		select {
		case <-before.through:
		case <-ctx.Done():
		}
	}
	t.begin(at, x)
	defer t.end(at, x)
	x.bound = find(ctx)
	x.whole = ctx.Err() == nil
	return x.bound
}

// join returns what takes who comes now, made by the first, and what is under way.
func (t *together) join(at around) (x, before *asking, first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if x = t.waiting[at]; x != nil {
		return x, nil, false
	}
	if t.waiting == nil {
		t.waiting, t.running = map[around]*asking{}, map[around]*asking{}
	}
	x = &asking{through: make(chan struct{})}
	t.waiting[at] = x
	return x, t.running[at], true
}

// begin takes nobody any more.
func (t *together) begin(at around, x *asking) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, at)
	t.running[at] = x
}

func (t *together) end(at around, x *asking) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[at] == x {
		delete(t.running, at)
	}
}
