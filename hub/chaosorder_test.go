package hub_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// A deletion is judged by what is in the cluster (see chaos.deleted); here it is judged what an agent is told: which modules it is
// to have, at which content, and which are to go. Each has to follow from somebody's word.

// orders are what people said of a module.
type orders struct {
	puts []want // since it was there last as wanted, the one that was wanted then first
	past []want // all before these: a rollback may lead to any of them
	back bool   // to the past
	// rests: it was not there when all was as wanted last.
	rests bool
	// confirmed are the clusters that a person let the module go from since it came there.
	confirmed map[string]bool
	// coming are those of them that had not taken the module yet: the hub had decided that it comes before it asked whether it may go.
	coming map[string]bool
	// given are the clusters that had the module when all was as wanted last, or were given it since: what is put need not come to all
	// that it selects.
	given map[string]bool
	// had is what each cluster was given at any time, by the objects: a rollback gives a cluster back what it had before the rollout,
	// though its labels have changed since then. It is asked whether the module goes from there after that.
	had map[string]map[string]bool
}

// hands notes what a cluster is given.
func (x *orders) hands(cluster, objects string) {
	if x.had[cluster] == nil {
		x.had[cluster] = map[string]bool{}
	}
	x.had[cluster][objects] = true
}

// said notes a put.
func (c *chaos) said(name string, w want) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.ordersOf(name)
	x.puts = append(x.puts, w)
}

func (c *chaos) ordersOf(name string) *orders {
	if c.orders[name] == nil {
		c.orders[name] = &orders{confirmed: map[string]bool{}, coming: map[string]bool{}, given: map[string]bool{}, had: map[string]map[string]bool{}}
	}
	return c.orders[name]
}

// rested forgets what does not count any more when all is as wanted. Of a module that was deleted just now something may be under way
// to an agent still.
func (c *chaos) rested() {
	now := c.since[len(c.since)-1]
	for _, name := range modules {
		x := c.ordersOf(name)
		w, there := now.modules[name]
		x.back = false
		switch {
		case there:
			x.past, x.puts, x.rests = append(x.past, x.puts...), []want{w}, false
		case x.rests:
			x.past, x.puts = nil, nil
			clear(x.had)
		}
		x.rests = !there
		clear(x.coming)
		clear(x.given)
		for _, cluster := range clusters {
			x.given[cluster] = syncNamed(c.heldBy[cluster], name).Generation != 0
		}
	}
}

// may are the puts that can be what a cluster has of a module.
func (x *orders) may() []want {
	if x.back {
		return slices.Concat(x.past, x.puts)
	}
	return x.puts
}

// told judges what an agent is told, against what it was told before.
func (c *chaos) told(cluster string, was, now fleet.Assemblage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heldBy[cluster] = now
	for _, s := range now.Syncs {
		c.ordersOf(s.Module.Display()).given[cluster] = true
	}
	if now.Generation < was.Generation {
		return
	}
	for _, s := range now.Syncs {
		old := syncOf(was, s.Module)
		if old == nil {
			x := c.ordersOf(s.Module.Display())
			x.confirmed[cluster] = x.coming[cluster]
			delete(x.coming, cluster)
		}
		if old == nil || old.Bundle != s.Bundle {
			c.gets(cluster, s)
		}
		c.ordersOf(s.Module.Display()).hands(cluster, c.lists(s))
	}
	for _, t := range now.Tombstones {
		if !slices.ContainsFunc(was.Tombstones, func(o fleet.Tombstone) bool { return o.Module == t.Module }) && syncOf(was, t.Module) != nil {
			c.taken(cluster, t.Module, now)
		}
	}
}

func syncOf(a fleet.Assemblage, m fleet.ModuleRef) *fleet.Sync {
	if i := slices.IndexFunc(a.Syncs, func(s fleet.Sync) bool { return s.Module == m }); i >= 0 {
		return &a.Syncs[i]
	}
	return nil
}

// gets: what a cluster is given somebody has put, for a cluster as this one is, or was lately.
func (c *chaos) gets(cluster string, s fleet.Sync) {
	name, lists := s.Module.Display(), c.lists(s)
	if x := c.ordersOf(name); x.back && x.had[cluster][lists] {
		return
	}
	puts := c.ordersOf(name).may()
	program := slices.ContainsFunc(puts, func(w want) bool { return w.external }) // that gives any cluster any revision
	if program {
		puts = slices.Concat(c.ordersOf(name).past, puts)
	}
	for _, w := range puts {
		if w.objects == lists && (program || c.atAll(func(x wish) bool { return x.takes(w, cluster) })) {
			return
		}
	}
	c.found = append(c.found, fmt.Sprintf("%s: is given %s r%d with %s, which nobody put for it", cluster, name, s.Revision, lists))
}

// lists are the objects of a sync.
func (c *chaos) lists(s fleet.Sync) string { return strings.Join(c.names[s.Bundle], "") }

// atAll reports that something held at any time since all was as wanted.
func (c *chaos) atAll(held func(wish) bool) bool { return slices.ContainsFunc(c.since, held) }

// taken: a module goes from a cluster by a word that says so, and the last one of a cluster when a person has confirmed that.
func (c *chaos) taken(cluster string, m fleet.ModuleRef, now fleet.Assemblage) {
	name := m.Display()
	x := c.ordersOf(name)
	if c.atAll(func(w wish) bool { _, there := w.modules[name]; return !there || w.clusters[cluster].gone }) {
		return
	}
	puts := x.may()
	if slices.ContainsFunc(puts, func(w want) bool { return w.external }) || c.atAll(func(w wish) bool { return w.modules[name].external }) {
		return
	}
	if !slices.ContainsFunc(puts, func(p want) bool { return c.atAll(func(w wish) bool { return !w.takes(p, cluster) }) }) {
		c.found = append(c.found, fmt.Sprintf("%s: %s is taken away, and it was placed there all the time", cluster, name))
	}
	if x.confirmed[cluster] {
		return
	}
	if why := c.guarded(cluster, name, puts, now); why != "" {
		c.found = append(c.found, fmt.Sprintf("%s: %s is taken away, %s, and nobody confirmed that", cluster, name, why))
	}
}

// guarded is why a person has to be asked before a module goes from a cluster; empty: nobody knows that one has.
func (c *chaos) guarded(cluster, name string, puts []want, now fleet.Assemblage) string {
	steady := time.Since(c.turned[cluster]) > 2*time.Second // it is told of what is decided now
	comes := c.atAll(func(w wish) bool {
		return (!steady || w.till.IsZero() || time.Since(w.till) < time.Second) && slices.ContainsFunc(modules, func(m string) bool {
			p, there := w.modules[m]
			return m != name && there && (p.external || w.takes(p, cluster))
		})
	})
	if len(now.Syncs) == 0 && !comes {
		return "the last one there"
	}
	first := c.since[0]
	for _, w := range c.since {
		for _, at := range clusters {
			if w.clusters[at] != first.clusters[at] {
				return "" // by its labels
			}
		}
	}
	most := false
	for _, had := range puts {
		for _, p := range puts {
			in, lose := 0, 0
			for _, at := range clusters {
				if c.orders[name].given[at] && first.takes(had, at) {
					in++
					if !first.takes(p, at) {
						lose++
					}
				}
			}
			switch {
			case lose == 0:
			case lose < 2 || 2*lose <= in:
				return ""
			default:
				most = true
			}
		}
	}
	if !most {
		return ""
	}
	return "from most of its clusters"
}
