package rpc

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
)

// refusalTime is how long a write that fails waits for what the other side said before it closed the connection. That has come already.
const refusalTime = time.Second

// refusalCreds has a client learn that its certificate is refused. In TLS 1.3 its own part of the handshake is over before the hub has looked at
// the certificate: the refusal is an alert that is read later, and the hub closes the connection behind it. gRPC gives up at the first write that
// fails for that, which says nothing of the alert.
type refusalCreds struct {
	credentials.TransportCredentials
}

// ClientHandshake has the writes of the connection fail by what its reads have heard.
func (c refusalCreds) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	if err != nil {
		return conn, info, err
	}
	return &refusable{Conn: conn, ended: make(chan struct{})}, info, nil
}

// Clone does the same.
func (c refusalCreds) Clone() credentials.TransportCredentials {
	return refusalCreds{c.TransportCredentials.Clone()}
}

// refusable is a connection that somebody reads all the time, as gRPC does.
type refusable struct {
	net.Conn
	once  sync.Once
	ended chan struct{} // closed when no more can be read, and why is set
	why   error
}

func (r *refusable) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	if err != nil {
		r.once.Do(func() {
			r.why = err
			close(r.ended)
		})
	}
	return n, err
}

// Write fails by the alert of the other side, where there was one.
func (r *refusable) Write(p []byte) (int, error) {
	n, err := r.Conn.Write(p)
	if err == nil {
		return n, nil
	}
	timer := time.NewTimer(refusalTime)
	defer timer.Stop()
	select {
	case <-r.ended:
		if alert := new(net.OpError); errors.As(r.why, &alert) && alert.Op == "remote error" {
			return n, r.why
		}
	case <-timer.C:
	}
	return n, err
}
