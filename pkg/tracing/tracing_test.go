package tracing

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc/metadata"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/telemetry"
	"towline.dev/towline/pkg/telemetry/telemetrytest"
)

var shop = fleet.RolloutID{Module: fleet.ModuleRef{Project: "p", Name: "shop"}, Number: 7}

// exporter is one that a test has in its hands.
type exporter struct {
	export func(context.Context, []sdktrace.ReadOnlySpan) error
}

func (e exporter) ExportSpans(ctx context.Context, s []sdktrace.ReadOnlySpan) error {
	return e.export(ctx, s)
}
func (exporter) Shutdown(context.Context) error { return nil }

func to(sample float64, export func(context.Context, []sdktrace.ReadOnlySpan) error) *Tracer {
	return start(Options{Sample: sample}, resource.Empty(), exporter{export}, Process{Hub: "hub", Log: slog.New(slog.DiscardHandler)})
}

// Two hubs, or one before and after a restart, agree on the trace of a rollout and on its spans; another rollout has another one.
func TestTraceIsThatOfItsRollout(t *testing.T) {
	at := time.Unix(5, 6)
	none := func(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
	a, b := to(1, none), to(1, none)
	defer a.Stop()
	defer b.Stop()
	of := a.Of(shop, at)
	if of != b.Of(shop, at) || of.Cluster("east", 3) != b.Of(shop, at).Cluster("east", 3) {
		t.Error("two hubs do not agree")
	}
	next := shop
	next.Number++
	for what, other := range map[string]Trace{"the next number": a.Of(next, at), "a module that was put again": a.Of(shop, at.Add(1))} {
		if other == of {
			t.Errorf("%s has the same trace", what)
		}
	}
	ids := map[ID]bool{of.Root(): true, of.Stage(0): true, of.Stage(1): true, of.Cluster("east", 3): true, of.Cluster("east", 4): true, of.Cluster("west", 3): true}
	if len(ids) != 6 {
		t.Errorf("%d ids for 6 spans", len(ids))
	}
}

// A part of the rollouts is traced, and the same part by everyone.
func TestSample(t *testing.T) {
	none := func(context.Context, []sdktrace.ReadOnlySpan) error { return nil }
	all, half, no := to(1, none), to(.5, none), to(0, none)
	n := 0
	for i := range 1000 {
		of := all.Of(fleet.RolloutID{Module: shop.Module, Number: int64(i)}, time.Unix(0, 0))
		if !all.Samples(of) || no.Samples(of) {
			t.Fatal("all are traced with 1, and none with 0")
		}
		if half.Samples(of) {
			n++
		}
	}
	if n < 400 || n > 600 {
		t.Errorf("%d of 1000 are traced with 0.5", n)
	}
	for _, x := range []*Tracer{all, half, no} {
		x.Stop()
	}
}

// A collector that does not answer holds up nobody: what does not fit is dropped and counted, as is what it refuses.
func TestCollectorAway(t *testing.T) {
	began, release := make(chan struct{}, queueLength), make(chan struct{})
	x := to(1, func(context.Context, []sdktrace.ReadOnlySpan) error {
		began <- struct{}{}
		<-release
		return errors.New("away")
	})
	of := x.Of(shop, time.Unix(0, 0))
	for range queueLength + 100 {
		x.Emit(Span{Trace: of, Parent: of.Root(), Name: Object, Start: time.Unix(1, 0), End: time.Unix(2, 0)})
	}
	<-began
	if lost := x.box.lost.Load(); lost != 100 {
		t.Errorf("%d are lost, want the 100 that do not fit", lost)
	}
	close(release)
	x.Stop()
	text := telemetrytest.Text(t, telemetry.NewRegistry(x.Spans("towline_spans_total")))
	for _, want := range []string{`towline_spans_total{result="lost"} 8292`, `towline_spans_total{result="sent"} 0`} {
		if !strings.Contains(text, "\n"+want+"\n") {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
}

// Without an endpoint there is no Tracer, nothing runs, and nothing is allocated where work is done.
func TestOff(t *testing.T) {
	before := runtime.NumGoroutine()
	x, err := Start(t.Context(), Options{}, Process{})
	if x != nil || err != nil {
		t.Fatal(x, err)
	}
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("%d goroutines more", n-before)
	}
	var marks *Marks
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() {
		within, timings := x.Collect(ctx)
		Time(within, Fetch)(nil)
		timings.Emit(x, Trace{}, ID{})
		if x.Samples(Trace{}) {
			t.Error("traced")
		}
		marks.Take(shop.Module, 1)
		x.Emit(Span{})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	x.Stop()
	if text := telemetrytest.Text(t, telemetry.NewRegistry(x.Spans("towline_spans_total"))); !strings.Contains(text, `towline_spans_total{result="lost"} 0`) {
		t.Error(text)
	}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What is wrong with a flag is said at the start, by its name.
func TestOptions(t *testing.T) {
	good := file(t, "good", "# for the collector\nAuthorization: Bearer canary\n\nx-scope: a: b\n")
	for what, x := range map[string]struct {
		o    Options
		want string // in the error; empty: there is none
	}{
		"nothing":        {Options{}, ""},
		"TLS":            {Options{Endpoint: "https://c:4317"}, ""},
		"no scheme":      {Options{Endpoint: "c:4317"}, ""},
		"without TLS":    {Options{Endpoint: "http://c:4317", HeadersFile: good}, ""},
		"no port":        {Options{Endpoint: "https://c"}, "--otlp-endpoint"},
		"a path":         {Options{Endpoint: "https://c:4317/v1/traces"}, "--otlp-endpoint"},
		"another scheme": {Options{Endpoint: "grpc://c:4317"}, "--otlp-endpoint"},
		"a password":     {Options{Endpoint: "https://me:canary@c:4317"}, "--otlp-endpoint"},
		"no endpoint":    {Options{HeadersFile: good}, "--otlp-endpoint, which is not set"},
		"CA without TLS": {Options{Endpoint: "http://c:4317", CACert: good}, "without TLS"},
		"half a pair":    {Options{Endpoint: "https://c:4317", Cert: good}, "belong together"},
		"too much":       {Options{Endpoint: "https://c:4317", Sample: 2}, "--otlp-sample"},
	} {
		_, err := x.o.client()
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", what, err, x.want)
		}
	}
	got, err := headers(good).GetRequestMetadata(t.Context())
	if err != nil || len(got) != 2 || got["authorization"] != "Bearer canary" || got["x-scope"] != "a: b" {
		t.Errorf("%v, %v", got, err)
	}
}

// A file that cannot be used keeps nobody from starting: it is said, by its flag and without what is in it, and read anew when it is used.
func TestFilesThatAreNotThereYet(t *testing.T) {
	bad, none := file(t, "bad", "authorization: Bearer x\ncanary\n"), filepath.Join(t.TempDir(), "none")
	for want, o := range map[string]Options{
		"has no certificate":  {Endpoint: "https://127.0.0.1:1", CACert: bad},
		"--otlp-cacert":       {Endpoint: "https://127.0.0.1:1", CACert: none},
		"--otlp-cert":         {Endpoint: "https://127.0.0.1:1", Cert: bad, Key: bad},
		"line 2":              {Endpoint: "https://127.0.0.1:1", HeadersFile: bad},
		"--otlp-headers-file": {Endpoint: "http://127.0.0.1:1", HeadersFile: none},
	} {
		log := &bytes.Buffer{}
		x, err := Start(t.Context(), o, Process{Log: slog.New(slog.NewTextHandler(log, nil))})
		if x == nil || err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		x.Stop()
		if said := log.String(); !strings.Contains(said, want) || strings.Contains(said, "canary") {
			t.Errorf("%s: said is %q", want, said)
		}
	}
}

// A connection to the collector is made with what the files have then.
func TestConnectionReadsTheFiles(t *testing.T) {
	collector := httptest.NewTLSServer(nil)
	defer collector.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	c := Options{CACert: ca}.fresh()
	if _, _, err := c.Clone().ClientHandshake(t.Context(), "example.com:4317", nil); err == nil || !strings.Contains(err.Error(), "--otlp-cacert") {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: collector.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]bool{"example.com:4317": true, "other.example.org:4317": false} {
		here, there := net.Pipe()
		served := make(chan error, 1)
		go func() {
			served <- tls.Server(there, &tls.Config{Certificates: collector.TLS.Certificates, NextProtos: []string{"h2"}}).HandshakeContext(t.Context())
		}()
		if _, _, err := c.Clone().ClientHandshake(t.Context(), name, here); (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
		_ = here.Close()
		<-served
	}
}

// A mark is that of one sync, and used once.
func TestMarks(t *testing.T) {
	m := NewMarks()
	mark, ok := MarkOf(3, []byte("0123456789abcdef"), []byte("01234567"), time.Now())
	if !ok {
		t.Fatal("no mark")
	}
	m.Put(shop.Module, mark)
	if _, ok := m.Take(shop.Module, 4); ok {
		t.Error("another generation has the mark")
	}
	if got, ok := m.Take(shop.Module, 3); !ok || got != mark {
		t.Error(got, ok)
	}
	if _, ok := m.Take(shop.Module, 3); ok {
		t.Error("it was taken")
	}
	for _, x := range [][2]string{{"", "01234567"}, {"0123456789abcdef", "0123"}, {strings.Repeat("\x00", 16), "01234567"}} {
		if _, ok := MarkOf(3, []byte(x[0]), []byte(x[1]), time.Now()); ok {
			t.Errorf("%q is a mark", x)
		}
	}
}

// A caller says in which trace its call is; what is no such thing is none.
func TestCallerOf(t *testing.T) {
	for text, want := range map[string]bool{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": true, "": false, "canary": false} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", text))
		if got := CallerOf(ctx); got.IsValid() != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if CallerOf(t.Context()).IsValid() {
		t.Error("nobody called")
	}
}

// Every span and every attribute is in docs/operations.md.
func TestSpansAreListed(t *testing.T) {
	source, err := os.ReadFile("span.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Traces\n")
	section, _, _ = strings.Cut(section, "\n## ")
	names := regexp.MustCompile(`(?m)^\t[A-Z][A-Za-z]* += (?:attribute\.Key\()?"([a-z.]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(names) < 30 {
		t.Fatalf("only %d names are found", len(names))
	}
	for _, n := range names {
		if !strings.Contains(section, "`"+n[1]+"`") {
			t.Errorf("%s is not in the section Traces", n[1])
		}
	}
}
