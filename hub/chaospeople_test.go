package hub_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
)

// Several people, who do not wait for each other, and are impatient.

// oneByOne serves several people.
type oneByOne struct {
	mu   sync.Mutex
	from rand.Source
}

func (s *oneByOne) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from.Uint64()
}

// finds notes what is wrong.
func (c *chaos) finds(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.found = append(c.found, what)
}

// crowd has people do things at the same moment: to each module and each cluster one at most, so that it is known what is wanted of
// each, while others steer rollouts, hold and confirm. Nobody knows whose word comes first, so that there may be a moment in which no
// module wants what another one is about to.
func (c *chaos) crowd() {
	c.note("at the same moment:")
	c.crowded.Store(true)
	defer c.crowded.Store(false)
	c.mu.Lock()
	c.steered = true
	c.mu.Unlock()
	var all sync.WaitGroup
	for _, name := range modules {
		switch c.rand.IntN(5) {
		case 0, 1:
			all.Go(func() { c.puts(name) })
		case 2:
			all.Go(func() { c.deletes(name, c.rand.IntN(2) == 0) })
		}
	}
	for _, cluster := range clusters {
		if c.rand.IntN(4) == 0 {
			all.Go(func() { c.moves(cluster) })
		}
	}
	for range c.rand.IntN(3) {
		all.Go(c.confirm)
	}
	for range c.rand.IntN(c.most(5, 1)) {
		all.Go(func() { c.verb(pickOf(c, modules), pickOf(c, clusters)) })
	}
	if c.rand.IntN(4) == 0 {
		all.Go(func() { c.hold(pickOf(c, modules), pickOf(c, clusters)) })
	}
	all.Wait()
}

// puts makes a module anything.
func (c *chaos) puts(name string) {
	w := want{objects: c.letters(), zone: c.anywhere(), tolerates: c.rand.IntN(4) == 0}
	if c.rand.IntN(5) == 0 {
		w.named = c.some()
	}
	if !c.gentle && c.rand.IntN(3) == 0 {
		w = c.given(name, w)
	}
	c.wish(func(x *wish) { x.modules[name] = w })
	_ = c.change(name, w, "", false)
}

// insists puts a module, whatever runs: a rollout that keeps it out is aborted.
func (c *chaos) insists(name string, req *towlinev1.PutModuleRequest) error {
	_, err := c.Modules.PutModule(c.ctx, req)
	for tries := 0; err != nil && strings.Contains(err.Error(), "onSupersede is Reject"); tries++ {
		if tries > 9 {
			c.finds(fmt.Sprintf("%s cannot be put: %v%s", name, err, c.standing()))
			return err
		}
		c.mu.Lock()
		c.steered = true
		c.mu.Unlock()
		c.note("%v; abort: %v", err, c.say(c.Client, word(name, "abort")))
		_, err = c.Modules.PutModule(c.ctx, req)
	}
	return err
}

// deletes deletes a module, or leaves what it has. Nobody may leave what it has in a cluster that leaves the fleet with all it has: it stays then.
func (c *chaos) deletes(name string, orphan bool) {
	was, there := c.now().modules[name]
	c.wish(func(x *wish) { delete(x.modules, name) })
	project, module := split(name)
	_, err := c.Modules.DeleteModule(c.ctx, &towlinev1.DeleteModuleRequest{Project: project, Name: module, Force: true, Orphan: orphan})
	c.note("delete %s, orphan %v: %v", name, orphan, err)
	if there && errors.Is(err, fleet.ErrPrecondition) {
		c.wish(func(x *wish) { x.modules[name] = was })
	}
}

// moves changes what a cluster is.
func (c *chaos) moves(cluster string) {
	p := c.now().clusters[cluster]
	switch c.rand.IntN(6) {
	case 0:
		p.cordoned = !p.cordoned
	case 1:
		p.tainted = !p.tainted
	case 2:
		p.unlabelled = !p.unlabelled
	default:
		p.zone = pickOf(c, []string{"x", "y"})
	}
	c.place(cluster, p)
}

// repeats says a word to a rollout, now and then twice, as one does whose first answer is late. What was accepted is accepted once, and
// stays so.
func (c *chaos) repeats(person *client.Client, w client.Word) error {
	if c.rand.IntN(2) == 0 {
		return c.say(person, w)
	}
	w.RequestID = strconv.FormatUint(c.rand.Uint64(), 36)
	var early error
	var twice sync.WaitGroup
	if c.rand.IntN(2) == 0 {
		twice.Go(func() { early = c.say(person, w) })
	}
	err := c.say(person, w)
	twice.Wait()
	again := c.say(person, w)
	if c.crowded.Load() { // what another person did meanwhile may have refused the one of both that came first, and let in the other
		early = nil
	}
	for _, other := range []error{early, again} {
		if err == nil && other != nil && !gone(other) {
			c.finds(fmt.Sprintf("%s %s was accepted, and then: %v", w.Verb, w.Module, other))
		}
	}
	return err
}

// gone reports that a repeat comes too late.
func gone(err error) bool {
	for _, why := range []string{"not found", "is not kept any more", "is being deleted"} {
		if strings.Contains(err.Error(), why) {
			return true
		}
	}
	return false
}
