package control

import (
	"context"
	"sync"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Prepare begins to render a source that is all in the module, while the put that brings it is on its way to the disk.
// The resolver takes what came of it. It does not wait, may do nothing, and what it leaves behind when the put fails is
// collected as garbage.
func (c *Controller) Prepare(m *wire.Module, spec fleet.Digest) {
	if m.Source.GetInline() == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.spawn == nil {
		return
	}
	p := c.prepared.add(spec, time.Now())
	if p == nil {
		return
	}
	c.spawn(func(ctx context.Context) {
		defer close(p.done)
		p.err = guarded(func() (err error) {
			p.out, err = c.render(ctx, m)
			return err
		})
	})
}

// prepare takes what was prepared, or renders. What went wrong ahead is tried again, so that errors are those of now.
func (c *Controller) prepare(ctx context.Context, m *wire.Module, spec fleet.Digest) (rendered, error) {
	p := c.prepared.take(spec)
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

// preparations are renderings ahead, by the digest of the spec. One that nobody took is dropped after a while.
type preparations struct {
	mu   sync.Mutex
	list map[fleet.Digest]*preparation
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
func (x *preparations) add(spec fleet.Digest, now time.Time) *preparation {
	x.mu.Lock()
	defer x.mu.Unlock()
	for d, p := range x.list {
		if now.Sub(p.at) > preparationAge {
			delete(x.list, d)
		}
	}
	if x.list[spec] != nil || len(x.list) >= maxPreparations {
		return nil
	}
	if x.list == nil {
		x.list = map[fleet.Digest]*preparation{}
	}
	p := &preparation{at: now, done: make(chan struct{})}
	x.list[spec] = p
	return p
}

// take removes and returns one; nil: there is none.
func (x *preparations) take(spec fleet.Digest) *preparation {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.list[spec]
	delete(x.list, spec)
	return p
}
