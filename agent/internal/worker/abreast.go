package worker

import (
	"context"
	"errors"

	"towline.dev/towline/agent/internal/apply"
)

// abreast is an error unless the API server that answers knows how the object's kind is defined now. The definition is returned if there is one.
func (a *writer) abreast(ctx context.Context) (crd map[string]any, err error) {
	crd, err = a.w.m.mapper.Abreast(ctx, a.resource)
	return crd, a.about(err)
}

// about names the object in what is said of its kind.
func (a *writer) about(err error) error {
	f := (*apply.Failure)(nil)
	if !errors.As(err, &f) {
		return err
	}
	of := *f
	of.Message = a.id.String() + ": " + f.Message
	return &of
}

// judged is a failure as it is to be told: what an API server refuses by a definition that was is not wrong with the object.
func (a *writer) judged(ctx context.Context, f *apply.Failure) *apply.Failure {
	if f.Reason != apply.ReasonInvalid && f.Reason != apply.ReasonImmutable || a.resource.Resource == "" {
		return f
	}
	if behind := (*apply.Failure)(nil); errors.As(a.about(a.w.m.mapper.Knows(ctx, a.resource)), &behind) {
		return behind
	}
	return f
}
