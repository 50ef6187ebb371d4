package worker

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// eraser removes objects under one plan.
type eraser struct {
	w       *worker
	in      plan.PruneInput
	kinds   map[kindKey]located
	checked []plan.Kept                // stay after a look at the cluster
	doomed  map[fleet.ObjectID]bool    // go by the plan, unless a look found that they stay; fixed while a stage goes on
	leaving map[fleet.ObjectID]leaving // were on their way out at the last look
	left    map[fleet.ObjectID]bool    // stay in the cluster without our marks, by the plan or, maybe, by their labels
	owners  map[string]bool            // the UIDs of what goes by the plan
	climbs  bool                       // something is to go with which what is left may go
	descent descent                    // of what stays
	bound   bindings                   // what stays, and would go with others
	rebound sync.Map                   // the same, found since, by the UID of one that may not go before
	late    []plan.Kept                // are not there, and may still come to be; of what a sync does not list
	lost    []vanished                 // to be forgotten with the next proof
	unseen  bool                       // whether some that are left are there could not be seen
	doubt   *apply.Failure             // why that could not be proven
	soon    bool                       // something that stays is not safe from what was sent before, and is looked at again
}

// erased is what came of one object.
type erased struct {
	record  plan.Record
	gone    bool
	lost    *vanished // with gone: to be forgotten
	kept    *plan.Kept
	fail    *apply.Failure
	leaving leaving // if it is none of these
	missed  error   // with leaving: why a request did not find it as it was seen, or was not taken
	says    string  // by what a removal leaves it, once it does
}

// remove releases and deletes what the plan says, stage by stage, once that is noted.
func (e *eraser) remove(ctx context.Context, todo plan.PrunePlan) {
	e.doomed, e.left, e.owners = map[fleet.ObjectID]bool{}, map[fleet.ObjectID]bool{}, map[string]bool{}
	doomed := slices.Concat(todo.Delete...)
	for _, r := range doomed {
		e.doomed[r.ID], e.owners[r.UID] = true, true
		if e.mayBeLeft(r) {
			e.left[r.ID] = true // should it, its owners are to be taken from it before
		}
	}
	e.doom()
	for _, r := range todo.Release {
		e.left[r.ID] = true
	}
	e.descent.m = e.w.m
	e.climbs = len(e.owners) > 0 || len(todo.Release) > 0 && e.w.m.deletes()
	if e.halted(ctx) || !e.writeAhead(ctx, todo.Release, doomed) {
		return
	}
	e.stage(ctx, todo.Release, true)
	if len(todo.Delete) == 0 {
		return
	}
	for i, stage := range todo.Delete {
		if unknown := e.w.ownedUnknown(ctx, ownedWait); len(unknown) > 0 {
			e.awaitOwned(todo.Delete[i:], unknown)
			return
		}
		if e.w.held() != "" { // by what the watches have only just told, or since the stage before
			e.awaitHold(todo.Delete[i:])
			return
		}
		// What is on its way out is not deleted again, however long it waits for a finalizer: nobody has to know what goes with it, nor yet with
		// what waits for it.
		going := slices.DeleteFunc(slices.Clone(stage), func(r plan.Record) bool { return e.w.seenLeaving(e.kinds[kindOf(r)].Resource, r) })
		e.descent.forget()
		e.bound = e.w.m.bindings(ctx, &e.descent, e.staying, going) // a hold may have come while the stage before went on
		if !e.stage(ctx, stage, false) {
			return
		}
	}
}

// mayBeLeft reports that a look at an object that is to go may find labels by which it is left. Those that were seen for a tombstone are in
// the record.
func (e *eraser) mayBeLeft(r plan.Record) bool {
	if _, seen := e.w.pruning.labels[r.ID]; e.in.Tombstone {
		return !seen && e.in.AsksLabels(r)
	}
	return plan.MayBeLeft(e.in.Policies, r)
}

// doom tells the other modules what is about to be deleted of this one. Of what goes with its module they know no more than that, so that
// what may be left by labels which could not be read is not among it.
func (e *eraser) doom() {
	doomed := maps.Clone(e.doomed)
	maps.DeleteFunc(doomed, func(id fleet.ObjectID, _ bool) bool { return e.in.Tombstone && e.left[id] })
	e.w.doomed.Store(&doomed)
}

// stage removes or releases the objects of one stage. It reports whether all are gone, so that the next stage may begin.
func (e *eraser) stage(ctx context.Context, records []plan.Record, release bool) bool {
	for _, k := range e.checked {
		delete(e.doomed, k.Record.ID)
	}
	e.doom()
	// What was refused goes last, for the stage ends with the first that is: the others must not wait for it.
	slices.SortStableFunc(records, func(a, b plan.Record) int { return cmp.Compare(e.w.pruning.refused[a.ID], e.w.pruning.refused[b.ID]) })
	results := make(chan erased, cap(e.w.m.slots))
	next, inFlight, clean := 0, 0, true
	slow := time.NewTicker(progressEvery)
	defer slow.Stop()
	for next < len(records) || inFlight > 0 {
		if len(e.lost) >= forgetAtOnce {
			clean = e.forget(ctx) && clean
		}
		if next < len(records) && e.halted(ctx) {
			next, clean = len(records), false
			continue
		}
		slots := e.w.m.slots
		if next == len(records) || inFlight == cap(slots) {
			slots = nil
		}
		select {
		case slots <- struct{}{}:
			r := records[next]
			next++
			inFlight++
			go func() {
				defer e.w.m.lend()()
				results <- e.guarded(ctx, r, release)
			}()
		case got := <-results:
			inFlight--
			clean = e.take(got) && clean
			e.w.progress()
			if got.fail != nil {
				next, clean = len(records), false
			}
		case <-slow.C: // one request that hangs keeps nobody from hearing of the others
			clean = e.forget(ctx) && clean
			e.w.progress()
		}
	}
	return e.forget(ctx) && clean
}

// forgetAtOnce is how many records wait for one proof.
const forgetAtOnce = 100

// halted reports that nothing more is to be begun: a newer target waits, or writes are forbidden.
func (e *eraser) halted(ctx context.Context) bool {
	return ctx.Err() != nil || e.w.superseded() || e.w.m.forbidden() != ""
}

func (e *eraser) take(got erased) bool {
	p := &e.w.pruning
	switch {
	case got.fail != nil:
		if p.refused == nil {
			p.refused = map[fleet.ObjectID]int{}
		}
		p.refused[got.record.ID]++
		p.failed = got.fail
		e.checked = append(e.checked, plan.Kept{Record: got.record, Rule: plan.RuleOrder, Reason: got.fail.Reason, Message: got.fail.Message})
	case got.kept != nil:
		e.checked = append(e.checked, *got.kept)
		return true
	case !got.gone:
		got.leaving.record = got.record
		p.leaving = append(p.leaving, got.leaving)
	case got.lost != nil:
		e.lost = append(e.lost, *got.lost)
	}
	return got.gone
}

// guarded erases; a bug that it runs into fails this object alone.
func (e *eraser) guarded(ctx context.Context, r plan.Record, release bool) (out erased) {
	err := e.w.about(r.ID, func() error {
		out = e.erase(ctx, r, release)
		return nil
	})
	if err != nil {
		return erased{record: r, fail: apply.Explain(r.ID, err)}
	}
	return out
}
