package rpc_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"towline.dev/towline/pkg/rpc"
)

// halfOpen dials an address from eight others until the test ends, and says nothing; who is cut comes again after a while. It
// returns when all have been there.
func halfOpen(t *testing.T, addr string, n int) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { stop(); all.Wait() })
	first := make(chan struct{}, n)
	for k := range n {
		dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+k%8))}}
		all.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				conn, err := dialer.DialContext(ctx, "tcp", addr)
				if i == 0 {
					first <- struct{}{}
				}
				if err != nil {
					continue
				}
				end := context.AfterFunc(ctx, func() { _ = conn.Close() })
				_, _ = conn.Read(make([]byte, 1))
				end()
				_ = conn.Close()
				again := time.NewTimer(5 * time.Second)
				select {
				case <-ctx.Done():
				case <-again.C:
				}
				again.Stop()
			}
		})
	}
	for range n {
		<-first
	}
}

func footprint() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// TestHalfOpenConnections: thousands of connections that say nothing, and come again when they are cut, cost little, and agents
// get in beside them. With TOWLINE_HALF_OPEN=1 there are 10,000.
func TestHalfOpenConnections(t *testing.T) {
	n := 1500
	if os.Getenv("TOWLINE_HALF_OPEN") != "" {
		n = 10_000
	}
	cert, pool := selfSigned(t)
	conf, err := rpc.ServerTLS{Certificate: func() (*tls.Certificate, error) { return &cert, nil }, ClientCAs: func() *x509.CertPool { return pool },
		Verify: func(tls.ConnectionState) error { return nil }}.Config()
	if err != nil {
		t.Fatal(err)
	}
	h := rpc.AgentHandshakes()
	opts, err := rpc.AgentServerOptions(rpc.ServerConfig{TLS: conf, Auth: tokens{}, Log: slog.New(slog.DiscardHandler), Handshakes: h})
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(opts...)
	rpc.RegisterHealth(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Serve(h.Listener(l)) }()
	t.Cleanup(s.Stop)

	before := footprint()
	halfOpen(t, l.Addr().String(), n)
	for range 20 {
		began := time.Now()
		conn, err := grpc.NewClient(l.Addr().String(), rpc.AgentDialOptions(rpc.ClientTLS{CAs: pool, Certificate: &cert}.Config())...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		cancel()
		_ = conn.Close()
		if took := time.Since(began); err != nil || took > 3*time.Second {
			t.Errorf("an agent got in after %s: %v", took, err)
		}
		if open := h.Open(); open > 512 {
			t.Fatalf("%d connections are in their handshake", open)
		}
	}
	if h.Cut() == 0 {
		t.Error("no connection was cut")
	}
	const client = 6 << 10 // a goroutine and a connection of the test's own
	if grown := int64(footprint()) - int64(before) - int64(n)*client; grown > 64<<20 {
		t.Errorf("%d half-open connections take %d MB", n, grown>>20)
	}
}

// Who has shown a certificate does not count any more, and of those without one only people do not.
func TestHandshakesAreCountedDown(t *testing.T) {
	cert, pool := selfSigned(t)
	conf, err := rpc.ServerTLS{Certificate: func() (*tls.Certificate, error) { return &cert, nil }, ClientCAs: func() *x509.CertPool { return pool },
		Verify: func(tls.ConnectionState) error { return nil }}.Config()
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		h    *rpc.Handshakes
		cert *tls.Certificate
		want int
	}{
		"an agent": {rpc.AgentHandshakes(), &cert, 0}, "a stranger to the agents' listener": {rpc.AgentHandshakes(), nil, 1}, "a person": {rpc.APIHandshakes(), nil, 0},
	} {
		opts, err := rpc.AgentServerOptions(rpc.ServerConfig{TLS: conf, Auth: tokens{}, Log: slog.New(slog.DiscardHandler), Handshakes: x.h})
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(opts...)
		rpc.RegisterHealth(s)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.Serve(x.h.Listener(l)) }()
		conn, err := grpc.NewClient(l.Addr().String(), rpc.AgentDialOptions(rpc.ClientTLS{CAs: pool, Certificate: x.cert}.Config())...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := x.h.Open(); got != x.want {
			t.Errorf("%s: %d connections are without an identity, want %d", name, got, x.want)
		}
		_ = conn.Close()
		s.Stop()
		if got := x.h.Open(); got != 0 {
			t.Errorf("%s: %d are left when all are closed", name, got)
		}
	}
}
