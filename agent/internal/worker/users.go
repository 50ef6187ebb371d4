package worker

import (
	"slices"
	"strings"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
	"towline.dev/towline/pkg/plan"
)

// usersText names who may use what the sync drops; empty: nobody. What was seen of the module's own is of the last refresh.
func (w *worker) usersText() string {
	users := w.given()
	for _, it := range w.items {
		if it.old != 0 || it.unseen || it.differs { // of nothing else there is anything to say, and this is asked in every pass
			users = append(users, plan.User{ID: it.entry.ID, Old: int(it.old), Unseen: it.unseen, Differs: it.differs})
		}
	}
	return plan.UsersText(users)
}

// given are the objects that went to other modules and are not through since, also while those are removed: what is held there stays. Only
// where that removal waits for the one of this module is it not waited for.
func (w *worker) given() (out []plan.User) {
	for _, r := range w.m.inventory.Given(w.ref) {
		if !w.m.removing(r.Module) || !w.m.sequence.awaitsEnd(r.Module, w.ref) {
			out = append(out, plan.User{ID: r.ID, Module: r.Module, Old: health.NotThrough})
		}
	}
	return out
}

// users are the modules that have what went to them and is not through since, whether they are waited for or not, and one that goes and has
// what needs this one.
func (w *worker) users() (out []fleet.ModuleRef) {
	for _, r := range w.m.inventory.Given(w.ref) {
		out = append(out, r.Module)
	}
	if needs := w.pruning.needs; needs != (fleet.ModuleRef{}) {
		out = append(out, needs)
	}
	slices.SortFunc(out, func(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// seeUse notes what is seen of how an item's object may use what the module drops, or dropped. f is nil where nothing is known of it.
func (w *worker) seeUse(it *item, action plan.Action, rec *apply.Record, f *watch.Fingerprint, healthy bool) {
	if !plan.MayUse(it.entry.ID) {
		return
	}
	if f == nil {
		it.unseen = true
		return
	}
	w.noteBack(rec, f)
	drift := action.Drift
	if action.Verb == plan.Repeat { // what an admission policy makes of the writes of others stands in our own name
		drift = fleet.DriftDrifted
	}
	it.old, it.differs = f.Old, differs(it.entry.ID, drift, f.Change)
	if !it.writtenAs(rec, action) {
		return
	}
	// What is to be corrected, and is not, is as what is left so: another tool has it back each time, or the correction is refused.
	stands := action.Verb == plan.Leave || action.Verb == plan.Correct || action.Verb == plan.Repeat
	switch {
	case it.differs:
		held := action.Drift != fleet.DriftIgnored && w.writesNothing(it.entry.ID)
		it.turnedBack = stands && rec.Before != nil && (held || f.Former)
	case stands, action.Verb == plan.Skip:
		ready := healthy || it.uncounted
		w.noteThrough(it, rec, ready, it.old == 0 && (ready || !plan.IsCustom(it.entry.ID)))
	}
}

// noteBack notes that an object is as another module left it, by the mark that it carries, though this one has written it since: the cluster's store
// was put back to before that. What the object is made by then may use what the other module drops.
func (w *worker) noteBack(rec *apply.Record, f *watch.Fingerprint) {
	of, uid, ok := fleet.ParseOwnerMark(f.Owner)
	if !ok || uid != w.m.o.ClusterUID || of == w.ref || rec.From != (fleet.ModuleRef{}) || rec.UID != f.UID || rec.GivenBy(of) {
		return
	}
	if w.m.inventory.Amend(w.ref, rec.ID, func(r *apply.Record) bool {
		r.Givers = r.WithGiver(of)
		return true
	}) {
		w.m.retry(of, rec.ID)
	}
}

// noteThrough notes that an object is ready as the module has it, and that nothing of what it was before uses anything. Of a kind of Kubernetes
// that tells its own status, and what has no pods uses nothing of before once it is written; an operator may not be through until the object
// is ready.
func (w *worker) noteThrough(it *item, rec *apply.Record, ready, free bool) {
	ready, free = ready && rec.Before != nil, free && rec.Givers != ""
	if !ready && !free {
		return
	}
	givers := ""
	w.m.inventory.Amend(w.ref, it.entry.ID, func(r *apply.Record) bool {
		if ready {
			r.Before = nil
		}
		if free {
			givers, r.Givers = r.Givers, ""
		}
		return true
	})
	w.tellGivers(it.entry.ID, givers)
}

// tellGivers has the modules that handed an object over look again: they wait for it no more.
func (w *worker) tellGivers(id fleet.ObjectID, givers string) {
	for _, text := range strings.Fields(givers) {
		if giver, err := fleet.ParseModuleRef(text); err == nil {
			w.m.retry(giver, id)
		}
	}
}

// drop forgets an object that the module has no more.
func (w *worker) drop(r plan.Record) {
	w.m.inventory.Drop(w.ref, r.ID)
	w.tellGivers(r.ID, r.Givers)
}

// differs reports that what somebody changed of an object is what its pods are made by, or who is reached: what the module drops may be
// used again by that. Where a policy says that nobody minds what is changed, only the template of a workload counts.
func differs(id fleet.ObjectID, drift fleet.Drift, c *watch.Change) bool {
	template := c == nil || c.Fields > 1 || c.Pointer == "" || strings.HasPrefix(c.Pointer, "/spec/template") || strings.HasPrefix(c.Pointer, "/spec/jobTemplate")
	switch drift {
	case fleet.DriftDrifted, fleet.DriftHeld:
		return template || !changesNoUse(c.Pointer)
	case fleet.DriftIgnored:
		return template && !plan.IsCustom(id)
	}
	return false
}

// changesNoUse reports that a field says nothing of what pods are made by, nor of who is reached.
func changesNoUse(pointer string) bool {
	switch pointer {
	case apply.ReplicasPointer, "/spec/paused", "/spec/suspend":
		return true
	}
	return strings.HasPrefix(pointer, "/metadata/")
}
