package control

import (
	"context"
	"sync"
	"time"

	"towline.dev/towline/hub/internal/patch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Render makes the objects of a source that is all in the module or on the hub, so that one which cannot be rendered is refused with the
// put that brings it. Of other sources it says nothing. What it returns begins to store them, to be called when the put is
// on its way: the resolver takes what came of that. It does not wait, may do nothing, and what it leaves behind when the put
// fails is collected as garbage.
func (c *Controller) Render(ctx context.Context, m *wire.Module, spec fleet.Digest) (store func(), err error) {
	if err := patch.Check(m.Overrides); err != nil {
		return nil, err
	}
	if !wire.Contained(m.Source) {
		return func() {}, nil
	}
	x, err := c.makeObjects(ctx, m)
	if err != nil {
		return nil, err
	}
	return func() { c.ahead(m, spec, x) }, nil
}

func (c *Controller) ahead(m *wire.Module, spec fleet.Digest, x made) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spawn == nil {
		return
	}
	p := c.prepared.add(preparationKey{m.Ref, spec}, time.Now())
	if p == nil {
		return
	}
	c.spawn(func(ctx context.Context) {
		defer close(p.done)
		p.err = guarded(func() (err error) {
			p.out, err = c.keep(ctx, m, x)
			return err
		})
	})
}

// prepare takes what was prepared, or renders. What went wrong ahead is tried again, so that errors are those of now.
func (c *Controller) prepare(ctx context.Context, m *wire.Module, spec fleet.Digest) (rendered, error) {
	p := c.prepared.take(preparationKey{m.Ref, spec}, time.Now())
	if p == nil {
		return c.render(ctx, m)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return rendered{}, ctx.Err()
	}
	if p.err != nil {
		return c.render(ctx, m)
	}
	return p.out, nil
}

// preparations are renderings ahead. One that nobody took is dropped after a while.
type preparations struct {
	mu   sync.Mutex
	list map[preparationKey]*preparation
}

// preparationKey names a rendering by the module, whose project has a say in the policies, and by its spec.
type preparationKey struct {
	ref  fleet.ModuleRef
	spec fleet.Digest
}

type preparation struct {
	at   time.Time
	done chan struct{}
	out  rendered
	err  error
}

const (
	maxPreparations = 16
	preparationAge  = 10 * time.Second
)

// add makes room for one; nil: it is there, or there are too many.
func (x *preparations) add(key preparationKey, now time.Time) *preparation {
	x.mu.Lock()
	defer x.mu.Unlock()
	for d, p := range x.list {
		if now.Sub(p.at) > preparationAge {
			delete(x.list, d)
		}
	}
	if x.list[key] != nil || len(x.list) >= maxPreparations {
		return nil
	}
	if x.list == nil {
		x.list = map[preparationKey]*preparation{}
	}
	p := &preparation{at: now, done: make(chan struct{})}
	x.list[key] = p
	return p
}

// take removes and returns one; nil: there is none, or it is too old for what a source has now.
func (x *preparations) take(key preparationKey, now time.Time) *preparation {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.list[key]
	delete(x.list, key)
	if p != nil && now.Sub(p.at) > preparationAge {
		return nil
	}
	return p
}
