package registry

import "context"

// Forget is what Run does from time to time.
func (r *Registry) Forget(ctx context.Context) error { r.forget(ctx); return ctx.Err() }
