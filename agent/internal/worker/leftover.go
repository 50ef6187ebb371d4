package worker

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/plan"
)

// forgetMissing forgets what is not wanted any more and is gone, by whomever, whatever keeps the others: the watch
// says which it may be, and a look that it is so. It reports whether any was forgotten. The record of an object that
// another module waits for, or is about to list, goes over to it: it tells whether the object ran to its end.
func (e *eraser) forgetMissing(ctx context.Context) (changed bool) {
	for _, r := range e.in.Records {
		res := e.kinds[kindOf(r)].Resource
		if res.Resource == "" || r.State != plan.Owned || !e.in.Tombstone && e.in.Desired(r.ID) {
			continue
		}
		if to, wanted := e.in.WantedBy(r.ID); wanted && to != e.w.ref {
			continue
		}
		if _, promised := assemble.HeirOf(e.in.Heirs, r.ID); promised && r.Ran() {
			continue
		}
		f, synced := e.w.m.watcher.Look(res, namespaceOf(res, r.ID), r.ID.Name)
		if !synced || f != nil && f.UID == r.UID {
			continue
		}
		seen, _, err := e.w.see(ctx, res, r)
		if err == nil && seen.UID != r.UID {
			if verdict, _ := plan.Verify(e.in, r, seen, e.w.m.claimant(e.w.ref)); verdict == plan.Another {
				changed = true
				e.another(r)
				continue
			}
			what := "object that is not wanted any more was deleted by somebody else"
			if e.w.erased(types.UID(r.UID)) || r.Deleting != 0 {
				what = "object is gone"
			}
			e.w.log.Info(what, "object", r.ID.String(), "uid", r.UID)
			e.lost = append(e.lost, vanished{r, res, plan.Gone, plan.RuleOwnershipLive})
		}
	}
	forgot := len(e.lost) > 0 && e.forget(ctx)
	return changed || forgot
}

// records are what the inventory has of the module.
func (w *worker) records() []plan.Record {
	var out []plan.Record
	for _, r := range w.m.inventory.Module(w.ref) {
		out = append(out, r.Record)
	}
	return out
}
