package rpc

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"towline.dev/towline/pkg/guard"
)

const (
	defaultDeadline = time.Minute      // of a unary call that brings none
	maxDeadline     = 10 * time.Minute // of any unary call
)

// interceptors hold what every call goes through: recovery and translation of errors, then identity, then permission,
// then the record of writes, then a look for fields that nobody here knows, then the deadline.
type interceptors struct {
	auth  Authenticator
	audit func(context.Context, AuditEntry)
	log   *slog.Logger
	now   func() time.Time
}

func (i *interceptors) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (resp any, err error) {
	defer func() { err = i.finish(ctx, info.FullMethod, err) }()
	ctx, caller, known, err := i.admit(ctx, info.FullMethod)
	ctx = context.WithValue(ctx, detailKey{}, new(string))
	if rules[info.FullMethod].write && known {
		defer func() { i.record(ctx, caller, info.FullMethod, req, resp, err) }()
	}
	if err != nil {
		return nil, err
	}
	if err := refuseUnknown(info.FullMethod, req); err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	defer func() { err = guard.Caught(recover(), err) }()
	return h(ctx, req)
}

func (i *interceptors) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	ctx, caller, known, err := i.admit(ss.Context(), info.FullMethod)
	defer func() { err = i.finish(ctx, info.FullMethod, err) }()
	open, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	st := &serverStream{ServerStream: ss, ctx: open, method: info.FullMethod, records: rules[info.FullMethod].write}
	if st.records && known {
		defer func() { i.record(ctx, caller, info.FullMethod, st.begun(), nil, err) }()
	}
	if err != nil {
		return err
	}
	return i.entitled(open, cut, caller, info.FullMethod, func() error {
		return guard.Run(func() error { return h(srv, st) })
	})
}

type serverStream struct {
	grpc.ServerStream
	ctx    context.Context
	method string
	// records says that first, the first message that comes, is kept to be recorded.
	records bool
	first   atomic.Pointer[any]
}

// begun is the first message; nil: none came.
func (s *serverStream) begun() any {
	if m := s.first.Load(); m != nil {
		return *m
	}
	return nil
}

// RecvMsg receives a message in full or refuses it.
func (s *serverStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if s.records {
		s.first.CompareAndSwap(nil, &m)
	}
	return refuseUnknown(s.method, m)
}

func (s *serverStream) Context() context.Context { return s.ctx }

// admit finds who calls and whether they may.
func (i *interceptors) admit(ctx context.Context, method string) (context.Context, Caller, bool, error) {
	caller, err := i.identify(ctx)
	known := err == nil && caller.Kind != ""
	if known {
		ctx = WithCaller(ctx, caller)
	}
	if err != nil && rules[method].who != anyone {
		return ctx, caller, false, err
	}
	return ctx, caller, known, Allow(method, caller, known)
}

// identify is the zero Caller for one who shows nothing. A bearer token counts before a client certificate.
func (i *interceptors) identify(ctx context.Context) (Caller, error) {
	var remote string
	var state *tls.ConnectionState
	if p, ok := peer.FromContext(ctx); ok {
		remote = p.Addr.String()
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			state = &info.State
		}
	}
	var c Caller
	var err error
	switch token := bearer(ctx); {
	case token != "":
		c, err = i.auth.Bearer(token)
	case state != nil && len(state.PeerCertificates) > 0:
		c, err = i.auth.Certificate(*state)
	}
	c.Remote = remote
	return c, err
}

// bearer is the token of the authorization header; empty: none.
func bearer(ctx context.Context) string {
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if scheme, token, ok := strings.Cut(v, " "); ok && strings.EqualFold(scheme, "bearer") {
			return strings.TrimSpace(token)
		}
	}
	return ""
}

func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := defaultDeadline
	if _, ok := ctx.Deadline(); ok {
		limit = maxDeadline
	}
	return context.WithTimeout(ctx, limit)
}

func (i *interceptors) record(ctx context.Context, c Caller, method string, req, resp any, err error) {
	if i.audit == nil || isDryRun(req) || err == nil && changedNothing(resp) {
		return
	}
	result := codes.OK
	if err != nil {
		result = status.Code(ToStatus(err))
	}
	e := AuditEntry{Caller: c, Method: method, Result: result.String(), At: i.now(), Detail: detailOf(ctx)}
	if m, ok := req.(proto.Message); ok { // a stream that is refused has none
		e.Kind, e.Subject = subject(m)
		e.Clusters = within(m, e.Kind)
		e.Reason = reasonOf(m)
	}
	if m, ok := resp.(proto.Message); ok && err == nil {
		e.Response = m
	}
	i.audit(context.WithoutCancel(ctx), e)
}

// finish turns a panic and any error into a status. What is the hub's own fault is logged under an id, and the client
// gets the id; one without an identity gets nothing else.
func (i *interceptors) finish(ctx context.Context, method string, err error) error {
	if err == nil {
		return nil
	}
	out := ToStatus(err)
	code := status.Code(out)
	if code != codes.Internal && code != codes.Unknown && code != codes.DataLoss {
		return out
	}
	id := rand.Text()[:8]
	var p *guard.Panic
	if errors.As(err, &p) {
		i.log.Error("a call panicked", "id", id, "method", method, "panic", fmt.Sprint(p.Value), "stack", p.Stack)
		return ToStatus(fmt.Errorf("%s: stopped by a bug in the hub; its log has the details under id %s", short(method), id))
	}
	i.log.Error("a call failed", "id", id, "method", method, "error", err)
	if _, known := CallerFrom(ctx); !known {
		return ToStatus(fmt.Errorf("%s: failed in the hub; its log has the details under id %s", short(method), id))
	}
	return ToStatus(&withID{err, id})
}

// withID adds the id under which the hub logged the error.
type withID struct {
	error
	id string
}

func (e *withID) Error() string { return e.error.Error() + " (id " + e.id + ")" }
func (e *withID) Unwrap() error { return e.error }
