package worker

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// forgetMissing forgets what is not wanted any more and is gone, or not ours any more, by whomever, whatever keeps the
// others: the watch says which it may be, and a look that it is so, or the kind is gone with all of its objects. It reports
// whether any was forgotten. What cannot be looked at is looked at again, for no event may tell of it.
func (e *eraser) forgetMissing(ctx context.Context) (changed bool) {
	for _, r := range e.in.Records {
		if !e.leftOver(r) {
			continue
		}
		kind := e.kinds[kindOf(r)]
		switch state, _ := e.w.stateOfKind(kind, r); state {
		case plan.KindGone:
			changed = e.missed(r, kind.Resource, plan.Seen{}, e.w.m.claimant(e.w.ref)) || changed
			continue
		case plan.KindUnknown:
			e.unseen = true
			continue
		}
		f, synced := e.w.m.watcher.Look(kind.Resource, namespaceOf(kind.Resource, r.ID), r.ID.Name)
		if synced && f != nil && (f.UID == r.UID || !r.Written()) && e.w.marks(f, r) {
			continue
		}
		if !synced {
			e.unseen = true
			continue
		}
		seen, _, err := e.w.see(ctx, kind.Resource, r)
		if err != nil {
			e.unseen = true
			continue
		}
		claimant, err := e.w.m.claimantOf(ctx, e.w.ref, seen.Labels)
		if err != nil {
			e.unseen = true
			continue
		}
		changed = e.missed(r, kind.Resource, seen, claimant) || changed
	}
	forgot := len(e.lost) > 0 && e.forget(ctx)
	return changed || forgot
}

// leftOver reports that an object is not wanted any more. The record of one that another module waits for, or is about to
// list, goes over to it: it tells whether the object ran to its end. What was found by its marks was there, written or not.
func (e *eraser) leftOver(r plan.Record) bool {
	if r.State != plan.Owned && !r.Found || !e.in.Tombstone && e.in.Desired(r.ID) {
		return false
	}
	if to, wanted := e.in.WantedBy(r.ID); wanted && to != e.w.ref {
		return false
	}
	_, promised := assemble.HeirOf(e.in.Heirs, r.ID)
	return !r.Ran() || !promised && len(e.in.Untaken) == 0
}

// missed notes what a look found of an object that the watch has not, or not as ours. It reports whether its record changed.
func (e *eraser) missed(r plan.Record, res apply.Resource, seen plan.Seen, claimant plan.Claimant) (changed bool) {
	verdict, _ := plan.Verify(e.in, r, seen, claimant)
	switch {
	case verdict == plan.Gone && e.w.m.late.mayLand(r.ID, time.Now()):
		e.late = append(e.late, plan.Kept{Record: r, Rule: plan.RuleIntentIsNotOwned, Reason: plan.ReasonUnsettled, Message: lateText})
	case verdict == plan.Another:
		e.another(r)
		return true
	case verdict == plan.Foreign:
		e.lost = append(e.lost, vanished{r, res, e.stays(r, seen, claimant)})
	case verdict == plan.Gone:
		what := "object that is not wanted any more was deleted by somebody else"
		if e.w.erased(types.UID(r.UID)) || r.Goes() {
			what = "object is gone"
		}
		e.w.log.Info(what, "object", r.ID.String(), "uid", r.UID)
		e.lost = append(e.lost, vanished{record: r, resource: res})
	}
	return false
}

// stays says why an object that is there is not ours any more; empty: it was to be let go, and so it was. That a removal leaves it is noted.
func (e *eraser) stays(r plan.Record, seen plan.Seen, claimant plan.Claimant) (why string) {
	if r.LetGo(seen) {
		if e.in.Tombstone && e.in.Policy != fleet.DeleteOrphan {
			e.w.m.inventory.Leave(e.w.ref, leftText(r, seen))
		}
		return ""
	}
	why = plan.ForeignText(seen, claimant, r)
	if e.in.Tombstone {
		e.w.m.inventory.Leave(e.w.ref, r.ID.Short()+" ("+why+")")
	}
	return why
}

// marks reports that the object of a record carries its module's mark, or that of the module that had it before, as far as
// a watch sees it.
func (w *worker) marks(f *watch.Fingerprint, r plan.Record) bool {
	of, uid, ok := fleet.ParseOwnerMark(f.Owner)
	return ok && !f.Unwatched && uid == w.m.o.ClusterUID && (of == w.ref || of == r.From)
}

// records are what the inventory has of the module.
func (w *worker) records() []plan.Record {
	var out []plan.Record
	for _, r := range w.m.inventory.Module(w.ref) {
		out = append(out, r.Record)
	}
	return out
}
