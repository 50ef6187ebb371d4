package tracing

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"towline.dev/towline/pkg/rpc"
)

// Timings are what was done under a context, before it is known which rollout it was for. A nil one holds nothing.
type Timings struct {
	mu   sync.Mutex
	list []Span
}

type timingsKey struct{}

// Collect has Time note what is done under the context that it returns. Without a Tracer nothing is.
func (t *Tracer) Collect(ctx context.Context) (context.Context, *Timings) {
	if t == nil {
		return ctx, nil
	}
	all := &Timings{}
	return context.WithValue(ctx, timingsKey{}, all), all
}

// maxTimings is how many pieces of work are noted: a source that is rendered for many variants is many.
const maxTimings = 64

// Time begins a piece of work. What it returns is to be called at its end.
func Time(ctx context.Context, name string) func(error) {
	all, _ := ctx.Value(timingsKey{}).(*Timings)
	if all == nil {
		return untimed
	}
	began := time.Now()
	return func(err error) {
		s := Span{Name: name, Start: began, End: time.Now()}
		if err != nil {
			s.Failed = rpc.Reason(err)
		}
		all.mu.Lock()
		defer all.mu.Unlock()
		if len(all.list) < maxTimings {
			all.list = append(all.list, s)
		}
	}
}

func untimed(error) {}

// Emit sends what was noted, as parts of a span.
func (x *Timings) Emit(t *Tracer, of Trace, parent ID, with ...attribute.KeyValue) {
	if x == nil || !t.Samples(of) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range x.list {
		s.Trace, s.Parent, s.Of = of, parent, with
		t.Emit(s)
	}
	x.list = nil
}
