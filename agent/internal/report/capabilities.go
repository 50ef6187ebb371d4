package report

import (
	"sync"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Capabilities are what charts may ask of the cluster. They outlive sessions. Capabilities is safe for concurrent use; no method blocks.
type Capabilities struct {
	mu      sync.Mutex
	told    *agentv1.Capabilities
	changed chan struct{}
}

// NewCapabilities are not known yet.
func NewCapabilities() *Capabilities { return &Capabilities{changed: make(chan struct{}, 1)} }

// Set says what they are now.
func (c *Capabilities) Set(now fleet.Capabilities) {
	told := wire.CapabilitiesToProto(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = told
	dirty.Poke(c.changed)
}

// Told is their wire form; nil: they are not known.
func (c *Capabilities) Told() *agentv1.Capabilities {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.told
}

// Changed carries a wake-up when Told has something new to say, for one who listens.
func (c *Capabilities) Changed() <-chan struct{} { return c.changed }
