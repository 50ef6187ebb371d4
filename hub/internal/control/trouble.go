package control

import (
	"errors"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// troubles are why revisions are not cut that are going to be: the hub's own trouble, which is tried again and fails no
// rollout. It is not stored, for the store may be what the trouble is with.
type troubles struct {
	mu sync.Mutex
	of map[fleet.ModuleRef]error
}

func (x *troubles) set(ref fleet.ModuleRef, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err == nil || errors.Is(err, fleet.ErrConflict) {
		delete(x.of, ref)
		return
	}
	if x.of == nil {
		x.of = map[fleet.ModuleRef]error{}
	}
	x.of[ref] = err
}

// Trouble is why the newest rollout of a module has no revision yet although its source does not fail; nil: there is no
// such reason.
func (c *Controller) Trouble(ref fleet.ModuleRef) error {
	c.troubles.mu.Lock()
	defer c.troubles.mu.Unlock()
	return c.troubles.of[ref]
}
