package control

import (
	"context"
	"errors"
	"slices"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// reconcileModule answers what is asked for of a module, and brings it further, whatever came of that.
func (c *Controller) reconcileModule(ctx context.Context, ref fleet.ModuleRef) error {
	asked := c.answerRequests(ctx, ref)
	return errors.Join(asked, c.driveModule(ctx, ref))
}

// driveModule brings one module further: one decision, one commit, then what follows from it.
func (c *Controller) driveModule(ctx context.Context, ref fleet.ModuleRef) error {
	defer c.touchBehind(ref)
	st := c.state(ref)
	var rec *storev1.ModuleRecord
	if err := c.view(ctx, func(r store.Reader) error {
		rec, _, _ = store.Get[*storev1.ModuleRecord](r, store.ModuleKey(ref))
		return nil
	}); err != nil {
		return err
	}
	switch {
	case rec == nil:
		c.looks.drop(ref)
		c.troubles.set(ref, nil)
		c.dropState(ref)
		return nil
	case rec.GetDeleting() != "":
		st.handOver(nil)
		c.troubles.set(ref, nil)
		return c.reconcileDeleting(ctx, ref, rec)
	}
	cut := c.cutResolved(ctx, ref, st)
	return errors.Join(cut, c.driveRollout(ctx, ref, rec, st), c.queueLook(ctx, ref, rec))
}

// endOutdated ends the rollouts that wait for a revision and get none, since something newer was put.
func (c *Controller) endOutdated(ctx context.Context, ref fleet.ModuleRef) error {
	var newest int64
	var outdated []int64
	err := c.view(ctx, func(r store.Reader) error {
		if outdated = rollouts.Waiting(r, ref); len(outdated) == 0 {
			return nil // mostly nothing waits
		}
		newest = rollouts.Newest(r, ref)
		outdated = slices.DeleteFunc(outdated, func(n int64) bool { return n == newest })
		return nil
	})
	if err != nil {
		return err
	}
	return c.endWaiting(ctx, ref, outdated, rollout.Module{Successor: newest})
}

// endAborted ends the rollout that waits for its revision if a person has aborted it. One that has its revision answers itself.
func (c *Controller) endAborted(ctx context.Context, ref fleet.ModuleRef) error {
	var number int64
	var word *rollout.Verb
	if err := c.view(ctx, func(r store.Reader) error {
		if number = rollouts.Unresolved(r, ref).GetRollout().GetNumber(); number == 0 {
			return nil
		}
		word = abortOf(r, ref, number)
		return nil
	}); err != nil || word == nil {
		return err
	}
	return c.endWaiting(ctx, ref, []int64{number}, rollout.Module{Aborted: word})
}

// abortOf is the last word that ends a rollout; nil: there is none.
func abortOf(r store.Reader, ref fleet.ModuleRef, number int64) (word *rollout.Verb) {
	for _, v := range rollouts.Verbs(r, ref, number) {
		if v.Verb == rollout.VerbAbort {
			word = &v
		}
	}
	return word
}

// endWaiting ends rollouts that wait for a revision, of which there may be more than a transaction takes: a source may take long, and
// be put again and again.
func (c *Controller) endWaiting(ctx context.Context, ref fleet.ModuleRef, numbers []int64, m rollout.Module) error {
	now := time.Now()
	for some := range slices.Chunk(numbers, store.MaxOps/4) {
		if err := c.update(ctx, func(w store.Writer) error {
			if m.Deleted && !isDeleted(w, ref) {
				return nil
			}
			return rollouts.Close(w, ref, func(n int64) bool { return slices.Contains(some, n) }, m, now)
		}); err != nil {
			return err
		}
	}
	return nil
}

// driveRollout moves what has a revision, and looks after what is assigned.
func (c *Controller) driveRollout(ctx context.Context, ref fleet.ModuleRef, rec *storev1.ModuleRecord, st *moduleState) error {
	dirty, all := st.take()
	if st.graced && !time.Now().Before(c.presence().Ends()) {
		all, st.graced = true, false // who has not come back is away from here on, and nothing changed to say so
	}
	// A rollout that cannot be driven keeps neither the next change back nor what is assigned already.
	driving := c.reconcileRollout(ctx, ref, rec, st, dirty, all)
	defer st.rests()
	if err := c.queueResolve(ctx, ref, rec, st); err != nil {
		return errors.Join(driving, err)
	}
	if err := c.keepRendered(ctx, ref, rec, st.run, dirty, all); err != nil {
		return errors.Join(driving, err)
	}
	contested := st.takeContested()
	if err := c.reconcileAssigned(ctx, ref, dirty, all, contested); err != nil {
		for cluster, own := range contested {
			st.contest(cluster, own)
		}
		return errors.Join(driving, err)
	}
	return driving
}

// queueResolve asks for the source when the newest rollout has no revision yet, and what it came to is not to be cut already. That
// of another put is asked for at once; who tries it again after a trouble of the hub, or waits for other puts, does so in time.
func (c *Controller) queueResolve(ctx context.Context, ref fleet.ModuleRef, rec *storev1.ModuleRecord, st *moduleState) error {
	return c.view(ctx, func(r store.Reader) error {
		ro := rollouts.Unresolved(r, ref)
		switch {
		case ro == nil:
			c.troubles.set(ref, nil)
		case st.handedOver() != nil:
		case st.asks(ro.GetRollout().GetNumber()):
			c.resolverOf(rec).add(store.ModuleKey(ref))
		default:
			c.resolverOf(rec).ask(store.ModuleKey(ref))
		}
		return nil
	})
}

func (c *Controller) presence() record.Presence {
	return record.Presence{Live: c.o.Sessions.Connected, Lost: c.o.Sessions.Lost, Started: c.o.Sessions.Started(), Grace: c.o.Grace}
}

// reconcileRollout drives the newest rollout whose revision is cut.
func (c *Controller) reconcileRollout(ctx context.Context, ref fleet.ModuleRef, m *storev1.ModuleRecord, st *moduleState, dirty map[fleet.ClusterName]struct{}, all bool) error {
	var in rollout.Input
	var run *rollouts.Run
	var asOf int64
	err := c.view(ctx, func(r store.Reader) error {
		asOf = r.Revision()
		if rollouts.External(r, ref, m) {
			return nil
		}
		if damaged, what := rollouts.Damaged(r, ref); damaged != 0 {
			return fleet.Errorf(fleet.ErrCorrupt, "%s", what)
		}
		rec := rollouts.Driven(r, ref)
		if rec == nil || rec.GetRollout().GetStrategy().GetExternal() != nil { // where that revision goes another program said
			return nil
		}
		var err error
		if run, err = loadRun(r, ref, rec, st.run); err != nil {
			return err
		}
		in, err = c.inputOf(r, ref, run, dirty, all)
		return err
	})
	if err != nil {
		return err
	}
	if run == nil {
		st.said.run = true
		return c.rolloutHolds(ctx, ref, nil)
	}
	known := st.run
	st.run = run
	placedBy := in.State.PlacedBy()
	d, err := c.decide(ctx, run, in, asOf)
	if err != nil {
		return err
	}
	lacks := false
	if err := c.view(ctx, func(r store.Reader) error {
		lacks = c.lacking(r, run, d)
		return nil
	}); err != nil || lacks { // the run that follows the rendering decides
		return err
	}
	written, err := c.commit(ctx, run, d)
	if err != nil {
		var placed *placedError
		if errors.As(err, &placed) {
			c.refuse(ref, st, placed.clusters)
		}
		return err
	}
	st.said.run = true
	if written || run != known { // one that is new may have nothing to decide, and what the rollout before it asked is to end
		if err := c.rolloutHolds(ctx, ref, holdRecords(run, d.Holds)); err != nil {
			return err
		}
	}
	if d.State.PlacedBy() != placedBy { // the next look knows of that placement, if this one did not
		c.modules.add(store.ModuleKey(ref))
	}
	st.awaited.Store(int64(d.Awaited))
	if !in.Stands {
		if err := c.carryOut(ctx, run, st); err != nil {
			return err
		}
	}
	c.lookAtUnsure(run, st)
	c.runGates(ctx, ref, run, d.Checks)
	c.wakeAt(ref, d)
	return nil
}

// inputOf is what a rollout is decided on: of its clusters those that changed are looked at, or all.
func (c *Controller) inputOf(r store.Reader, ref fleet.ModuleRef, run *rollouts.Run, dirty map[fleet.ClusterName]struct{}, all bool) (rollout.Input, error) {
	verbs := rollouts.Verbs(r, ref, run.Number)
	view, err := c.presence().Over(r, time.Now(), run, verbs)
	if err != nil {
		return rollout.Input{}, err
	}
	if all || len(run.Observed) == 0 {
		view.All(r, run)
	} else {
		view.Some(r, run, dirty)
	}
	in := run.Input(time.Now())
	in.Stands = record.Stands(r)
	in.Results, in.Verbs, in.Module, in.Confirmed = c.gateResults(run), verbs, run.Facts(r), record.ConfirmedDigests(r, ref)
	return in, nil
}

// lookAtUnsure looks soon again at clusters that are left with nothing unless a module comes there whose source is being fetched.
func (c *Controller) lookAtUnsure(run *rollouts.Run, st *moduleState) {
	var unsure []fleet.ClusterName
	for i := range run.Observed {
		if run.Observed[i].MayBeLast {
			unsure = append(unsure, run.State.Member(run.Plan, i).Cluster)
		}
	}
	if len(unsure) > 0 {
		c.lookAgain(run.Module, st, unsure, time.Now().Add(againUnknown))
	}
}

// carryOut materialises what steps of the run are still open.
func (c *Controller) carryOut(ctx context.Context, run *rollouts.Run, st *moduleState) error {
	refused, err := c.finishSteps(ctx, run)
	if err != nil {
		return err
	}
	more, err := c.redoSteps(ctx, run)
	if err != nil {
		return err
	}
	refused = append(refused, more...)
	at := time.Now()
	if !c.refuse(run.Module, st, refused) {
		at = at.Add(lastRetry)
	}
	if len(refused) > 0 {
		c.lookAgain(run.Module, st, refused, at)
	}
	return nil
}

func (c *Controller) wakeAt(ref fleet.ModuleRef, d rollout.Decision) {
	if !d.WakeAt.IsZero() { // earlier than that if it is long, since the clock may be put forward, and a window be open sooner
		c.modules.addAt(store.ModuleKey(ref), time.Now().Add(min(time.Until(d.WakeAt), time.Hour)))
	}
	if end := c.presence().Ends(); time.Now().Before(end) {
		c.state(ref).graced = true
		c.modules.addAt(store.ModuleKey(ref), end)
	}
}

// loadRun takes the run in memory if it is the one, reads it, or plans it.
func loadRun(r store.Reader, ref fleet.ModuleRef, rec *storev1.RolloutRecord, known *rollouts.Run) (*rollouts.Run, error) {
	number := rec.GetRollout().GetNumber()
	if known != nil && known.Number == number {
		return known, nil
	}
	run, err := rollouts.Load(r, ref, number)
	if err != nil || run != nil {
		return run, err
	}
	m, err := record.ModuleOf(r, ref, rec)
	if err != nil {
		return nil, err
	}
	return rollouts.Plan(r, ref, rec, record.Candidates(r, m), m.Overrides)
}

// reconcileAssigned looks after what is assigned already in the clusters that changed: confirmed tombstones, values,
// holds, objects that other modules own.
func (c *Controller) reconcileAssigned(ctx context.Context, ref fleet.ModuleRef, dirty map[fleet.ClusterName]struct{}, all bool, contested map[fleet.ClusterName]bool) error {
	if len(dirty) == 0 && !all {
		return nil
	}
	var done []gone
	var stale []refresh
	var holds []*storev1.HoldRecord
	var recycled []fleet.ClusterName
	waits := map[fleet.ClusterName]bool{}
	err := c.view(ctx, func(r store.Reader) error {
		look := c.newRefresher(r, contested)
		look.shared = c.state(ref).common()
		for _, cl := range assignedClusters(r, ref, dirty, all) {
			v := record.Cluster(cl)
			t, ok := record.Track(r, v.Name, ref, true)
			if !ok {
				continue
			}
			if dead := t.Desired.GetTombstone(); dead != nil {
				if t.Tracker.Removed || neverJoined(cl) || record.Elsewhere(t.Desired, nil, cl) {
					if !record.Stands(r) || !comesAfter(t.Desired) { // a restored store gives no cluster another revision
						done = append(done, gone{v.Name, dead.GetGeneration()})
					}
				} else if x, needed, err := look.removal(ctx, t, v); err != nil {
					return err
				} else if needed {
					stale = append(stale, x.in(cl))
				}
				continue
			}
			if isRecycled(r, t) {
				recycled = append(recycled, v.Name)
			}
			x, needed, err := look.look(ctx, t, v)
			if err != nil {
				return err
			}
			if needed {
				stale = append(stale, x.in(cl))
			}
			if h := pruneHold(t); h != nil {
				holds = append(holds, h)
			} else if unsaid(t) {
				waits[v.Name] = true
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := c.forget(ctx, ref, done); err != nil {
		return err
	}
	if err := c.endRecycles(ctx, ref, recycled); err != nil {
		return err
	}
	if err := c.refresh(ctx, ref, stale); err != nil {
		return err
	}
	return c.putHolds(ctx, ref, holds, dirty, all, waits)
}

// assignedClusters are some clusters, or all that have something of the module.
func assignedClusters(r store.Reader, ref fleet.ModuleRef, dirty map[fleet.ClusterName]struct{}, all bool) []*storev1.ClusterRecord {
	if all {
		return record.ClustersOf(r, ref)
	}
	return someClusters(r, dirty, false)
}

func someClusters(r store.Reader, dirty map[fleet.ClusterName]struct{}, all bool) []*storev1.ClusterRecord {
	if all {
		return record.Clusters(r)
	}
	out := make([]*storev1.ClusterRecord, 0, len(dirty))
	for name := range dirty {
		if rec, _, ok := store.Get[*storev1.ClusterRecord](store.Untracked(r), store.ClusterKey(name)); ok { // one that is damaged stops no other
			out = append(out, rec)
		}
	}
	return out
}

func neverJoined(cl *storev1.ClusterRecord) bool { return cl.GetJoined() == nil }
