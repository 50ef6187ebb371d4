package rpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// revocable knows ana until she is revoked, and one agent.
type revocable struct{ revoked atomic.Bool }

func (r *revocable) Certificate(tls.ConnectionState) (rpc.Caller, error) { return agent, nil }
func (r *revocable) Bearer(string) (rpc.Caller, error) {
	if r.revoked.Load() {
		return rpc.Caller{}, fleet.Errorf(fleet.ErrDenied, "the certificate is revoked")
	}
	return admin, nil
}

// streams is a service whose handlers end when their client goes, and not before unless they heed their context.
type streams struct {
	v1.UnimplementedModuleServiceServer
	agentv1.UnimplementedAgentServiceServer
	heeds bool
	begun chan struct{}
	end   chan struct{}
}

func (s *streams) WatchModules(_ *v1.WatchModulesRequest, st grpc.ServerStreamingServer[v1.WatchModulesResponse]) error {
	s.begun <- struct{}{}
	if !s.heeds {
		<-s.end
		return nil
	}
	<-st.Context().Done()
	return st.Context().Err()
}

func (s *streams) Connect(st grpc.BidiStreamingServer[agentv1.ConnectRequest, agentv1.ConnectResponse]) error {
	s.begun <- struct{}{}
	<-st.Context().Done()
	return st.Context().Err()
}

func newStreams(t *testing.T, heeds bool) *streams {
	s := &streams{heeds: heeds, begun: make(chan struct{}, 1), end: make(chan struct{})}
	t.Cleanup(func() { close(s.end) })
	return s
}

// serve serves it to clients with the certificate that it returns.
func (s *streams) serve(t *testing.T, auth rpc.Authenticator, now func() time.Time, options func(rpc.ServerConfig) ([]grpc.ServerOption, error)) (addr string, cert tls.Certificate, pool *x509.CertPool) {
	t.Helper()
	cert, pool = selfSigned(t)
	conf, err := rpc.ServerTLS{Certificate: func() (*tls.Certificate, error) { return &cert, nil }, ClientCAs: func() *x509.CertPool { return pool },
		Verify: func(tls.ConnectionState) error { return nil }}.Config()
	if err != nil {
		t.Fatal(err)
	}
	opts, err := options(rpc.ServerConfig{TLS: conf, Auth: auth, Log: slog.New(slog.DiscardHandler), Now: now})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(opts...)
	v1.RegisterModuleServiceServer(server, s)
	agentv1.RegisterAgentServiceServer(server, s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return l.Addr().String(), cert, pool
}

func TestStreamOfAPersonEndsWithTheIdentity(t *testing.T) {
	for name, heeds := range map[string]bool{"a handler that heeds its context": true, "one that waits for its client": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, auth := newStreams(t, heeds), &revocable{}
			addr, _, pool := s.serve(t, auth, nil, rpc.APIServerOptions)
			conn, err := grpc.NewClient(addr, rpc.APIDialOptions(rpc.ClientTLS{CAs: pool}.Config())...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			ctx, cancel := context.WithTimeout(as(t, "ana"), time.Minute)
			defer cancel()
			st, err := v1.NewModuleServiceClient(conn).WatchModules(ctx, &v1.WatchModulesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			<-s.begun
			auth.revoked.Store(true)
			revoked := time.Now()
			if _, err = st.Recv(); !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "revoked") {
				t.Errorf("the watch ended with: %v", err)
			}
			if took := time.Since(revoked); took > 5*time.Second {
				t.Errorf("it ended after %s", took)
			}
		})
	}
}

func TestStreamOfAnAgentEndsWithItsCertificate(t *testing.T) {
	s := newStreams(t, true)
	var end atomic.Pointer[time.Time]
	far := time.Now().Add(time.Hour)
	end.Store(&far)
	const left = 100 * time.Millisecond
	addr, cert, pool := s.serve(t, &revocable{}, func() time.Time { return end.Load().Add(-left) }, rpc.AgentServerOptions)
	end.Store(&cert.Leaf.NotAfter)
	conn, err := grpc.NewClient(addr, rpc.AgentDialOptions(rpc.ClientTLS{CAs: pool, Certificate: &cert}.Config())...)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	st, err := agentv1.NewAgentServiceClient(conn).Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	<-s.begun
	_, err = st.Recv()
	if want := "certificate ended at " + cert.Leaf.NotAfter.UTC().Format(time.RFC3339); !errors.Is(err, fleet.ErrUnknownUser) || !strings.Contains(err.Error(), want) {
		t.Errorf("the stream ended with: %v; want %s", err, want)
	}
}
