package worker

import (
	"context"
	"slices"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// yielded says that another module owns an object of the sync, since when the module waits for it, and whether the owner is
// about to let it go.
type yielded struct {
	owner  fleet.ModuleRef
	since  uint64
	ending bool
}

func yieldsOf(s fleet.Sync) map[int]yielded {
	if len(s.Yields) == 0 {
		return nil
	}
	out := map[int]yielded{}
	for _, y := range s.Yields {
		for _, o := range y.Ordinals {
			_, ending := slices.BinarySearch(y.Ending, o)
			out[o] = yielded{y.Owner, y.Since, ending}
		}
	}
	return out
}

// clearYielded has the items tried again at once whose owner, by the hub's word, may be another one now, or about to do
// something else with them.
func (w *worker) clearYielded(old fleet.Sync) {
	before := yieldsOf(old)
	for _, it := range w.items {
		if before[it.ordinal] != w.yields[it.ordinal] || it.ofAnother() {
			it.clear()
		}
	}
}

// own reports whether the module may write an object that is new to it, and notes that it wants it. An object that the
// hub gave to another module is waited for, whether that module has it already or not.
func (w *worker) own(it *item) (owner fleet.ModuleRef, ok bool) {
	y, yields := w.yields[it.ordinal]
	if !yields {
		owner, ok = w.m.inventory.Claim(w.intent(it))
		if !ok {
			w.m.touch(owner, it.entry.ID) // it may have to give it back
		}
		return owner, ok
	}
	rec := w.m.inventory.Get(it.entry.ID)
	switch {
	case rec == nil:
		owner = y.owner
	case rec.Module == w.ref:
		return w.ref, true
	default:
		owner = rec.Module
	}
	wish := apply.WishFor(w.intent(it))
	wish.Yields, wish.Since = true, y.since
	w.m.inventory.Want(it.entry.ID, wish)
	return owner, false
}

// inConflict notes that an item is another module's. It is waited for if that one is about to let it go: by the hub's word,
// or, where the hub has given the object to this module already, by what the other one is to list here. That is no failure,
// however long it takes; the rollout has a deadline for it.
func (w *worker) inConflict(it *item, owner fleet.ModuleRef, now time.Time) {
	id := it.entry.ID
	if rec := w.m.inventory.Get(id); it.policy.Shares() && (rec == nil || rec.Shared && !rec.Written()) {
		w.failed(it, &apply.Failure{Reason: apply.ReasonAwaitingOwner, Owner: owner, Transient: true, Kind: fleet.ErrExists,
			Message: id.String() + ": waits for module " + owner.Display() + ", which comes first, to make it"}, now)
		return
	}
	y, yields := w.yields[it.ordinal]
	if yields && !y.ending || !yields && w.m.keeps(owner, id) {
		w.failed(it, &apply.Failure{Reason: apply.ReasonConflict, Owner: owner, Kind: fleet.ErrExists, Message: assemble.ConflictMessage(id, owner)}, now)
		return
	}
	w.failed(it, &apply.Failure{Reason: apply.ReasonAwaitingOwner, Owner: owner, Transient: true, Kind: fleet.ErrExists,
		Message: assemble.AwaitingMessage(id, owner)}, now)
}

// ofAnother reports that the object is another module's, which lets it go or does not.
func (it *item) ofAnother() bool { return it.fail != nil && it.fail.Owner != (fleet.ModuleRef{}) }

// awaits reports that the object is another module's which is about to let it go.
func (it *item) awaits() bool { return it.fail != nil && it.fail.Reason == apply.ReasonAwaitingOwner }

// giveBack hands objects over that the module has, although by the hub's word they are another module's which is here
// and wants them. Until that is here, they stay.
func (w *worker) giveBack(ctx context.Context) {
	if len(w.yields) == 0 || w.held() != "" {
		return
	}
	for ordinal := range w.yields {
		it := w.items[ordinal]
		next, waits := w.m.inventory.Next(it.entry.ID)
		rec := w.m.inventory.Get(it.entry.ID)
		if w.holds(it.entry.ID) {
			continue
		}
		if !waits || next.Yields || rec == nil || rec.Module != w.ref {
			continue
		}
		if rec = w.settled(ctx, rec); rec == nil {
			w.m.retry(next.Module, it.entry.ID)
		} else if rec.Written() {
			w.handOver(plan.Handover{Record: rec.Record, To: next.Module})
		}
		it.clear()
		it.look = true
	}
}

// settled is the record when it is known whether an intent became an object of ours; nil: it did not. One that cannot be
// looked at now stays an intent.
func (w *worker) settled(ctx context.Context, rec *apply.Record) *apply.Record {
	if rec.Written() {
		return rec
	}
	ctx, cancel := context.WithTimeout(ctx, kindsTime)
	defer cancel()
	e := eraser{w: w, in: w.pruneInput(), kinds: map[kindKey]located{kindOf(rec.Record): w.locateNow(ctx, rec.Record)}}
	e.settle(ctx, []plan.Record{rec.Record})
	return w.m.inventory.Get(rec.ID)
}

// await waits for something without which nothing can be said of what goes: until every module has said what it wants, for
// what goes here may be just what another one lists; or until all that is ours is found. Either wakes the worker; after a while it says what it waits for.
func (w *worker) await(in plan.PruneInput, now time.Time, why plan.Kept) {
	p := &w.pruning
	if p.awaits.IsZero() {
		p.awaits = now
	}
	if p.retry = p.awaits.Add(awaitQuiet); now.Before(p.retry) {
		return
	}
	p.retry = now.Add(maxPrune)
	p.kept, p.held = nil, nil
	for _, r := range in.Records {
		if in.Tombstone || !in.Desired(r.ID) {
			why.Record = r
			p.kept = append(p.kept, why)
		}
	}
}
