package control

import (
	"context"
	"time"
)

// timed is run, counted as work of a queue.
func (c *Controller) timed(queue string, run func(context.Context, string) time.Duration) func(context.Context, string) time.Duration {
	return func(ctx context.Context, key string) time.Duration {
		began := time.Now()
		again := run(ctx, key)
		c.o.Meter.Worked(queue, time.Since(began))
		return again
	}
}

// Leads reports that this hub drives the modules.
func (c *Controller) Leads() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.leads
}

// Overdue is for how long the work has waited that waits longest, of what should be done by now; none while this hub does not lead.
func (c *Controller) Overdue() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.leads {
		return 0
	}
	var most time.Duration
	for _, r := range []*runner{c.modules, c.resolver, c.fetcher, c.looker, c.cataloguer, c.variants} {
		most = max(most, r.overdue(time.Now()))
	}
	return most
}

// overdue is for how long the key that is due has waited which waits longest.
func (r *runner) overdue(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var most time.Duration
	for _, e := range r.due {
		if _, runs := r.running[e.key]; !runs { // what runs, and is asked for again meanwhile, does not wait for its turn
			most = max(most, now.Sub(e.at))
		}
	}
	return most
}
