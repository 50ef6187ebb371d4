package api

import (
	"context"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracing"
)

// tracePut begins a put. What it returns is to be called at its end, with the answer if it was taken: which rollout it began is known
// only then, and one that began none is in no trace.
func (a *API) tracePut(ctx context.Context) (context.Context, func(*towlinev1.PutModuleRequest, *towlinev1.PutModuleResponse)) {
	t := a.o.Tracer
	if t == nil {
		return ctx, func(*towlinev1.PutModuleRequest, *towlinev1.PutModuleResponse) {}
	}
	began := time.Now()
	within, timings := t.Collect(ctx)
	return within, func(req *towlinev1.PutModuleRequest, resp *towlinev1.PutModuleResponse) {
		id, err := fleet.ParseRolloutID(resp.GetRollout())
		if err != nil || req.GetDryRun() {
			return
		}
		ended := time.Now()
		var of tracing.Trace
		traced := false
		_ = a.o.Store.View(ctx, resp.GetRevision(), func(r store.Reader) error { // of a caller who is gone nobody needs to know
			of, traced = rollouts.Trace(t, id.Module, rollouts.Get(r, id.Module, id.Number))
			return nil
		})
		if !traced {
			return
		}
		s := tracing.Span{Trace: of, ID: tracing.NewID(), Parent: of.Root(), Name: tracing.Put, Start: began, End: ended,
			Of: rollouts.Named(id.Module, id.Number), Caller: tracing.CallerOf(ctx)}
		t.Emit(s)
		timings.Emit(t, of, s.ID, rollouts.Named(id.Module, id.Number)...)
	}
}
