package tracing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"towline.dev/towline/pkg/fleet"
)

// Names of spans. docs/operations.md says what each is.
const (
	Rollout  = "rollout"
	Put      = "put"
	Fetch    = "fetch"
	Render   = "render"
	Cut      = "cut"
	Stage    = "stage"
	Cluster  = "cluster"
	Assign   = "assign"
	Send     = "send"
	Report   = "report"
	Rollback = "rollback"
	Receive  = "receive"
	Apply    = "apply"
	Load     = "load"
	Wave     = "wave"
	Object   = "object"
	Ready    = "ready"
)

// Attributes of spans. Their values are names, numbers and codes.
const (
	ModuleKey     = attribute.Key("towline.module")
	RolloutKey    = attribute.Key("towline.rollout")
	RevisionKey   = attribute.Key("towline.revision")
	GenerationKey = attribute.Key("towline.generation")
	ClusterKey    = attribute.Key("towline.cluster")
	StageKey      = attribute.Key("towline.stage")
	StateKey      = attribute.Key("towline.state")
	ReasonKey     = attribute.Key("towline.reason")
	ResultKey     = attribute.Key("towline.result")
	WaveKey       = attribute.Key("towline.wave")
	ObjectsKey    = attribute.Key("towline.objects")
	SpanlessKey   = attribute.Key("towline.objects.spanless")
	GroupKey      = attribute.Key("towline.object.group")
	KindKey       = attribute.Key("towline.object.kind")
	NamespaceKey  = attribute.Key("towline.object.namespace")
	NameKey       = attribute.Key("towline.object.name")
	VerbKey       = attribute.Key("towline.verb")
)

// ID names a span in its trace; the zero ID is none.
type ID = trace.SpanID

// Trace is that of one rollout. Whoever knows the rollout knows it: several hubs, and one that was started again, agree without a word.
type Trace trace.TraceID

// Of is the trace of a rollout. The number alone may be that of another one, of a module of the name that was deleted.
func (t *Tracer) Of(rollout fleet.RolloutID, created time.Time) Trace {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d\x00%d", t.hub, rollout.Module, rollout.Number, created.UnixNano()))
	return Trace(sum[:16])
}

// Root is the span of the rollout itself.
func (t Trace) Root() ID { return t.id(Rollout, "", 0) }

// Stage is the span of a stage, by its index.
func (t Trace) Stage(n int) ID { return t.id(Stage, "", uint64(n)) }

// Cluster is the span of what was assigned to a cluster with a generation.
func (t Trace) Cluster(c fleet.ClusterName, generation uint64) ID {
	return t.id(Cluster, string(c), generation)
}

func (t Trace) id(name, of string, n uint64) ID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d", t[:], name, of, n))
	return ID(sum[:8])
}

// NewID is one that no other span has.
func NewID() (id ID) {
	for !id.IsValid() {
		binary.LittleEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// Span is one that is over.
type Span struct {
	Trace      Trace
	ID, Parent ID // ID: none needs to be known; Parent: it is the root
	Name       string
	Start, End time.Time
	// Failed is the code of why it failed; empty: it did not.
	Failed string
	Of     []attribute.KeyValue
	// Caller is the span of the program that asked for it, in a trace of its own.
	Caller trace.SpanContext
}

// Samples reports that spans of the trace are sent. Ask it before a Span is put together.
func (t *Tracer) Samples(of Trace) bool {
	return t != nil && t.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: context.Background(), TraceID: trace.TraceID(of)}).Decision == sdktrace.RecordAndSample
}

// Emit sends a span of a trace that is sampled. It never waits.
func (t *Tracer) Emit(s Span) {
	if t != nil {
		t.emit(s)
	}
}

func (t *Tracer) emit(s Span) {
	if !s.ID.IsValid() {
		s.ID = NewID()
	}
	ctx := context.WithValue(context.Background(), givenKey{}, &s)
	if s.Parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID(s.Trace), SpanID: s.Parent, TraceFlags: trace.FlagsSampled, Remote: true}))
	}
	options := []trace.SpanStartOption{trace.WithTimestamp(s.Start), trace.WithAttributes(s.Of...)}
	if s.Caller.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: s.Caller}))
	}
	_, span := t.tracer.Start(ctx, s.Name, options...)
	if s.Failed != "" {
		span.SetStatus(codes.Error, s.Failed)
	}
	if s.End.Before(s.Start) { // a clock was set, or is another machine's
		s.End = s.Start
	}
	span.End(trace.WithTimestamp(s.End))
}

type givenKey struct{}

// given has spans go by the ids that Emit was given.
type given struct{}

// NewIDs are those of a root.
func (given) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	s := ctx.Value(givenKey{}).(*Span)
	return trace.TraceID(s.Trace), s.ID
}

// NewSpanID is that of any other span.
func (given) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	return ctx.Value(givenKey{}).(*Span).ID
}
