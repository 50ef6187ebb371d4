// Package tracing sends spans of what a rollout does to a collector, over OTLP. It owns their names and attributes, by which trace and
// span they go, and that nobody ever waits for the collector; it must not know who does what. No text of an error, of a source or of an
// object is in a span: only names, numbers and reasons that are codes.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"towline.dev/towline/pkg/version"
)

// Options say where spans go. Without Endpoint there are none.
type Options struct {
	// Endpoint is the collector's, as https://HOST:PORT, or as http://HOST:PORT without TLS.
	Endpoint string
	// CACert is a file in PEM that the collector's certificate is checked against; empty: what the system trusts. It is read again for each
	// connection, as are Cert and Key.
	CACert string
	// Cert and Key are files in PEM of the certificate that the collector is shown; empty: none.
	Cert, Key string
	// HeadersFile has what is sent along with each batch, such as a token; it is read again for each. Empty: nothing is.
	HeadersFile string
	// Sample is which part of the rollouts is traced, from 0 to 1. Only a hub decides that.
	Sample float64
}

// Flags are those of both programs.
func (o *Options) Flags(f *pflag.FlagSet) {
	f.StringVar(&o.Endpoint, "otlp-endpoint", "", "collector that gets OpenTelemetry traces of rollouts over OTLP/gRPC, such as https://collector.example.com:4317, or http://… without TLS (default: nobody does)")
	f.StringVar(&o.CACert, "otlp-cacert", "", "file in PEM that the certificate of --otlp-endpoint is checked against (default: what the system trusts); it is read again for each connection")
	f.StringVar(&o.Cert, "otlp-cert", "", "file in PEM of the certificate that is shown to --otlp-endpoint; it is read again for each connection")
	f.StringVar(&o.Key, "otlp-key", "", "file in PEM of its key")
	f.StringVar(&o.HeadersFile, "otlp-headers-file", "", "file of headers for --otlp-endpoint, NAME: VALUE a line, such as authorization: Bearer …; it is read again for each batch")
}

// SampleFlag is that of the hub, which decides for its agents too.
func (o *Options) SampleFlag(f *pflag.FlagSet) {
	f.Float64Var(&o.Sample, "otlp-sample", 1, "which part of the rollouts is traced with --otlp-endpoint, from 0 to 1; agents trace what their hub does")
}

// Process says whose spans they are.
type Process struct {
	Service, Instance string
	Hub               string // of a hub: its id
	Log               *slog.Logger
}

// Tracer sends spans. A nil one does nothing, and costs nothing.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	sampler  sdktrace.Sampler
	hub      string
	box      *box
}

// queueLength is how many spans wait for the collector at most: with those of a rollout to a few thousand clusters, some megabytes.
const queueLength = 8192

// Start has spans sent. It does not wait for the collector, which may come later. Without an endpoint the Tracer is nil.
func Start(ctx context.Context, o Options, p Process) (*Tracer, error) {
	client, err := o.client()
	if err != nil || client == nil {
		return nil, err
	}
	if err := o.readable(); err != nil {
		p.Log.Error("spans are lost until this is mended; all else goes on", "error", err)
	}
	// What OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say comes last, so that it holds.
	of, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(attribute.String("service.name", p.Service),
		attribute.String("service.version", version.Version), attribute.String("service.instance.id", p.Instance)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	exporter, err := otlptrace.New(ctx, otlptracegrpc.NewClient(client...))
	if err != nil {
		return nil, fmt.Errorf("--otlp-endpoint %s: %w", o.Endpoint, err)
	}
	return start(o, of, exporter, p), nil
}

// start sends to an exporter.
func start(o Options, of *resource.Resource, exporter sdktrace.SpanExporter, p Process) *Tracer {
	b := &box{log: p.Log}
	b.SpanProcessor = sdktrace.NewBatchSpanProcessor(&counted{SpanExporter: exporter, box: b}, sdktrace.WithMaxQueueSize(queueLength))
	t := &Tracer{sampler: sdktrace.TraceIDRatioBased(o.Sample), hub: p.Hub, box: b}
	// A span is begun only of a trace that is sampled.
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(of), sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithIDGenerator(given{}), sdktrace.WithSpanProcessor(b))
	t.tracer = t.provider.Tracer("towline.dev/towline", trace.WithInstrumentationVersion(version.Version))
	return t
}

// stopPatience is how long a stop waits for what is not sent yet.
const stopPatience = 2 * time.Second

// Stop sends what is left, if the collector takes it soon.
func (t *Tracer) Stop() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		t.box.log.Warn("the last spans were not sent", "error", err)
	}
}

// Spans counts what became of spans, under a name. It is there without a Tracer, too.
func (t *Tracer) Spans(name string) prometheus.Collector {
	return spanCounts{prometheus.NewDesc(name, "Spans of traces, by what became of them: sent, or lost as the collector was away or too slow.", []string{"result"}, nil), t}
}

type spanCounts struct {
	desc *prometheus.Desc
	t    *Tracer
}

// Describe is for a registry.
func (c spanCounts) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect is for a registry.
func (c spanCounts) Collect(ch chan<- prometheus.Metric) {
	var sent, lost int64
	if c.t != nil {
		sent, lost = c.t.box.sent.Load(), c.t.box.lost.Load()
	}
	ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(sent), "sent")
	ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(lost), "lost")
}

// box takes spans that ended and counts them. What does not fit is dropped at once.
type box struct {
	sdktrace.SpanProcessor // what fits
	log                    *slog.Logger
	waiting                atomic.Int64 // ended, and not sent or lost yet
	sent, lost             atomic.Int64
	failing                atomic.Bool
}

// OnEnd never waits.
func (b *box) OnEnd(s sdktrace.ReadOnlySpan) {
	if b.waiting.Add(1) > queueLength {
		b.waiting.Add(-1)
		b.lost.Add(1)
		return
	}
	b.SpanProcessor.OnEnd(s)
}

// counted is an exporter whose failures are counted, and said once.
type counted struct {
	sdktrace.SpanExporter
	box *box
}

// ExportSpans fails for nobody: there is no one to do anything about it.
func (c *counted) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	n, b := int64(len(spans)), c.box
	b.waiting.Add(-n)
	switch {
	case err == nil:
		b.sent.Add(n)
		if b.failing.Swap(false) {
			b.log.Info("spans are sent again")
		}
	default:
		b.lost.Add(n)
		if !b.failing.Swap(true) {
			b.log.Warn("spans are not sent, and lost until the collector takes them", "error", err)
		}
	}
	return nil
}
