package client

import (
	"context"
	"errors"
	"path"
	"regexp"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

// unary lets reads wait for what this client wrote and remembers the revision of writes.
func (c *Client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption) error {
	asked := c.atLeastWritten(req)
	err := invoke(ctx, method, asked, reply, cc, opts...)
	if asked != req && errors.Is(rpc.FromStatus(err), fleet.ErrStale) { // the hub's store is another one by now, or an older copy
		c.written.Store(0)
		err = invoke(ctx, method, req, reply, cc, opts...)
	}
	if err == nil {
		c.met.Store(true)
	}
	if err == nil && !isRead(path.Base(method)) {
		c.remember(reply)
	}
	return withoutRetries(err)
}

// retried is what gRPC puts around an error that it has tried to get over.
var retried = regexp.MustCompile(`^max retries exhausted: failed after \d+ attempts: rpc error: code = \w+ desc = `)

// withoutRetries is the error of the last try.
func withoutRetries(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok || !retried.MatchString(s.Message()) {
		return err
	}
	plain := s.Proto()
	plain.Message = retried.ReplaceAllString(plain.GetMessage(), "")
	return status.ErrorProto(plain)
}

// stream does for the one request of a watch what unary does for reads.
func (c *Client) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &watchStream{ClientStream: s, client: c}, nil
}

type watchStream struct {
	grpc.ClientStream
	client *Client
}

func (s *watchStream) SendMsg(m any) error { return s.ClientStream.SendMsg(s.client.atLeastWritten(m)) }

// atLeastWritten is the request with min_revision set, if it has the field and the caller left it out. The caller's
// message stays as it is.
func (c *Client) atLeastWritten(req any) any {
	written := c.written.Load()
	m, ok := req.(proto.Message)
	if !ok || written == 0 {
		return req
	}
	field := m.ProtoReflect().Descriptor().Fields().ByName("min_revision")
	if field == nil || m.ProtoReflect().Get(field).Int() != 0 {
		return req
	}
	m = proto.Clone(m)
	m.ProtoReflect().Set(field, protoreflect.ValueOfInt64(written))
	return m
}

// remember keeps the highest store revision that a write answered with.
func (c *Client) remember(reply any) {
	m, ok := reply.(proto.Message)
	if said, steered := reply.(answered); steered {
		m, ok = said.GetAnswer(), true
	}
	if !ok {
		return
	}
	field := m.ProtoReflect().Descriptor().Fields().ByName("revision")
	if field == nil || field.Kind() != protoreflect.Int64Kind {
		return
	}
	revision := m.ProtoReflect().Get(field).Int()
	for {
		have := c.written.Load()
		if revision <= have || c.written.CompareAndSwap(have, revision) {
			return
		}
	}
}
