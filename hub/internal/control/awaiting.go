package control

import (
	"context"
	"slices"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// awaiting are the owners that modules wait for in clusters, and where each owner was going when that was looked at last. The zero
// value is ready to use.
type awaiting struct {
	of       map[fleet.ModuleRef]map[fleet.ClusterName][]fleet.ModuleRef
	headings map[fleet.ModuleRef]*record.Heading // of every owner; nil: not looked at
}

// head remembers where an owner is going; nil: that is not known.
func (x *awaiting) head(owner fleet.ModuleRef, to *record.Heading) {
	if x.headings == nil {
		x.headings = map[fleet.ModuleRef]*record.Heading{}
	}
	x.headings[owner] = to
}

// note remembers whom a module waits for in a cluster, and reports whether it waits for others than before.
func (x *awaiting) note(ref fleet.ModuleRef, cluster fleet.ClusterName, yields []fleet.Yield) bool {
	if len(yields) == 0 {
		if delete(x.of[ref], cluster); len(x.of[ref]) == 0 {
			delete(x.of, ref)
		}
		return false
	}
	if x.of == nil {
		x.of = map[fleet.ModuleRef]map[fleet.ClusterName][]fleet.ModuleRef{}
	}
	if x.of[ref] == nil {
		x.of[ref] = map[fleet.ClusterName][]fleet.ModuleRef{}
	}
	owners := make([]fleet.ModuleRef, len(yields))
	for i, y := range yields {
		owners[i] = y.Owner
		if _, known := x.headings[y.Owner]; !known {
			x.head(y.Owner, nil)
		}
	}
	before := x.of[ref][cluster]
	x.of[ref][cluster] = owners
	return !slices.Equal(before, owners)
}

// drop forgets a module that is gone.
func (x *awaiting) drop(ref fleet.ModuleRef) {
	delete(x.of, ref)
	delete(x.headings, ref)
}

// noteAwaiting remembers whom a module waits for in a cluster: where those are going decides whether it is in conflict. Whoever
// has begun to wait looks once more, for what changed between its look and this note was told to nobody.
func (c *Controller) noteAwaiting(ref fleet.ModuleRef, cluster fleet.ClusterName, yields []fleet.Yield) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if st := c.states[ref]; c.awaiting.note(ref, cluster, yields) && st != nil {
		st.mark(cluster)
		c.modules.add(store.ModuleKey(ref))
	}
}

// noteHeading remembers where a module was going when it was looked at in a cluster in which something goes that it does not
// list there: it may be on its way to list it again.
func (c *Controller) noteHeading(ref fleet.ModuleRef, cluster fleet.ClusterName, seen record.Heading) {
	c.mu.Lock()
	was, known := c.awaiting.headings[ref]
	if !known {
		c.awaiting.head(ref, nil) // from here on it is told of every change
	}
	c.mu.Unlock()
	now := seen
	if was == nil {
		if h, err := c.headingOf(ref); err == nil {
			now = h
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awaiting.headings[ref] == nil {
		c.awaiting.head(ref, &now)
	}
	if st := c.states[ref]; *c.awaiting.headings[ref] != seen && st != nil {
		st.mark(cluster)
		c.modules.addAt(store.ModuleKey(ref), time.Now().Add(gatherDropping))
	}
}

func (c *Controller) headingOf(ref fleet.ModuleRef) (h record.Heading, err error) {
	err = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
		h = record.HeadingOf(r, ref)
		return nil
	})
	return h, err
}

// touchAwaiting has the modules look again that wait for what another one owns, if that is going elsewhere now; and that one
// itself, where it lets something go.
func (c *Controller) touchAwaiting(owner fleet.ModuleRef) {
	c.mu.Lock()
	was, awaited := c.awaiting.headings[owner]
	c.mu.Unlock()
	if !awaited {
		return
	}
	now, err := c.headingOf(owner)
	if err != nil || was != nil && *was == now {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaiting.head(owner, &now)
	if st := c.states[owner]; st != nil && len(c.dropping[owner]) > 0 {
		for cluster := range c.dropping[owner] {
			st.mark(cluster)
		}
		c.modules.add(store.ModuleKey(owner)) // the run that the changed key set off may have begun before the marks
	}
	c.markAwaiters(owner)
}

// touchAwaiters has the modules look again that wait for what another one owns.
func (c *Controller) touchAwaiters(owner fleet.ModuleRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.markAwaiters(owner)
}

// markAwaiters is touchAwaiters under the lock.
func (c *Controller) markAwaiters(owner fleet.ModuleRef) {
	for ref, clusters := range c.awaiting.of {
		st := c.states[ref]
		for cluster, owners := range clusters {
			if st != nil && slices.Contains(owners, owner) {
				st.mark(cluster)
				c.modules.add(store.ModuleKey(ref))
			}
		}
	}
}

// newContest is the contest of a bundle, with what is known of puts that are under way.
func (c *Controller) newContest(o outside, ref fleet.ModuleRef, b fleet.Bundle, policies fleet.Digest) *record.Contest {
	x := record.NewContest(o.bundles, ref, b)
	x.Listings, x.Policies = c.listings, policies
	x.Drafts = o.drafts
	return x
}
