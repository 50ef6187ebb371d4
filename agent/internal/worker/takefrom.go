package worker

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// mayTake is why an object is not taken from who has it; nil: it is. A policy that names tools takes nothing that one of them still has.
func (a *writer) mayTake(ctx context.Context, adoption plan.Adoption) error {
	if err := a.mayForce(); err != nil {
		return err
	}
	for _, o := range adoption.Owners {
		lives, err := a.lives(ctx, o)
		if err != nil {
			return &apply.Failure{Reason: apply.ReasonConflict, Kind: fleet.ErrExists, Transient: true, By: o.String(),
				Message: fmt.Sprintf("%s: may belong to %s still, which cannot be looked for: %v", a.id, o, apply.Cause(err))}
		}
		if lives {
			still := adoption.StillHas(o)
			return a.refused(still, still.Whose)
		}
	}
	return nil
}

// lives reports that what a tool has objects by is in the cluster. What is in another one cannot be seen.
func (a *writer) lives(ctx context.Context, o plan.ToolOwner) (bool, error) {
	if o.Kind == plan.ToolRelease {
		return a.deployed(ctx, o)
	}
	res, gone, err := a.w.m.mapper.Served(ctx, fleet.ObjectID{Group: o.Group, Kind: o.Kind}, o.Version)
	if gone || err != nil {
		return false, err
	}
	if o.Namespace != "" {
		_, err := a.w.m.client.GetMeta(ctx, res, o.Namespace, o.Name)
		if apply.IsGone(err) {
			return false, nil
		}
		return err == nil, err
	}
	return a.anyOf(ctx, res, "", "", func(m *metav1.PartialObjectMetadata) bool { return m.Name == o.Name })
}

// deployed reports that a release of Helm is deployed, which it notes in a Secret or, if it was told to, in a ConfigMap.
func (a *writer) deployed(ctx context.Context, o plan.ToolOwner) (bool, error) {
	labels := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"owner": "helm", "name": o.Name, "status": "deployed"}})
	for _, kind := range []string{"Secret", "ConfigMap"} {
		res, err := a.w.m.mapper.Resource(ctx, fleet.ObjectID{Kind: kind}, "v1")
		if err != nil {
			return false, err
		}
		there, err := a.anyOf(ctx, res, o.Namespace, labels, func(*metav1.PartialObjectMetadata) bool { return true })
		if there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// anyOf reports that there is an object as asked for.
func (a *writer) anyOf(ctx context.Context, res apply.Resource, namespace, selector string, is func(*metav1.PartialObjectMetadata) bool) (found bool, err error) {
	err = a.w.m.client.EachMeta(ctx, res, namespace, selector, func(m *metav1.PartialObjectMetadata) bool {
		found = found || is(m)
		return !found
	})
	return found, err
}
