package worker

import (
	"context"
	"errors"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// vanished is a record whose object is not there any more, or is not ours, as a look has it.
type vanished struct {
	record   plan.Record
	resource apply.Resource
	why      string // an object that is there is not the module's any more; empty: it is gone
}

// forget drops the records of what is lost, once it is proven that the looks were at this cluster: another one, whose API
// server answers at the same address, has none of its objects. It reports whether it could.
func (e *eraser) forget(ctx context.Context) bool {
	lost := e.lost
	e.lost = nil
	if len(lost) == 0 {
		return true
	}
	if err := e.w.m.prove(ctx); err != nil {
		e.doubt = apply.Explain(lost[0].record.ID, err)
		e.w.pruning.failed = e.doubt
		return false
	}
	for _, x := range lost {
		r := x.record
		if x.why != "" {
			e.w.log.Warn("object is not ours any more, and stays as it is", "object", r.ID.String(), "uid", r.UID, "because", x.why)
			e.tellNotOurs(r, x.resource, x.why)
		}
		e.w.drop(r)
		e.w.m.watcher.Forget(x.resource, namespaceOf(x.resource, r.ID), r.ID.Name, r.UID)
	}
	return true
}

// another notes that one is in the place of a record's object which is known by its marks only.
func (e *eraser) another(r plan.Record) {
	e.w.log.Warn("object was found by its marks in place of the one that was noted", "object", r.ID.String(), "uid", r.UID)
	e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
		next.State, next.UID, next.ResourceVersion, next.Want, next.Deleting = plan.Intent, "", 0, fleet.Digest{}, fleet.Age{}
		next.Found, next.Asked, next.Taking = true, false, false
		return true
	})
}

// settleTime bounds how long intents are looked at before the module goes on; what is left is looked at later.
const settleTime = time.Minute

// settle finds out which intents became objects of ours. It reports whether any record changed. An intent whose kind the
// cluster does not have was never written: nothing but the record is forgotten.
func (e *eraser) settle(ctx context.Context, intents []plan.Record) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for _, r := range intents {
		kind := e.kinds[kindOf(r)]
		seen, ours, undecided := e.w.intended(ctx, e.in, kind, r)
		switch {
		case undecided != nil:
			e.checked = append(e.checked, *undecided)
		case !ours:
			e.lost = append(e.lost, vanished{record: r, resource: kind.Resource})
		default:
			changed = true
			e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
				next.State, next.UID, next.Aggregated = plan.Owned, seen.UID, e.w.m.mapper.Aggregated(kind.Resource)
				return true
			})
		}
	}
	forgot := len(e.lost) > 0 && e.forget(ctx)
	return changed || forgot
}

// noUIDText is said of what the agent wrote to an API server that gives objects no UID.
const noUIDText = "is there with the marks of this module, and its API server gives it no UID, by which one object is told from another: it is neither changed nor deleted. " +
	"Delete it by hand, or the module with --orphan"

// intended looks whether the object of an intent is there and the module's, or says why that cannot be told.
func (w *worker) intended(ctx context.Context, in plan.PruneInput, kind located, r plan.Record) (seen plan.Seen, ours bool, undecided *plan.Kept) {
	unsettled := func(rule plan.Rule, message string) *plan.Kept {
		return &plan.Kept{Record: r, Rule: rule, Reason: plan.ReasonUnsettled, Message: message}
	}
	switch state, why := w.stateOfKind(kind, r); state {
	case plan.KindGone:
		return seen, false, nil
	case plan.KindUnknown:
		return seen, false, unsettled(plan.RuleUnknownKind, "whether it was written cannot be found out now: "+why)
	}
	seen, _, err := w.see(ctx, kind.Resource, r)
	kept := !errors.Is(err, apply.ErrNotKept)
	if err != nil && (kept || r.UID != "") {
		return seen, false, unsettled(plan.RuleIntentIsNotOwned, "cannot be looked at: "+err.Error())
	}
	claimant, err := w.m.claimantOf(ctx, w.ref, seen.Labels)
	if err != nil {
		return seen, false, unsettled(plan.RuleIntentIsNotOwned, err.Error())
	}
	if !kept {
		if of, exact := claimant.Mark(seen.Annotations, r.ID); exact && of == w.ref && !(in.Tombstone && in.Policy == fleet.DeleteOrphan) {
			return seen, false, unsettled(plan.RuleIntentIsNotOwned, noUIDText)
		}
		return seen, false, nil
	}
	verdict, _ := plan.Verify(in, r, seen, claimant)
	if verdict == plan.Gone && w.m.late.mayLand(r.ID, time.Now()) {
		return seen, false, unsettled(plan.RuleIntentIsNotOwned, lateText)
	}
	return seen, verdict != plan.Gone && verdict != plan.Foreign, nil
}
