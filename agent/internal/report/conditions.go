package report

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
)

// Conditions are what holds for the cluster as a whole. They outlive sessions. Conditions is safe for concurrent use; no
// method blocks.
type Conditions struct {
	mu      sync.Mutex
	all     map[fleet.ConditionType]fleet.Condition
	changed chan struct{}
}

// NewConditions is a Conditions that has none.
func NewConditions() *Conditions {
	return &Conditions{all: map[fleet.ConditionType]fleet.Condition{}, changed: make(chan struct{}, 1)}
}

// Set says that a condition holds. One that held with the same status and reason stays as it was: only its words differ,
// and those of an error differ each time. Without Since it holds since now.
func (c *Conditions) Set(x fleet.Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old, held := c.all[x.Type]
	if held && old.Status == x.Status && old.Reason == x.Reason {
		return
	}
	if x.Since.IsZero() {
		x.Since = time.Now()
		if held && old.Status == x.Status {
			x.Since = old.Since
		}
	}
	c.all[x.Type] = x
	c.signal()
}

// Clear says that no condition of the type holds.
func (c *Conditions) Clear(t fleet.ConditionType) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, held := c.all[t]; held {
		delete(c.all, t)
		c.signal()
	}
}

// Holds reports whether a condition of the type holds.
func (c *Conditions) Holds(t fleet.ConditionType) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, held := c.all[t]
	return held
}

// All are the conditions that hold, in the order of their types.
func (c *Conditions) All() []fleet.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.all), func(a, b fleet.Condition) int { return cmp.Compare(a.Type, b.Type) })
}

// Changed carries a wake-up when All has something new to say, for one who listens.
func (c *Conditions) Changed() <-chan struct{} { return c.changed }

func (c *Conditions) signal() {
	dirty.Poke(c.changed)
}
