package control

import (
	"cmp"
	"context"
	"slices"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/catalog"
)

// begins has the store say, before the first put of a look, which modules are put later, beside those that were to be until now: what others let
// go by that look may be theirs. It says of no generation that it was looked at, so that a hub which leads before the look has ended looks at
// once, and puts the rest, but for files that are older than those.
func (c *Controller) begins(ctx context.Context, x *catalogue, plan catalog.Plan) error {
	s := x.next.GetStatus()
	if len(plan.Puts)+len(plan.Prunes) == 0 || len(plan.Puts) < 2 && len(s.GetConflicts())+len(s.GetWaits()) == 0 {
		return nil
	}
	takes := func(s *storev1.CatalogState) {
		s.Took, s.Found, s.ReadGeneration, s.Lists = x.next.GetTook(), nil, x.next.GetReadGeneration(), x.next.GetLists()
	}
	if err := c.update(ctx, func(w store.Writer) error {
		rec, _, _ := store.Get[*storev1.CatalogRecord](w, store.CatalogKey(x.ref))
		if rec.GetCatalog().GetMetadata().GetUid() != x.next.GetCatalogUid() {
			return nil
		}
		out := &storev1.CatalogState{CatalogUid: x.next.GetCatalogUid()}
		if old, _, _ := store.Get[*storev1.CatalogState](w, store.CatalogStateKey(x.ref)); old.GetCatalogUid() == out.GetCatalogUid() {
			out = proto.CloneOf(old)
		}
		if out.Status == nil {
			out.Status = &towlinev1.CatalogStatus{}
		}
		out.Status.ObservedGeneration = 0
		takes(out)
		leavesOut(out.Status, s, func(string) bool { return true })
		w.Put(store.CatalogStateKey(x.ref), out)
		return nil
	}); err != nil {
		return err
	}
	seen := x.known()
	takes(seen)
	c.catalogs.remember(x.ref, seen)
	return nil
}

// known is what is known of the catalog beside what this look comes to.
func (x *catalogue) known() *storev1.CatalogState {
	return cmp.Or(proto.CloneOf(x.was), &storev1.CatalogState{CatalogUid: x.next.GetCatalogUid(), Status: &towlinev1.CatalogStatus{}})
}

// stays notes of the modules that a plan puts, and that were not put, what the look before has said of them: that they are put later is true
// still. What was to be taken over and was not is somebody else's still, who must not prune it.
func (x *catalogue) stays(plan catalog.Plan) {
	s := x.next.GetStatus()
	put := func(module string) bool {
		return slices.Contains(x.done.Created, module) || slices.Contains(x.done.Configured, module)
	}
	leavesOut(s, x.was.GetStatus(), func(module string) bool {
		return !put(module) && slices.ContainsFunc(plan.Puts, func(p catalog.Put) bool { return p.Name == module })
	})
	for _, f := range plan.Takes {
		if !put(f.Name) && !record.LeavesOut(s, f.Name) {
			s.Conflicts = append(s.Conflicts, conflictOf(f))
		}
	}
}

func conflictOf(f catalog.Conflict) *towlinev1.CatalogConflict {
	return &towlinev1.CatalogConflict{Module: f.Name, File: f.At, Reason: f.Reason, Owner: f.Owner, Rollout: f.Rollout}
}

// leavesOut adds what a status says of modules that are put later to one that does not say so.
func leavesOut(to, from *towlinev1.CatalogStatus, of func(module string) bool) {
	adds := func(module string) bool {
		return of(module) && record.LeavesOut(from, module) && !record.LeavesOut(to, module)
	}
	conflicts, waits := slices.Clone(to.GetConflicts()), slices.Clone(to.GetWaits())
	for _, x := range from.GetConflicts() {
		if adds(x.GetModule()) {
			conflicts = append(conflicts, x)
		}
	}
	for _, x := range from.GetWaits() {
		if adds(x.GetModule()) {
			waits = append(waits, x)
		}
	}
	to.Conflicts, to.Waits = conflicts, waits
}
