package worker

import (
	"context"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
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
		return a.hasRelease(ctx, o)
	}
	res, gone, err := a.w.m.mapper.Served(ctx, fleet.ObjectID{Group: o.Group, Kind: o.Kind}, o.Version)
	if gone || err != nil {
		return false, err
	}
	if o.Namespace != "" {
		_, err := a.w.m.client.GetMeta(ctx, res, o.Namespace, o.Name)
		if kube.IsGone(err) {
			return false, nil
		}
		return err == nil, err
	}
	return a.anyOf(ctx, res, "", "", func(m *metav1.PartialObjectMetadata) bool { return m.Name == o.Name })
}

// hasRelease reports that Helm has a release, which it notes in Secrets or, if it was told to, in ConfigMaps, one for each revision. Whatever the
// newest says but that it was uninstalled, as that it failed or is under way: the next upgrade writes the objects again, and an uninstall
// deletes them by their names.
func (a *writer) hasRelease(ctx context.Context, o plan.ToolOwner) (bool, error) {
	labels := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: map[string]string{"owner": "helm", "name": o.Name}})
	for _, kind := range []string{"Secret", "ConfigMap"} {
		res, err := a.w.m.mapper.Resource(ctx, fleet.ObjectID{Kind: kind}, "v1")
		if err != nil {
			return false, err
		}
		newest, status := -1, ""
		if err := a.w.m.client.EachMeta(ctx, res, o.Namespace, labels, func(m *metav1.PartialObjectMetadata) bool {
			revision, _ := strconv.Atoi(m.Labels["version"]) // 0: it does not say
			if revision >= newest {
				newest, status = revision, m.Labels["status"]
			}
			return true
		}); err != nil {
			return false, err
		}
		if newest >= 0 && status != "uninstalled" {
			return true, nil
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
