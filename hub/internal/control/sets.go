package control

import (
	"context"
	"sync"
	"time"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// decide decides a rollout. What its clusters wait for in others is looked up only of revisions that would begin: mostly none does.
func (c *Controller) decide(ctx context.Context, run *rollouts.Run, in rollout.Input, asOf int64) (rollout.Decision, error) {
	d := rollout.Decide(in)
	if d.BeginsStage() {
		newest, err := c.asCommitted(ctx, run, in, asOf)
		if err != nil {
			return d, err
		}
		in = newest
		d = rollout.Decide(in)
	}
	in.Awaits = map[int64][]rollout.AwaitedSet{}
	for {
		waits, err := c.lookAwaited(ctx, run.Module, &in, d.Begins())
		if err != nil {
			return d, err
		}
		if !waits {
			break
		}
		d = rollout.Decide(in)
	}
	run.Decided(&in, &d)
	if c.sets.want(run.Module, in.Awaits) { // one of them may have got further before that was noted
		c.modules.add(store.ModuleKey(run.Module))
	}
	return d, nil
}

// asCommitted is what a rollout is decided on with all that anybody was told is committed, for what was seen of the store at a revision. A stage begins
// by how the one before it went, of which no commit depends on any single report, and the watches of the store may be behind.
func (c *Controller) asCommitted(ctx context.Context, run *rollouts.Run, in rollout.Input, asOf int64) (rollout.Input, error) {
	now, err := c.o.Store.Barrier(ctx)
	if err != nil || now <= asOf {
		return in, err
	}
	err = c.view(ctx, func(r store.Reader) (err error) {
		in, err = c.inputOf(r, run.Module, run, nil, true)
		return err
	})
	return in, err
}

// lookAwaited looks up what comes before revisions of which that is not known yet, and reports that there is something to wait for.
func (c *Controller) lookAwaited(ctx context.Context, ref fleet.ModuleRef, in *rollout.Input, revisions []int64) (waits bool, err error) {
	if len(revisions) == 0 {
		return false, nil
	}
	err = c.view(ctx, func(r store.Reader) error {
		for _, n := range revisions {
			if _, known := in.Awaits[n]; known {
				continue
			}
			sets := wire.SetsOf(ref, record.Revision(store.Untracked(r), ref, n).GetRevision().GetSpec())
			if in.Awaits[n] = nil; len(sets) > 0 {
				in.Awaits[n] = c.presence().View(r, time.Now(), nil).AwaitedSets(r, ref, sets)
			}
			waits = waits || len(in.Awaits[n]) > 0
		}
		return nil
	})
	return waits, err
}

// touchDependents has modules looked at whose clusters wait for a module in others.
func (c *Controller) touchDependents(ref fleet.ModuleRef, rest time.Duration) {
	for _, m := range c.sets.in(ref) {
		c.modules.addAt(store.ModuleKey(m), time.Now().Add(rest))
	}
}

// interests are modules that wait for others in other clusters.
type interests struct {
	mu sync.Mutex
	of map[fleet.ModuleRef]map[fleet.ModuleRef]bool // by who waits
}

// want notes for what a module waits from now on, and reports that something of that is new.
func (x *interests) want(ref fleet.ModuleRef, awaits map[int64][]rollout.AwaitedSet) (news bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := map[fleet.ModuleRef]bool{}
	for _, sets := range awaits {
		for i := range sets {
			m := fleet.ModuleRef{Project: ref.Project, Name: sets[i].Module}
			now[m] = true
			news = news || !x.of[ref][m]
		}
	}
	switch {
	case len(now) == 0:
		delete(x.of, ref)
	case x.of == nil:
		x.of = map[fleet.ModuleRef]map[fleet.ModuleRef]bool{ref: now}
	default:
		x.of[ref] = now
	}
	return news
}

// in are the modules that wait for one.
func (x *interests) in(ref fleet.ModuleRef) (out []fleet.ModuleRef) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for m, others := range x.of {
		if others[ref] {
			out = append(out, m)
		}
	}
	return out
}

func (x *interests) clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.of = nil
}
