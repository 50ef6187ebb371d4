package control

import (
	"errors"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// troubles are why revisions are not cut that are going to be: the hub's own trouble, which is tried again and fails no
// rollout. It is not stored, for the store may be what the trouble is with.
type troubles struct {
	mu   sync.Mutex
	of   map[fleet.ModuleRef]error
	tell func() // of each change; nil: nobody
}

func (x *troubles) set(ref fleet.ModuleRef, err error) {
	if tell := x.change(ref, err); tell != nil {
		tell()
	}
}

// change returns who is to be told, if anything has changed for people.
func (x *troubles) change(ref fleet.ModuleRef, err error) (tell func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	old := x.of[ref]
	if err == nil || errors.Is(err, fleet.ErrConflict) {
		delete(x.of, ref)
		if old == nil {
			return nil
		}
		return x.tell
	}
	if x.of == nil {
		x.of = map[fleet.ModuleRef]error{}
	}
	x.of[ref] = err
	if old != nil && old.Error() == err.Error() {
		return nil
	}
	return x.tell
}

// OnTrouble has fn be called whenever what Trouble says has changed, which no record tells; to be called before Run.
func (c *Controller) OnTrouble(fn func()) {
	c.troubles.mu.Lock()
	defer c.troubles.mu.Unlock()
	c.troubles.tell = fn
}

// Trouble is why the newest rollout of a module has no revision yet although its source does not fail; nil: there is no
// such reason.
func (c *Controller) Trouble(ref fleet.ModuleRef) error {
	c.troubles.mu.Lock()
	defer c.troubles.mu.Unlock()
	return c.troubles.of[ref]
}
