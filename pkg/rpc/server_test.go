package rpc_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// modules is a service that fails in every way.
type modules struct {
	v1.UnimplementedModuleServiceServer
	put func(context.Context) error
}

func (m *modules) PutModule(ctx context.Context, _ *v1.PutModuleRequest) (*v1.PutModuleResponse, error) {
	return &v1.PutModuleResponse{}, m.put(ctx)
}

func (m *modules) WatchModules(_ *v1.WatchModulesRequest, st grpc.ServerStreamingServer[v1.WatchModulesResponse]) error {
	return m.put(st.Context())
}

// tokens knows two users by their names.
type tokens struct{}

func (tokens) Certificate(tls.ConnectionState) (rpc.Caller, error) { return agent, nil }
func (tokens) Bearer(t string) (rpc.Caller, error) {
	switch t {
	case "ana":
		return admin, nil
	case "vic":
		return viewer, nil
	}
	return rpc.Caller{}, fleet.Errorf(fleet.ErrUnknownUser, "the bearer token is not known")
}

type world struct {
	conn    *grpc.ClientConn
	service *modules
	logs    lockedBuffer
	mu      sync.Mutex
	audit   []rpc.AuditEntry
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "x"}, DNSNames: []string{rpc.ServerName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, pool
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{service: &modules{put: func(context.Context) error { return nil }}}
	cert, pool := selfSigned(t)
	server, err := rpc.ServerTLS{Certificate: func() (*tls.Certificate, error) { return &cert, nil }, ClientCAs: func() *x509.CertPool { return pool },
		Verify: func(tls.ConnectionState) error { return nil }}.Config()
	if err != nil {
		t.Fatal(err)
	}
	opts, err := rpc.APIServerOptions(rpc.ServerConfig{TLS: server, Auth: tokens{}, Log: slog.New(slog.NewTextHandler(&w.logs, nil)),
		Audit: func(_ context.Context, e rpc.AuditEntry) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.audit = append(w.audit, e)
		}})
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	v1.RegisterModuleServiceServer(s, w.service)
	rpc.RegisterHealth(s)
	rpc.RegisterReflection(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	w.conn, err = grpc.NewClient(l.Addr().String(), rpc.APIDialOptions(rpc.ClientTLS{CAs: pool}.Config())...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close() })
	return w
}

func as(t *testing.T, token string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

var request = &v1.PutModuleRequest{Reason: "shop 1.5.0", Module: &v1.Module{Metadata: &v1.Metadata{Project: "web", Name: "shop"}}}

func TestCallsNeedAnIdentityAndARole(t *testing.T) {
	w := newWorld(t)
	client := v1.NewModuleServiceClient(w.conn)
	for token, want := range map[string]error{"": fleet.ErrUnknownUser, "eve": fleet.ErrUnknownUser, "vic": fleet.ErrDenied, "ana": nil} {
		if _, err := client.PutModule(as(t, token), request); !errors.Is(err, want) {
			t.Errorf("as %q: got %v, want %v", token, err, want)
		}
		st, err := client.WatchModules(as(t, token), &v1.WatchModulesRequest{})
		if err == nil {
			_, err = st.Recv()
		}
		if known := token == "vic" || token == "ana"; errors.Is(err, fleet.ErrUnknownUser) == known {
			t.Errorf("watch as %q: got %v", token, err)
		}
	}
}

func TestReflectionIsForUsersAndHealthForAll(t *testing.T) {
	w := newWorld(t)
	if _, err := grpc_health_v1.NewHealthClient(w.conn).Check(as(t, ""), &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("health: %v", err)
	}
	for token, want := range map[string]error{"": fleet.ErrUnknownUser, "vic": nil} {
		st, err := grpc_reflection_v1.NewServerReflectionClient(w.conn).ServerReflectionInfo(as(t, token))
		if err != nil {
			t.Fatal(err)
		}
		_ = st.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
		if _, err = st.Recv(); !errors.Is(err, want) {
			t.Errorf("reflection as %q: got %v, want %v", token, err, want)
		}
	}
}

func TestWritesAreRecorded(t *testing.T) {
	w := newWorld(t)
	client := v1.NewModuleServiceClient(w.conn)
	_, _ = client.PutModule(as(t, "ana"), request)
	_, _ = client.PutModule(as(t, "vic"), request)
	w.service.put = func(context.Context) error { panic("a secret detail") }
	_, _ = client.PutModule(as(t, "ana"), request)
	for _, token := range []string{"ana", "vic"} { // of a stream what it begins with, unless it is refused before
		st, err := client.DiffModule(as(t, token), &v1.DiffModuleRequest{Module: request.GetModule()})
		if err == nil {
			_, err = st.Recv()
		}
		if err == nil {
			t.Error("it has an answer")
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []string
	for _, e := range w.audit {
		got = append(got, strings.Join([]string{e.Caller.Name, e.Subject, e.Reason, e.Result}, "|"))
	}
	want := "ana|web/shop|shop 1.5.0|OK vic|web/shop|shop 1.5.0|PermissionDenied ana|web/shop|shop 1.5.0|Internal ana|web/shop||Unimplemented vic|||PermissionDenied"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

func TestAPanicStopsOneCallOnly(t *testing.T) {
	w := newWorld(t)
	client := v1.NewModuleServiceClient(w.conn)
	w.service.put = func(context.Context) error { panic("a secret detail") }
	_, err := client.PutModule(as(t, "ana"), request)
	if err == nil || strings.Contains(err.Error(), "secret detail") || !strings.Contains(err.Error(), "id ") {
		t.Fatalf("got %v", err)
	}
	id := err.Error()[len(err.Error())-8:]
	if !strings.Contains(w.logs.String(), id) || !strings.Contains(w.logs.String(), "secret detail") {
		t.Errorf("the log does not explain %s: %s", id, w.logs.String())
	}
	st, err := client.WatchModules(as(t, "ana"), &v1.WatchModulesRequest{})
	if err == nil {
		_, err = st.Recv()
	}
	if err == nil || strings.Contains(err.Error(), "secret detail") {
		t.Errorf("stream: got %v", err)
	}
	w.service.put = func(context.Context) error { return nil }
	if _, err := client.PutModule(as(t, "ana"), request); err != nil {
		t.Errorf("the call after it: %v", err)
	}
}

func TestErrorsAndDeadlinesReachTheClient(t *testing.T) {
	w := newWorld(t)
	client := v1.NewModuleServiceClient(w.conn)
	var deadline time.Time
	w.service.put = func(ctx context.Context) error {
		deadline, _ = ctx.Deadline()
		return fleet.Invalid("spec.source", "is required")
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "bearer ana")
	_, err := client.PutModule(ctx, request)
	var fe *fleet.FieldError
	if !errors.As(err, &fe) || fe.Path != "spec.source" || err.Error() != "spec.source: is required" {
		t.Errorf("got %v", err)
	}
	if left := time.Until(deadline); left <= 0 || left > time.Minute {
		t.Errorf("a call without a deadline may take %s", left)
	}
}

// What this hub does not know it does not take, wherever in a request it stands: it would be dropped without a word.
func TestFieldsThatTheHubDoesNotKnowAreRefused(t *testing.T) {
	w := newWorld(t)
	stray := protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 1)
	odd := func(m proto.Message) { m.ProtoReflect().SetUnknown(stray) }
	for path, spoil := range map[string]func(*v1.PutModuleRequest){
		"#900":                         func(r *v1.PutModuleRequest) { odd(r) },
		"module.spec.#900":             func(r *v1.PutModuleRequest) { odd(r.GetModule().GetSpec()) },
		"module.spec.policies[1].#900": func(r *v1.PutModuleRequest) { odd(r.GetModule().GetSpec().GetPolicies()[1]) },
	} {
		req := &v1.PutModuleRequest{Module: &v1.Module{Spec: &v1.ModuleSpec{Policies: []*v1.Policy{{}, {}}}}}
		spoil(req)
		_, err := v1.NewModuleServiceClient(w.conn).PutModule(as(t, "ana"), req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), path+": ") {
			t.Errorf("%s: %v", path, err)
		}
	}
	watch := &v1.WatchModulesRequest{}
	odd(watch)
	st, err := v1.NewModuleServiceClient(w.conn).WatchModules(as(t, "ana"), watch)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a watch: %v", err)
	}
}
