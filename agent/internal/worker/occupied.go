package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// maxNamed is how many foreign objects a message names.
const maxNamed = 5

// noteGone remembers that this worker deleted an object.
func (w *worker) noteGone(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.erasedUIDs == nil {
		w.erasedUIDs = map[types.UID]bool{}
	}
	w.erasedUIDs[uid] = true
}

// noteKept remembers an object that a tombstone left in the cluster.
func (w *worker) noteKept(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.keptBehind == nil {
		w.keptBehind = map[string]bool{}
	}
	w.keptBehind[what] = true
}

// keptText says what a tombstone left in the cluster.
func (w *worker) keptText() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.keptBehind) == 0 {
		return ""
	}
	return "kept: " + names(slices.Collect(maps.Keys(w.keptBehind)))
}

// occupied reports that a namespace or a CRD holds what is not ours, or (wait) what is on its way out.
func (e *eraser) occupied(ctx context.Context, r plan.Record, res apply.Resource) (kept *plan.Kept, wait bool, err error) {
	switch {
	case plan.IsNamespace(r.ID):
		foreign, leaving, err := e.w.foreignIn(ctx, r.ID.Name)
		if err != nil {
			return nil, false, err
		}
		if len(foreign) > 0 {
			return &plan.Kept{Record: r, Rule: plan.RuleSensitiveKind, Reason: plan.ReasonNotEmpty,
				Message: "the namespace holds what is not ours: " + names(foreign)}, false, nil
		}
		return nil, leaving, nil
	case plan.IsCRD(r.ID):
		foreign, leaving, err := e.w.foreignOf(ctx, r, res)
		if err != nil {
			return nil, false, err
		}
		if len(foreign) > 0 {
			return &plan.Kept{Record: r, Rule: plan.RuleSensitiveKind, Reason: plan.ReasonInUse,
				Message: "there are objects of the kind that are not ours: " + names(foreign)}, false, nil
		}
		return nil, leaving, nil
	}
	return nil, false, nil
}

func names(list []string) string {
	slices.Sort(list)
	if len(list) > maxNamed {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:maxNamed], ", "), len(list)-maxNamed)
	}
	return strings.Join(list, ", ")
}

// found is one object in a namespace.
type found struct {
	id      fleet.ObjectID
	uid     types.UID
	owners  []metav1.OwnerReference
	leaving bool
	ours    bool
	free    bool // made by the cluster for every namespace
}

// foreignIn lists what is in a namespace and is neither ours, nor made by the cluster for every namespace, nor owned by
// what is ours. leaving says that something else is still being deleted.
func (w *worker) foreignIn(ctx context.Context, namespace string) (foreign []string, leaving bool, err error) {
	resources, err := w.m.mapper.Everything(ctx)
	if err != nil {
		return nil, false, err
	}
	all := map[types.UID]*found{}
	for _, res := range resources {
		if !res.Namespaced {
			continue
		}
		err := w.m.client.EachMeta(ctx, res, namespace, "", func(o *metav1.PartialObjectMetadata) bool {
			id := fleet.ObjectID{Group: res.Group, Kind: res.Kind, Namespace: namespace, Name: o.Name}
			all[o.UID] = &found{id: id, uid: o.UID, owners: o.OwnerReferences, leaving: o.DeletionTimestamp != nil,
				ours: w.isRecorded(id, o.UID), free: ofEveryNamespace(id, o)}
			return true
		})
		if err != nil && apply.Explain(fleet.ObjectID{Kind: res.Kind, Namespace: namespace}, err).Reason != apply.ReasonNoKind {
			return nil, false, fmt.Errorf("%s in namespace %s: %w", res.Resource, namespace, err)
		}
	}
	for _, f := range all {
		switch {
		case f.free:
		case f.ours, f.leaving, w.isGarbage(f, all, 0):
			leaving = true
		default:
			foreign = append(foreign, f.id.Kind+" "+f.id.Name)
		}
	}
	return foreign, leaving, nil
}

// isRecorded reports that this module owns the object, or another one that is on its way out.
func (w *worker) isRecorded(id fleet.ObjectID, uid types.UID) bool {
	r := w.m.inventory.Get(id)
	return r != nil && r.UID == string(uid) && (r.Module == w.ref || w.m.removing(r.Module))
}

// isGarbage reports that the object is owned, directly or not, by what is ours or what is gone already, so that the
// cluster's garbage collector takes it.
func (w *worker) isGarbage(f *found, all map[types.UID]*found, depth int) bool {
	if len(f.owners) == 0 || depth > 10 {
		return false
	}
	for _, o := range f.owners {
		owner := all[o.UID]
		switch {
		case owner == nil:
			w.mu.Lock()
			gone := w.erasedUIDs[o.UID]
			w.mu.Unlock()
			if !gone && clusterScoped(o) {
				return false
			}
		case !owner.ours && !owner.leaving && !w.isGarbage(owner, all, depth+1):
			return false
		}
	}
	return true
}

// clusterScoped names the owners that live outside of namespaces.
func clusterScoped(o metav1.OwnerReference) bool {
	return slices.Contains([]string{"Node", "Namespace", "PersistentVolume", "ClusterRole", "CustomResourceDefinition"}, o.Kind)
}

// ofEveryNamespace finds what the cluster itself puts into a namespace.
func ofEveryNamespace(id fleet.ObjectID, o *metav1.PartialObjectMetadata) bool {
	switch id.Group + "/" + id.Kind {
	case "/ServiceAccount":
		return id.Name == "default"
	case "/ConfigMap":
		return id.Name == "kube-root-ca.crt"
	case "/Secret":
		return o.Annotations["kubernetes.io/service-account.name"] == "default"
	case "/Event", "events.k8s.io/Event", "/Endpoints", "coordination.k8s.io/Lease":
		return true
	}
	return strings.HasSuffix(id.Group, "metrics.k8s.io")
}

// foreignOf lists the objects of a CRD's kind that no record of this module knows.
func (w *worker) foreignOf(ctx context.Context, r plan.Record, res apply.Resource) (foreign []string, leaving bool, err error) {
	crd, err := w.m.client.Get(ctx, res, "", r.ID.Name)
	if err != nil {
		return nil, false, err
	}
	target, ok := apply.ResourceOfCRD(crd)
	if !ok {
		return nil, false, nil
	}
	err = w.m.client.EachMeta(ctx, target, "", "", func(o *metav1.PartialObjectMetadata) bool {
		id := fleet.ObjectID{Group: target.Group, Kind: target.Kind, Namespace: o.Namespace, Name: o.Name}
		if o.DeletionTimestamp != nil || w.isRecorded(id, o.UID) {
			leaving = true
			return true
		}
		foreign = append(foreign, id.Path())
		return len(foreign) <= maxNamed*20
	})
	if err != nil && apply.Explain(r.ID, err).Reason == apply.ReasonNoKind {
		return nil, false, nil
	}
	return foreign, leaving, err
}
