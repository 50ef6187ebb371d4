package control

import (
	"context"
	"strings"
	"sync"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// gatherings are the batches of puts that are not all in, by their keys, as this hub has seen them. The modules that were put begin their
// rollouts only when a batch is over, so that what one lets go is not deleted before it is known that another lists it. What is stored says
// which batches there are; losing this costs a wait that begins anew.
type gatherings struct {
	mu sync.Mutex
	of map[string]*gathering
}

type gathering struct {
	version int64     // of the record
	seen    time.Time // since when it is that
	waiting map[fleet.ModuleRef]map[fleet.ClusterName]bool
}

// at is a batch, made if it is not known.
func (x *gatherings) at(key string) *gathering {
	if x.of == nil {
		x.of = map[string]*gathering{}
	}
	if x.of[key] == nil {
		x.of[key] = &gathering{waiting: map[fleet.ModuleRef]map[fleet.ClusterName]bool{}}
	}
	return x.of[key]
}

// see is until when a batch as it is stored now is waited for. When its newest put came counts for nothing: that is by the clock of the hub which
// took it.
func (x *gatherings) see(key string, version int64, now time.Time) time.Time {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.at(key)
	if g.version != version {
		g.version, g.seen = version, now
	}
	return g.seen.Add(record.BatchPatience)
}

// wait notes that a module waits for the end of a batch; with a cluster: to look again who owns what it lists there.
func (x *gatherings) wait(key string, ref fleet.ModuleRef, clusters ...fleet.ClusterName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.at(key)
	if g.waiting[ref] == nil {
		g.waiting[ref] = map[fleet.ClusterName]bool{}
	}
	for _, c := range clusters {
		g.waiting[ref][c] = true
	}
}

// end forgets a batch, and returns who waits for it.
func (x *gatherings) end(key string) map[fleet.ModuleRef]map[fleet.ClusterName]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.of[key]
	delete(x.of, key)
	if g == nil {
		return nil
	}
	return g.waiting
}

// take returns who waits for a batch, which is open still: whoever waits for its end says so again.
func (x *gatherings) take(key string) map[fleet.ModuleRef]map[fleet.ClusterName]bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	g := x.of[key]
	if g == nil {
		return nil
	}
	out := g.waiting
	g.waiting = map[fleet.ModuleRef]map[fleet.ClusterName]bool{}
	return out
}

// reset forgets all of them.
func (x *gatherings) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of = nil
}

// awaitsPuts reports that a rollout gets no revision yet, because others of its batch of puts are to come. Its module is looked at when they
// are in.
func (c *Controller) awaitsPuts(ctx context.Context, ref fleet.ModuleRef, number int64) (waits bool, err error) {
	var id string
	if err := c.view(ctx, func(r store.Reader) error {
		id = record.AwaitsPuts(r, ref, number)
		return nil
	}); err != nil || id == "" {
		return false, err
	}
	c.waitForBatch(id, ref)
	return true, nil
}

// againGathered has a module look again at what it yields in a cluster when all is in that belongs to the batch which it was put with.
func (c *Controller) againGathered(r store.Reader, ref fleet.ModuleRef, cluster fleet.ClusterName) {
	if id := record.Unsettled(r, ref); id != "" {
		c.waitForBatch(id, ref, cluster)
	}
}

// waitForBatch notes who waits. The batch may have ended before that, and then says so to nobody.
func (c *Controller) waitForBatch(id string, ref fleet.ModuleRef, clusters ...fleet.ClusterName) {
	c.gathered.wait(store.BatchKey(id), ref, clusters...)
	var open, gathers bool
	_ = c.o.Store.View(context.Background(), 0, func(r store.Reader) error {
		open, gathers = record.Open(r, id), record.Gathers(r, id)
		return nil
	})
	switch key := store.BatchKey(id); {
	case !open:
		c.wake(c.gathered.end(key))
	case !gathers && len(clusters) == 0:
		c.wake(c.gathered.take(key))
	}
}

// wake has those looked at that waited for a batch.
func (c *Controller) wake(waiting map[fleet.ModuleRef]map[fleet.ClusterName]bool) {
	for ref, clusters := range waiting {
		st := c.state(ref)
		for cluster := range clusters {
			st.mark(cluster)
		}
		st.asksAgain()
		c.modules.add(store.ModuleKey(ref))
	}
}

// runBatch ends a batch for which no put has come for too long, and says in how long it is to be looked at again; 0: it is over. What waits
// in it does not begin: what it lets go may be what the rest was to list. Where all puts are in, nobody waits to begin, and it ends without the
// deletions that did not come.
func (c *Controller) runBatch(ctx context.Context, key string) (again time.Duration, err error) {
	var found, gathers bool
	var version int64
	if err := c.view(ctx, func(r store.Reader) error {
		var e store.Entry
		if e, found = r.Get(key); found {
			version, gathers = e.ModRevision, record.Gathers(r, strings.TrimPrefix(key, store.BatchPrefix))
		}
		return nil
	}); err != nil {
		return 0, err
	}
	switch {
	case !found:
		c.wake(c.gathered.end(key))
		return 0, nil
	case !gathers:
		c.wake(c.gathered.take(key))
	}
	if until := c.gathered.see(key, version, time.Now()); time.Now().Before(until) {
		return time.Until(until), nil
	}
	return 0, c.breakOff(ctx, key, version)
}

// breakOff ends the rollouts that wait in a batch, and last the batch, while that is as it was seen. Of more than one transaction takes, those
// that have ended have a put refused that comes meanwhile (see record.BrokenOff).
func (c *Controller) breakOff(ctx context.Context, key string, version int64) error {
	id := strings.TrimPrefix(key, store.BatchPrefix)
	var waiting []*storev1.RolloutRecord
	if err := c.view(ctx, func(r store.Reader) error {
		waiting = record.WaitIn(r, id)
		return nil
	}); err != nil {
		return err
	}
	if len(waiting) > 0 {
		c.o.Log.Warn("no put of a batch has come for too long; its modules do not begin", "batch", id, "modules", len(waiting))
	}
	for stands, ended := true, time.Now(); stands; {
		some := waiting[:min(len(waiting), store.MaxOps/4)]
		waiting = waiting[len(some):]
		if err := c.update(ctx, func(w store.Writer) error {
			e, found := w.Get(key)
			if stands = found && e.ModRevision == version; !stands {
				return nil
			}
			if len(waiting) == 0 {
				w.Delete(key)
			}
			return endUnbegun(w, some, ended)
		}); err != nil {
			return err
		}
		for _, ro := range some {
			if stands && rollouts.OfLook(ro) {
				c.callAt(rollouts.ModuleOf(ro), time.Now(), false)
			}
		}
		stands = stands && len(waiting) > 0
	}
	return nil
}

// endUnbegun ends rollouts that wait for puts which never came.
func endUnbegun(w store.Writer, list []*storev1.RolloutRecord, now time.Time) error {
	for _, ro := range list {
		ref := rollouts.ModuleOf(ro)
		why := "the rest of what it was put with never came, so that it has not begun: put all of it again, or have it begin without that: towline rollout retry " + ref.Display()
		if rollouts.OfLook(ro) {
			why = "others that were to begin with it have not, so that it has not begun: it is looked at again if it follows its source, else by towline resync " + ref.Display()
		}
		if err := rollouts.Close(w, ref, func(n int64) bool { return n == ro.GetRollout().GetNumber() },
			rollout.Module{SourceFailed: &rollout.SourceFailed{Reason: rollout.ReasonPutsMissing, Message: why}}, now); err != nil {
			return err
		}
	}
	return nil
}
