package worker

import (
	"context"
	"errors"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/pkg/fleet"
)

// explain turns an error about an object into a failure, without values.
func (w *worker) explain(ctx context.Context, r apply.Resource, id fleet.ObjectID, desired *apply.Desired, hidden []string, err error) *apply.Failure {
	return apply.Explain(id, w.worded(ctx, r, id, desired, hidden, err))
}

// worded is an error about an object without values. What the API server says may repeat what it was given or has: no value of a Secret in the
// desired object or in the live one is let through, also of one that somebody else has put there, nor is what is hidden of any other object.
func (w *worker) worded(ctx context.Context, r apply.Resource, id fleet.ObjectID, desired *apply.Desired, hidden []string, err error) error {
	var known *apply.Failure
	if errors.As(err, &known) {
		return known
	}
	err = w.hidden(id).with(hidden).clean(err)
	if !apply.Answered(err) || apply.NotAllowed(err) || r.Resource == "" {
		return err
	}
	var values apply.Hidden
	if desired != nil {
		object, unread := desired.Object()
		if unread != nil {
			return apply.Withheld(err)
		}
		values = apply.HiddenOf(object)
	}
	secret := id.IsSecret() || values.Any()
	if !secret && apply.Explain(id, err).Unreached() { // what the server says while it is busy is of no object
		return err
	}
	live, unread := w.m.client.Get(ctx, r, namespaceOf(r, id), id.Name)
	switch {
	case unread == nil:
		values = values.With(apply.HiddenOf(live))
	case kube.IsGone(unread):
	case !secret && unread.Error() == err.Error(): // what refuses to have it read says nothing of what it has
		return err
	default:
		return apply.Withheld(err)
	}
	if !values.Any() {
		return err
	}
	return values.Clean(err)
}

func (a *writer) explain(ctx context.Context, err error) *apply.Failure {
	return a.w.explain(ctx, a.resource, a.id, a.desired, a.hidden, err)
}

// dropText takes keys away that the module put into a Secret as stringData, when an agent still applied that as it was,
// and that it does not list any more: the server counts them as nobody's.
func (a *writer) dropText(ctx context.Context, live map[string]any) (map[string]any, error) {
	patch, err := apply.DropOwnerless(live, a.text)
	return a.patched(ctx, live, patch, err)
}
