package worker

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/plan"
)

// redefine handles that an apply was refused because the object is noted to have been written in a version that its kind is not
// defined in any more, as after an upgrade of a CustomResourceDefinition: it is noted for the version that is wanted instead.
// It reports whether the apply is to be tried again. What is not the module's stays as it is.
func (a *writer) redefine(ctx context.Context, refused error) (again bool, err error) {
	gone, is := apply.UndefinedVersion(refused)
	if !is {
		return false, nil
	}
	switch crd, err := a.abreast(ctx); {
	case err != nil:
		return false, err
	case crd != nil && apply.Defines(crd, gone):
		return true, nil // which the API server did not know yet
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if err != nil || !a.isOurs(live) {
		return false, err
	}
	if err := a.unlessAnnotated(live); err != nil {
		return false, err
	}
	patch, err := apply.Redefine(live, gone, a.resource.GroupVersion().String())
	if patch == nil && err == nil {
		return false, nil
	}
	if _, err := a.patched(ctx, live, patch, err); err != nil {
		return false, err
	}
	a.w.log.Info("object is noted for another version of its kind", "object", a.id.String(), "from", gone, "to", a.resource.GroupVersion().String())
	return true, nil
}

// isOurs reports that a live object is the module's, by its record or by itself, or that it was just decided that it is to be.
func (a *writer) isOurs(live map[string]any) bool {
	u := &unstructured.Unstructured{Object: live}
	claimant := a.w.m.claimant(a.w.ref)
	if a.record != nil {
		claimant = claimant.After(&a.record.Record)
	}
	return a.adopted || a.record != nil && a.record.State == plan.Owned && a.record.UID == string(u.GetUID()) ||
		claimant.Proven(a.liveID(), u.GetLabels(), u.GetAnnotations(), apply.ProofOf(u.GetManagedFields()))
}

// elsewhere is where the kind is served now, if that is not where it was known to be: somebody defined it anew, with another
// scope or another plural.
func (a *writer) elsewhere(ctx context.Context, f *apply.Failure) apply.Resource {
	if f.Reason != apply.ReasonNoKind || a.resource.Resource == "" {
		return apply.Resource{}
	}
	now, err := a.w.m.mapper.Resource(ctx, a.id, a.entry.Version)
	if err != nil || now == a.resource {
		return apply.Resource{}
	}
	return now
}
