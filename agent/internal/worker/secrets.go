package worker

import (
	"context"
	"errors"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// explain turns an error about an object into a failure. What the API server says of a Secret, or of what carries one, may repeat what it was
// given or has: none of the values of the desired and of the live one is let through, nor is what is hidden of any other object.
func (w *worker) explain(ctx context.Context, r apply.Resource, id fleet.ObjectID, desired *apply.Desired, hidden []string, err error) *apply.Failure {
	var known *apply.Failure
	if !errors.As(err, &known) {
		err = w.hidden(id).and(hides{values: hidden}).clean(err)
	}
	if errors.As(err, &known) || !apply.Answered(err) || r.Resource == "" {
		return apply.Explain(id, err)
	}
	var objects []map[string]any
	if desired != nil {
		object, unread := desired.Object()
		if unread != nil {
			return apply.Explain(id, apply.Withheld(err))
		}
		objects = append(objects, object)
	}
	carries := apply.HoldSecrets(objects...)
	if desired == nil { // only the live object tells; what the server says while it is busy is of no object
		carries = !apply.Explain(id, err).Unreached()
	}
	if !id.IsSecret() && !carries {
		return apply.Explain(id, err)
	}
	live, unread := w.m.client.Get(ctx, r, namespaceOf(r, id), id.Name)
	switch {
	case unread == nil:
		objects = append(objects, live)
	case apply.IsGone(unread):
	case !id.IsSecret() && desired == nil && unread.Error() == err.Error(): // what refuses to have it read says nothing of what it has
		return apply.Explain(id, err)
	default:
		return apply.Explain(id, apply.Withheld(err))
	}
	return apply.Explain(id, apply.HiddenOf(objects...).Clean(err))
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
