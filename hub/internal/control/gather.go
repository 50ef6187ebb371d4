package control

import (
	"sync"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Gather is told of a put of a batch before it is committed, and with more false of the end of the batch after the last
// one. The modules that were put begin their rollouts only then, so that what one lets go is not deleted before it is known
// that another lists it.
func (c *Controller) Gather(batch string, ref fleet.ModuleRef, more bool) {
	if more {
		c.gathered.add(batch, ref, time.Now())
		return
	}
	refs := c.gathered.end(batch)
	c.mu.Lock()
	leads := c.spawn != nil
	c.mu.Unlock()
	if !leads {
		return
	}
	for ref := range refs {
		c.state(ref).asksAgain()
		c.modules.add(store.ModuleKey(ref))
	}
}

// gatherings are batches of puts that are not all in.
type gatherings struct {
	mu   sync.Mutex
	list map[string]*gathering
}

type gathering struct {
	modules map[fleet.ModuleRef]bool
	until   time.Time
}

const (
	// gatherPatience is how long a batch waits for its next put.
	gatherPatience = 2 * time.Second
	maxGatherings  = 256
)

func (x *gatherings) add(batch string, ref fleet.ModuleRef, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, g := range x.list {
		if now.After(g.until) {
			delete(x.list, id)
		}
	}
	g := x.list[batch]
	if g == nil {
		if len(x.list) >= maxGatherings {
			return
		}
		if x.list == nil {
			x.list = map[string]*gathering{}
		}
		g = &gathering{modules: map[fleet.ModuleRef]bool{}}
		x.list[batch] = g
	}
	g.modules[ref], g.until = true, now.Add(gatherPatience)
}

func (x *gatherings) end(batch string) map[fleet.ModuleRef]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.list[batch]
	delete(x.list, batch)
	if g == nil {
		return nil
	}
	return g.modules
}

// wait is until when a module's rollout waits for other puts; zero: it does not.
func (x *gatherings) wait(ref fleet.ModuleRef, now time.Time) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	var until time.Time
	for _, g := range x.list {
		if g.modules[ref] && now.Before(g.until) && g.until.After(until) {
			until = g.until
		}
	}
	return until
}
