package worker

import (
	"slices"
	"sync"

	"towline.dev/towline/pkg/fleet"
)

// claims is the barrier in front of whatever deletes: until every module has claimed what its newest target lists, nobody can
// say that an object is wanted by none.
type claims struct {
	mu      sync.Mutex
	last    uint64
	owed    map[fleet.ModuleRef]uint64 // by module the number of its newest target, until its claims are made
	handing int                        // targets are being handed out: more may be owed in a moment
	waiting map[*worker]bool           // to be woken when nothing is owed
}

// hand is called before targets are handed out, and what it returns after the last of them has been.
func (c *claims) hand() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handing++
	return func() {
		c.mu.Lock()
		c.handing--
		c.release()
	}
}

// owe notes that a module has a new target, and numbers that.
func (c *claims) owe(ref fleet.ModuleRef) (number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.owed == nil {
		c.owed = map[fleet.ModuleRef]uint64{}
	}
	c.last++
	c.owed[ref] = c.last
	return c.last
}

// made says that all that a target lists is claimed, or known to be another module's. Of a target that is not the newest any
// more it says nothing.
func (c *claims) made(ref fleet.ModuleRef, number uint64) {
	c.mu.Lock()
	if c.owed[ref] == number {
		delete(c.owed, ref)
	}
	c.release()
}

// release unlocks, and wakes who waits if nothing is owed.
func (c *claims) release() {
	var free map[*worker]bool
	if c.open() {
		free, c.waiting = c.waiting, nil
	}
	c.mu.Unlock()
	for w := range free {
		w.touch(fleet.ObjectID{})
	}
}

func (c *claims) open() bool { return c.handing == 0 && len(c.owed) == 0 }

// await reports that claims are owed, and by whom as far as that is known. The worker is then woken when none are.
func (c *claims) await(w *worker) (by []string, owed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open() {
		return nil, false
	}
	if c.waiting == nil {
		c.waiting = map[*worker]bool{}
	}
	c.waiting[w] = true
	for ref := range c.owed {
		by = append(by, ref.Display())
	}
	slices.Sort(by)
	return by, true
}
