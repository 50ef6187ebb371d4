package control

import (
	"context"
	"sync"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// waitsAhead reports that the revision of a put is not to be cut yet, because what the module depends on was put as well and its source is
// still being fetched and rendered: the module would begin on the revision of before. It looks again when one of those gets further.
func (c *Controller) waitsAhead(ctx context.Context, ref fleet.ModuleRef) (waits bool, err error) {
	err = c.view(ctx, func(r store.Reader) error {
		ahead := record.SourcesAhead(r, ref)
		waits = len(ahead) > 0
		for _, m := range ahead {
			c.behind.add(m, ref)
		}
		return nil
	})
	if waits {
		c.modules.addAt(store.ModuleKey(ref), time.Now().Add(againDependents)) // one of them may have got further before it was noted
	}
	return waits, err
}

// touchBehind has those looked at that wait for the source of a module.
func (c *Controller) touchBehind(ref fleet.ModuleRef) {
	for m := range c.behind.take(ref) {
		c.modules.add(store.ModuleKey(m))
	}
}

// waitings are modules that wait for the sources of others, by these.
type waitings struct {
	mu sync.Mutex
	of map[fleet.ModuleRef]map[fleet.ModuleRef]bool
}

func (x *waitings) add(ahead, ref fleet.ModuleRef) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		x.of = map[fleet.ModuleRef]map[fleet.ModuleRef]bool{}
	}
	if x.of[ahead] == nil {
		x.of[ahead] = map[fleet.ModuleRef]bool{}
	}
	x.of[ahead][ref] = true
}

func (x *waitings) take(ahead fleet.ModuleRef) map[fleet.ModuleRef]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.of[ahead]
	delete(x.of, ahead)
	return out
}
