package worker

import (
	"context"
	"errors"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// seenLeaving reports that the watch has the object as one that is being deleted.
func (w *worker) seenLeaving(res apply.Resource, r plan.Record) bool {
	f, synced := w.m.watcher.Look(res, namespaceOf(res, r.ID), r.ID.Name)
	return synced && f != nil && f.UID == r.UID && f.Terminating
}

// see reads the live object's metadata from the API server.
func (w *worker) see(ctx context.Context, res apply.Resource, r plan.Record) (plan.Seen, *metav1.PartialObjectMetadata, error) {
	live, err := w.m.client.GetMeta(ctx, res, namespaceOf(res, r.ID), r.ID.Name)
	switch {
	case kube.IsGone(err):
		return plan.Seen{}, nil, nil
	case kube.Is(err, kube.Unserved):
		w.m.mapper.Reset(res.Group)
		return plan.Seen{}, nil, err
	case errors.Is(err, apply.ErrNotKept):
		return w.seenOn(r.ID, live), nil, err
	case err != nil:
		return plan.Seen{}, nil, err
	}
	return w.seenOn(r.ID, live), live, nil
}

// isGone reports that an object is not there: the API server says so, or does not have its kind any more, which took it along. That it does not
// serve a kind of which it was never the keeper, or not in this version, says nothing of the object.
func (a *writer) isGone(ctx context.Context, err error) bool {
	if !kube.Is(err, kube.Unserved) || a.record == nil {
		return kube.IsGone(err)
	}
	a.w.m.mapper.Reset(a.resource.Group)
	k := a.w.locate(ctx, a.record.Record)
	return k.why == "" && k.gone && outlivesItsKind(k, a.record.Record) == ""
}

// confirmGone finds out whether an object that was not written, and that no watch shows, is there: neither what refuses to have it made tells
// that, nor the watch, which shows only what has our label.
func (a *writer) confirmGone(ctx context.Context) {
	rec := a.w.m.inventory.Get(a.id)
	if rec == nil || rec.Module != a.w.ref || !rec.Written() || a.resource.Resource == "" {
		return
	}
	f, synced := a.w.m.watcher.See(a.resource, a.namespace, a.id.Name)
	if f != nil || !synced || a.w.m.watcher.Gone(a.resource, a.namespace, a.id.Name) {
		return
	}
	if _, err := a.w.m.client.GetMeta(ctx, a.resource, a.namespace, a.id.Name); a.isGone(ctx, err) {
		a.w.m.watcher.ConfirmGone(a.resource, a.namespace, a.id.Name, rec.UID)
	}
}

// holdsUp says why an object that is being deleted is still there.
func (w *worker) holdsUp(ctx context.Context, res apply.Resource, r plan.Record, seen plan.Seen) string {
	if !plan.IsNamespace(r.ID) {
		return leavingText(seen)
	}
	live, err := w.m.client.Get(ctx, res, "", r.ID.Name)
	if err != nil {
		return leavingText(seen)
	}
	text, with := leavingText(seen), ": "
	if len(seen.Finalizers) > 0 {
		with = "; "
	}
	if why := apply.NamespaceTrouble(live); why != "" {
		text += with + w.hidden(r.ID).scrub(why)
	}
	survey, err := w.m.served.get(ctx, w.m.mapper)
	if err != nil {
		return text
	}
	for _, f := range survey.Failed {
		text += "; " + w.m.unavailable(ctx, f)
	}
	return text
}

// leftText names an object that a removal leaves, and who has it.
func leftText(r plan.Record, seen plan.Seen) string {
	by := seen.TakenBy(r)
	if by == "" {
		return r.ID.Short()
	}
	return r.ID.Short() + " (left to " + by + ")"
}

func leavingText(seen plan.Seen) string {
	if len(seen.Finalizers) == 0 {
		return "is being deleted"
	}
	return "is being deleted; finalizers that nobody has taken yet: " + strings.Join(seen.Finalizers, ", ")
}

func namespaceOf(res apply.Resource, id fleet.ObjectID) string {
	if !res.Namespaced {
		return ""
	}
	return id.Namespace
}

// seenOn is what the metadata of a live object say.
func (w *worker) seenOn(id fleet.ObjectID, live *metav1.PartialObjectMetadata) plan.Seen {
	seen := plan.Seen{Found: true, UID: string(live.UID), Terminating: live.DeletionTimestamp != nil, Finalizers: live.Finalizers,
		Labels: live.Labels, Annotations: live.Annotations, Proof: apply.ProofOf(live.ManagedFields)}
	// One that this module deleted has taken nothing over: where its kind has gone, too, nobody takes along what it owned.
	owners := slices.DeleteFunc(slices.Clone(live.OwnerReferences), func(o metav1.OwnerReference) bool { return w.erased(o.UID) })
	seen.Owners, seen.Listed = ownersOf(owners), apply.ListedKeys(live.ManagedFields)
	var ours *apply.PathSet
	if known := w.m.inventory.Get(id); known != nil && known.UID == seen.UID {
		ours = known.Paths
	}
	seen.Appliers = apply.AppliersOfAll(live.ManagedFields, ours)
	return seen
}
