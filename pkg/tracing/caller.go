package tracing

import (
	"context"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// CallerOf is the span that a call belongs to for its caller, as its traceparent says (W3C Trace Context); zero: there is none.
func CallerOf(ctx context.Context) trace.SpanContext {
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md) == 0 {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier(md)))
}

// carrier is what a call brings along.
type carrier metadata.MD

// Get is the first value of a key.
func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set is never asked of what is only read.
func (c carrier) Set(string, string) {}

// Keys are those that there are.
func (c carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for k := range c {
		keys = append(keys, k)
	}
	return keys
}
