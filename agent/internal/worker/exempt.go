package worker

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
)

// unchanged reports that the module lists what it listed when the record was made, but for fields that a policy leaves as they are.
func (a *writer) unchanged() bool {
	if a.record.Exempt == nil && a.exempt == nil {
		return a.record.Content == a.desired.Content
	}
	return a.record.Exempt.Same(a.desired, a.exempt)
}

// leaveExempt looks what of the live object is left as it is, and lets go of it. An object that is gone, or another one, is left to the
// write that finds that out.
func (a *writer) leaveExempt(ctx context.Context) error {
	if a.exempt == nil {
		return nil
	}
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if string((&unstructured.Unstructured{Object: live}).GetUID()) != a.record.UID {
		return nil
	}
	if live, err = a.release(ctx, live); err != nil {
		return err
	}
	a.drop = a.drop || apply.ScaledBy(live) != "" && !a.takes
	a.seen = (&unstructured.Unstructured{Object: live}).GetResourceVersion()
	a.left, err = a.desired.Leave(live, a.exempt)
	return err
}

// release has the API server note for nobody what is noted for us and a policy leaves to nobody: our next apply does not list it, and
// would take it away. Controllers write to an object that was just made, so that it may take another look.
func (a *writer) release(ctx context.Context, live map[string]any) (map[string]any, error) {
	for attempt := 0; ; attempt++ {
		patch, released, err := a.desired.Release(live, a.exempt)
		now, refused := a.patched(ctx, live, patch, err)
		if refused == nil {
			if patch != nil {
				a.released = released
			}
			return now, nil
		}
		if !apierrors.IsConflict(refused) || attempt == versionTries {
			return nil, refused
		}
		uid := (&unstructured.Unstructured{Object: live}).GetUID()
		if now, err = a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name); err != nil {
			return nil, err
		}
		if (&unstructured.Unstructured{Object: now}).GetUID() != uid {
			return nil, &apply.Failure{Reason: apply.ReasonTerminating, Transient: true, Message: a.id.String() + ": was replaced while it was written"}
		}
		if !apply.StillOurs(live, now) { // what somebody else wrote must not be noted as what we did
			return nil, refused
		}
		live = now
	}
}

// noteExempt has the record say what is left of an object that was just written.
func (a *writer) noteExempt(answer map[string]any, r *apply.Record) (err error) {
	var old *apply.Record
	if a.record != nil && a.record.UID == r.UID {
		old = a.record
	}
	if r.Exempt, err = a.w.m.inventory.Paths.Exempt(answer, a.desired, a.left, a.exempt, a.released, old); err != nil {
		return fmt.Errorf("%s: %w", a.id, err)
	}
	return nil
}
