package rpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// late is a connection whose first write behind the handshake comes when the other side has closed it, as where that is quicker than this one.
type late struct {
	net.Conn
	writes atomic.Int32
	closed <-chan struct{}
}

func (l *late) Write(p []byte) (int, error) {
	if l.writes.Add(1) <= 2 { // the hello, and the certificate with what ends the handshake
		return l.Conn.Write(p)
	}
	select {
	case <-l.closed:
	case <-time.After(10 * time.Second):
	}
	return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}
}

// Who is refused for the certificate is told so, also when the hub has closed the connection before anything was sent over it: an agent goes on
// correcting drift for a hub that cannot be reached, and not for one that refuses it.
func TestRefusalIsHeardBehindAWriteThatFails(t *testing.T) {
	cert, pool := selfSigned(t)
	for name, tc := range map[string]struct {
		refuse error
		want   error
	}{
		"refused": {errors.New("revoked"), fleet.ErrDenied},
		"closed":  {nil, fleet.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = tls.Server(c, &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{cert},
					VerifyConnection: func(tls.ConnectionState) error { return tc.refuse }}).Handshake()
				_ = c.Close()
			}()
			conn, err := grpc.NewClient("passthrough:///hub", append(rpc.APIDialOptions(rpc.ClientTLS{CAs: pool}.Config()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					c, err := new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
					if err != nil {
						return nil, err
					}
					return &late{Conn: c, closed: closed}, nil
				}))...)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
			if !errors.Is(err, tc.want) || strings.Contains(err.Error(), "handshake failed") {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}
