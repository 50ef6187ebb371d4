package control

import (
	"context"
	"errors"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/feed"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/rpc"
	"towline.dev/towline/pkg/tracing"
)

// traceRollouts sends the spans of rollouts and their stages as these end, whoever ends them. What ends while no hub leads has none.
func (c *Controller) traceRollouts(ctx context.Context) {
	changes := c.o.Store.Feed(store.RolloutPrefix)
	for ctx.Err() == nil {
		page, err := changes.Now()
		if err == nil {
			err = changes.Follow(ctx, page.Revision, func(p feed.Page[store.Change]) error {
				return guard.Run(func() error {
					p.Each(func(_ int64, x store.Change) bool {
						c.traceRollout(x)
						return true
					})
					return nil
				})
			})
		}
		if !errors.Is(err, feed.ErrTooOld) { // the store is closed, or there is a bug, for which nothing stops but the spans
			if err != nil && ctx.Err() == nil {
				c.o.Log.Warn("spans of rollouts are not sent any more", "error", err)
			}
			return
		}
	}
}

func (c *Controller) traceRollout(x store.Change) {
	is, _ := x.Value.(*storev1.RolloutRecord)
	was, _ := x.Was.(*storev1.RolloutRecord)
	ref, ok := store.SplitModule(x.Key)
	if !ok || is == nil || rollouts.Ended(was) && rollouts.Ended(is) {
		return
	}
	of, traced := rollouts.Trace(c.o.Tracer, ref, is)
	if !traced {
		return
	}
	for _, s := range rollouts.Spans(of, ref, was, is) {
		c.o.Tracer.Emit(s)
	}
}

// traceOf is the trace of a rollout by its number; false: it is not traced.
func (c *Controller) traceOf(ctx context.Context, ref fleet.ModuleRef, number int64) (of tracing.Trace, traced bool) {
	if c.o.Tracer == nil {
		return of, false
	}
	_ = c.view(ctx, func(r store.Reader) error { // of a store that is closed nobody is told anything
		of, traced = rollouts.Trace(c.o.Tracer, ref, rollouts.Get(r, ref, number))
		return nil
	})
	return of, traced
}

// traceTimings sends what a source took that was resolved for a rollout.
func (c *Controller) traceTimings(ctx context.Context, ref fleet.ModuleRef, number int64, timings *tracing.Timings) {
	if of, traced := c.traceOf(ctx, ref, number); traced {
		timings.Emit(c.o.Tracer, of, of.Root(), rollouts.Named(ref, number)...)
	}
}

// traceCut begins a cut. What it returns is to be called at its end.
func (c *Controller) traceCut(ctx context.Context, ref fleet.ModuleRef, number int64) func(*error) {
	if c.o.Tracer == nil {
		return func(*error) {}
	}
	began := time.Now()
	return func(err *error) {
		of, traced := c.traceOf(ctx, ref, number)
		if !traced {
			return
		}
		s := tracing.Span{Trace: of, Parent: of.Root(), Name: tracing.Cut, Start: began, End: time.Now(), Of: rollouts.Named(ref, number)}
		if *err != nil {
			s.Failed = rpc.Reason(*err)
		}
		c.o.Tracer.Emit(s)
	}
}

// traceDecision sends what a decision, which is committed, assigned, and which clusters came to an end with it.
func (c *Controller) traceDecision(run *rollouts.Run, d rollout.Decision, began time.Time) {
	of, traced := rollouts.Trace(c.o.Tracer, run.Module, run.Record)
	if !traced {
		return
	}
	now := time.Now()
	for _, a := range d.Assign {
		m, name := d.State.Record(int(a.Member)), d.State.Member(run.Plan, int(a.Member)).Cluster
		c.o.Tracer.Emit(tracing.Span{Trace: of, Parent: of.Cluster(name, m.Generation), Name: tracing.Assign, Start: began, End: now,
			Of: rollouts.Named(run.Module, run.Number, tracing.ClusterKey.String(string(name)), tracing.RevisionKey.Int64(a.Revision), tracing.GenerationKey.Int64(int64(m.Generation)))})
	}
	for _, t := range d.Moves {
		if t.Kind == rollout.OfCluster && inFlight(t.From) && !inFlight(t.To) {
			s := clusterSpan(of, run, d, t, now)
			if c.state(run.Module).spanned(run.Number, s.ID) { // it was passed over, say, and came to an end after that
				s.ID, s.Parent = tracing.NewID(), s.ID
			}
			c.o.Tracer.Emit(s)
		}
	}
	if rollouts.Ended(run.Record) {
		c.state(run.Module).forgetSpans(run.Number)
	}
}

func inFlight(state string) bool {
	return state == rollout.ClusterProgressing.String() || state == rollout.ClusterSoaking.String()
}

// clusterSpan is from the assignment to a cluster to what came of it.
func clusterSpan(of tracing.Trace, run *rollouts.Run, d rollout.Decision, t rollout.Transition, now time.Time) tracing.Span {
	m, name := d.State.Record(int(t.Member)), d.State.Member(run.Plan, int(t.Member)).Cluster
	s := tracing.Span{Trace: of, ID: of.Cluster(name, m.Generation), Parent: of.Stage(int(t.Stage)), Name: tracing.Cluster, Start: m.Started.Time(), End: now,
		Of: rollouts.Named(run.Module, run.Number, tracing.ClusterKey.String(string(name)), tracing.RevisionKey.Int64(m.Revision), tracing.GenerationKey.Int64(int64(m.Generation)),
			tracing.StateKey.String(t.To))}
	if t.To == rollout.ClusterFailed.String() || t.To == rollout.ClusterTimedOut.String() {
		s.Failed = t.Reason
		if s.Failed == "" {
			s.Failed = t.To
		}
	}
	return s
}
