package sim

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/rest"

	"towline.dev/towline/agent"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/tracing"
)

// collector takes spans as a real one does.
type collector struct {
	collectorv1.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*tracev1.Span
	raw   bytes.Buffer
	news  chan struct{}
}

// Export is called by the exporters.
func (c *collector) Export(_ context.Context, r *collectorv1.ExportTraceServiceRequest) (*collectorv1.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text, err := proto.Marshal(r)
	if err != nil {
		return nil, err
	}
	c.raw.Write(text)
	for _, x := range r.GetResourceSpans() {
		for _, y := range x.GetScopeSpans() {
			c.spans = append(c.spans, y.GetSpans()...)
		}
	}
	select {
	case c.news <- struct{}{}:
	default:
	}
	return &collectorv1.ExportTraceServiceResponse{}, nil
}

// of are the spans of a module.
func (c *collector) of(module string) (out []*tracev1.Span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if attributeOf(s, string(tracing.ModuleKey)) == module {
			out = append(out, s)
		}
	}
	return out
}

func attributeOf(s *tracev1.Span, key string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == key {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// until waits until a module has spans of all these names, failed or not as is asked, and returns all that it has.
func (c *collector) until(t *testing.T, ctx context.Context, module string, failed bool, names ...string) []*tracev1.Span {
	t.Helper()
	for {
		spans := c.of(module)
		missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
			return slices.ContainsFunc(spans, func(s *tracev1.Span) bool { return s.GetName() == n && (s.GetStatus().GetMessage() != "") == failed })
		})
		if len(missing) == 0 {
			return spans
		}
		select {
		case <-c.news:
		case <-ctx.Done():
			t.Fatalf("no spans %v of %s; there are %v", missing, module, describeSpans(spans))
		}
	}
}

func describeSpans(spans []*tracev1.Span) (out []string) {
	for _, s := range spans {
		out = append(out, s.GetName()+" "+s.GetStatus().GetMessage())
	}
	return out
}

// tracedFleet is a hub and the agent of one cluster, whose spans come to a collector.
func tracedFleet(t *testing.T, ctx context.Context, server *Server) (*collector, *client.Client) {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // milliseconds
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		return l
	}
	dir, state := t.TempDir(), t.TempDir() // they go when what writes into them has ended
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	c := &collector{news: make(chan struct{}, 1)}
	at, served := listen(), grpc.NewServer()
	collectorv1.RegisterTraceServiceServer(served, c)
	collected := make(chan error, 1)
	go func() { collected <- served.Serve(at) }()
	t.Cleanup(func() {
		cancel()
		all.Wait()
		served.Stop()
		<-collected
	})
	to := tracing.Options{Endpoint: "http://" + at.Addr().String(), Sample: 1}
	agents, people := listen(), listen()
	h, err := hub.New(ctx, hub.Options{DataDir: dir, Listen: agents, API: people, Memory: true, Grace: time.Millisecond, Tracing: to})
	must(t, err)
	all.Go(func() {
		if err := h.Run(ctx); err != nil {
			t.Errorf("hub: %v", err)
		}
	})
	who, err := client.Dial(ctx, client.Options{Config: filepath.Join(dir, hub.AdminFile)})
	must(t, err)
	t.Cleanup(func() { _ = who.Close() })
	got, err := who.Clusters.JoinCluster(ctx, &towlinev1.JoinClusterRequest{Name: "east"})
	must(t, err)
	a, err := agent.New(agent.Options{Hubs: []string{agents.Addr().String()}, JoinToken: got.GetToken(), StateDir: state,
		Config: &rest.Config{Host: "http://east", Transport: refusing{server}}, Tracing: to})
	must(t, err)
	all.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Errorf("agent: %v", err)
		}
	})
	return c, who
}

// refusing is an API server in memory that finds every object wrong whose name has "wrong" in it.
type refusing struct{ *Server }

// RoundTrip is how the agent reaches it.
func (s refusing) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	if changes(r) && strings.Contains(r.URL.Path, "wrong") {
		return respond(r, http.StatusUnprocessableEntity, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Invalid", "code": 422,
			"message": "canary-message is not valid"})
	}
	return s.Serve(r, body, 1)
}

// tracedFiles have a Secret and a binding, of which nothing may be told.
const tracedFiles = `
apiVersion: v1
kind: Secret
metadata: {name: %[1]s-secret}
stringData: {canary-key: canary-value, token: "${TOKEN}"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s-config}
data: {canary-data: canary-text}
`

// callersSpan is that of the program that puts.
const callersTrace, callersSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

func putTraced(t *testing.T, ctx context.Context, who *client.Client, name string) {
	t.Helper()
	value := "canary-binding"
	m := &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: name}, Spec: &towlinev1.ModuleSpec{Namespace: "default",
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"all.yaml": fmt.Sprintf(tracedFiles, name)}}},
		Bindings:  []*towlinev1.Binding{{Name: "TOKEN", Value: &value}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}
	ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", "00-"+callersTrace+"-"+callersSpan+"-01")
	_, err := who.Modules.PutModule(ctx, &towlinev1.PutModuleRequest{Module: m, Reason: "canary-reason"})
	must(t, err)
}

// parentOf is of which span each is a part.
var parentOf = map[string]string{tracing.Rollout: "", tracing.Put: tracing.Rollout, tracing.Fetch: tracing.Put, tracing.Render: tracing.Put, tracing.Cut: tracing.Rollout,
	tracing.Stage: tracing.Rollout, tracing.Cluster: tracing.Stage, tracing.Assign: tracing.Cluster, tracing.Send: tracing.Cluster, tracing.Report: tracing.Cluster,
	tracing.Receive: tracing.Cluster, tracing.Apply: tracing.Cluster, tracing.Ready: tracing.Cluster, tracing.Load: tracing.Apply, tracing.Wave: tracing.Apply, tracing.Object: tracing.Wave}

// From a put to its objects, hub and agent send the spans of one trace, each a part of another one; what fails is told by its code, and
// nothing of what is rolled out is in them.
func TestTraces(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, who := tracedFleet(t, ctx, NewServer("east"))

	putTraced(t, ctx, who, "shop")
	spans := c.until(t, ctx, "default/shop", false, slices.Sorted(maps.Keys(parentOf))...)
	byID := map[string]*tracev1.Span{}
	for _, s := range spans {
		if byID[string(s.GetSpanId())] != nil {
			t.Errorf("two spans %s have one id", s.GetName())
		}
		byID[string(s.GetSpanId())] = s
	}
	for _, s := range spans {
		if !bytes.Equal(s.GetTraceId(), spans[0].GetTraceId()) {
			t.Errorf("%s is in a trace of its own", s.GetName())
		}
		if parent := byID[string(s.GetParentSpanId())]; parent.GetName() != parentOf[s.GetName()] {
			t.Errorf("%s is a part of %q, want %q", s.GetName(), parent.GetName(), parentOf[s.GetName()])
		}
		if s.GetStatus().GetCode() != tracev1.Status_STATUS_CODE_UNSET {
			t.Errorf("%s: status %v, though all went well", s.GetName(), s.GetStatus())
		}
		if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
			t.Errorf("%s ends before it begins", s.GetName())
		}
		if s.GetName() == tracing.Put && (len(s.GetLinks()) != 1 || hex.EncodeToString(s.GetLinks()[0].GetTraceId()) != callersTrace || hex.EncodeToString(s.GetLinks()[0].GetSpanId()) != callersSpan) {
			t.Errorf("the put is not linked to its caller's span: %v", s.GetLinks())
		}
	}

	putTraced(t, ctx, who, "wrong")
	for _, s := range c.until(t, ctx, "default/wrong", true, tracing.Object, tracing.Apply, tracing.Report, tracing.Cluster) {
		if bytes.Equal(s.GetTraceId(), spans[0].GetTraceId()) {
			t.Errorf("%s of another rollout is in the same trace", s.GetName())
		}
		if m := s.GetStatus().GetMessage(); m != "" && m != "Invalid" {
			t.Errorf("%s has failed with %q, want the code of the API server", s.GetName(), m)
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if i := bytes.Index(c.raw.Bytes(), []byte("canary")); i >= 0 {
		t.Errorf("a span tells what nobody is to know: %q", c.raw.Bytes()[max(i-40, 0):min(i+40, c.raw.Len())])
	}
}
