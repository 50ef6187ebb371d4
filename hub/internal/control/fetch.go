package control

import (
	"context"
	"slices"
	"sync"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
)

// How many sources are resolved at a time. A server that hangs holds up the modules whose sources it has, and no others:
// what needs no server has workers of its own, and each server has few of the others.
const (
	maxResolvers  = 8
	maxFetchers   = 16
	maxFromOrigin = 4
)

// resolverOf is where the source of a module is resolved.
func (c *Controller) resolverOf(rec *storev1.ModuleRecord) *runner {
	if origin(rec) == "" {
		return c.resolver
	}
	return c.fetcher
}

// origin is the server that has the source of a module; empty: none is needed.
func origin(rec *storev1.ModuleRecord) string {
	return source.Origin(rec.GetModule().GetSpec().GetSource())
}

// runFetch resolves a source that another server has, or has it wait for its turn.
func (c *Controller) runFetch(ctx context.Context, key string) time.Duration {
	defer func() { c.fetcher.addAll(c.origins.unused(key)) }()
	var host string
	if err := guarded(func() error {
		return c.view(ctx, func(r store.Reader) error {
			rec, _, _ := store.Get[*storev1.ModuleRecord](r, key)
			host = origin(rec)
			return nil
		})
	}); err != nil {
		return c.outcome(ctx, "resolve "+key, err)
	}
	if host == "" {
		return c.runResolve(ctx, key)
	}
	if !c.origins.enter(host, key) {
		return 0 // the one that leaves wakes it
	}
	defer func() { c.fetcher.addAll(c.origins.leave(host)) }()
	return c.runResolve(ctx, key)
}

// origins are the servers that are asked now, and the modules that wait for one.
type origins struct {
	mu      sync.Mutex
	busy    map[string]int
	waiting map[string][]string
	// woken are the servers that keys were woken for, until they ask them.
	woken map[string]string
}

// enter reports whether the server may be asked; if not, the key waits.
func (o *origins) enter(host, key string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.busy == nil {
		o.busy, o.waiting, o.woken = map[string]int{}, map[string][]string{}, map[string]string{}
	}
	if o.woken[key] == host {
		delete(o.woken, key)
	}
	if o.busy[host] < maxFromOrigin {
		o.busy[host]++
		return true
	}
	if !slices.Contains(o.waiting[host], key) {
		o.waiting[host] = append(o.waiting[host], key)
	}
	return false
}

// leave gives the free places to the next ones, which are to be run.
func (o *origins) leave(host string) (next []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.busy[host]--
	return o.wake(host)
}

// unused gives the place to the next ones that a key was woken for and has not taken: it has another source by now, or none, or nothing to ask.
func (o *origins) unused(key string) (next []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	host, is := o.woken[key]
	if !is {
		return nil
	}
	delete(o.woken, key)
	return o.wake(host)
}

// wake takes as many as there are free places from those that wait for a server. It is under the lock.
func (o *origins) wake(host string) (next []string) {
	list := o.waiting[host]
	n := min(maxFromOrigin-o.busy[host], len(list))
	next, o.waiting[host] = list[:n:n], list[n:]
	if len(o.waiting[host]) == 0 {
		delete(o.waiting, host)
	}
	if o.busy[host] == 0 {
		delete(o.busy, host)
	}
	for _, key := range next {
		o.woken[key] = host
	}
	return next
}
