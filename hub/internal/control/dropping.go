package control

import (
	"strings"
	"time"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// noteDropping remembers whether something may be left of a module in a cluster that it does not list there: whoever comes
// to list that decides whether it may be deleted. Where something begins to be left it is looked once more, for what changed
// between the look and this note was told to nobody.
func (c *Controller) noteDropping(ref fleet.ModuleRef, cluster fleet.ClusterName, dropping bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.dropping[ref]
	if !dropping {
		if delete(of, cluster); len(of) == 0 {
			delete(c.dropping, ref)
		}
		c.forgetUnknown(ref, cluster)
		return
	}
	if of == nil {
		of = map[fleet.ClusterName]bool{}
		c.dropping[ref] = of
	}
	if st := c.states[ref]; !of[cluster] && st != nil {
		st.mark(cluster)
		c.modules.addAt(store.ModuleKey(ref), time.Now().Add(gatherDropping))
	}
	of[cluster] = true
}

// noteUnknown remembers whether it cannot be said in a cluster who is to have what a module lets go, and returns for how long that has been so.
func (c *Controller) noteUnknown(ref fleet.ModuleRef, cluster fleet.ClusterName, unknown bool) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !unknown {
		c.forgetUnknown(ref, cluster)
		return 0
	}
	if c.unknown == nil {
		c.unknown = map[fleet.ModuleRef]map[fleet.ClusterName]time.Time{}
	}
	of := c.unknown[ref]
	if of == nil {
		of = map[fleet.ClusterName]time.Time{}
		c.unknown[ref] = of
	}
	if of[cluster].IsZero() {
		of[cluster] = time.Now()
	}
	return time.Since(of[cluster])
}

// forgetUnknown is under the lock.
func (c *Controller) forgetUnknown(ref fleet.ModuleRef, cluster fleet.ClusterName) {
	if of := c.unknown[ref]; of != nil {
		if delete(of, cluster); len(of) == 0 {
			delete(c.unknown, ref)
		}
	}
}

// touchUnknown has the modules look again that do not know who is to have what they let go: something has come of a look at a source. Each
// of them reads all modules, so that what comes of many looks, one after the other, is gathered for longer the more of them there are.
func (c *Controller) touchUnknown() {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := time.Now().Add(max(gatherDropping, time.Duration(len(c.unknown))*gatherDropping/4))
	for ref, clusters := range c.unknown {
		st := c.states[ref]
		if st == nil {
			continue
		}
		for cluster := range clusters {
			st.mark(cluster)
		}
		c.modules.addAt(store.ModuleKey(ref), at)
	}
}

// touchDropping has the modules look again who is to have what they let go: what another one is about to list has changed,
// or, in one cluster, what that is assigned.
func (c *Controller) touchDropping(key string, by fleet.ModuleRef, in fleet.ClusterName) {
	if in == "" && !strings.HasPrefix(key, store.ModulePrefix) && !strings.HasPrefix(key, store.RevisionPrefix) && !c.turned(key, by) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for ref, clusters := range c.dropping {
		st := c.states[ref]
		if ref == by || st == nil || in != "" && !clusters[in] {
			continue
		}
		if in != "" {
			st.mark(in)
		} else {
			for cluster := range clusters {
				st.mark(cluster)
			}
		}
		c.modules.addAt(store.ModuleKey(ref), time.Now().Add(gatherDropping))
	}
}

// turned reports that a key is that of a rollout, and that its module is going elsewhere since then: to an older revision, or not
// any more. It is asked only while something is let go; what is seen for the first time may have turned.
func (c *Controller) turned(key string, ref fleet.ModuleRef) bool {
	if !strings.HasPrefix(key, store.RolloutPrefix) && !strings.HasPrefix(key, store.StartPrefix) {
		return false
	}
	c.mu.Lock()
	anything := len(c.dropping) > 0
	if !anything {
		clear(c.headings)
	}
	c.mu.Unlock()
	if !anything {
		return false
	}
	now, err := c.headingOf(ref)
	c.mu.Lock()
	defer c.mu.Unlock()
	was, known := c.headings[ref]
	if err != nil {
		delete(c.headings, ref)
		return true
	}
	c.headings[ref] = now
	return !known || was != now
}

// gatherDropping is how long changes are gathered before the modules look: many may be put at once.
const gatherDropping = 100 * time.Millisecond
