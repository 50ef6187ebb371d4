package rpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// clientUnary and clientStream give a client errors as the hub meant them.
func clientUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return FromStatus(invoke(ctx, method, req, reply, cc, opts...))
}

func clientStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return &clientErrors{s}, nil
}

type clientErrors struct{ grpc.ClientStream }

func (s *clientErrors) SendMsg(m any) error { return fromStream(s.ClientStream.SendMsg(m)) }
func (s *clientErrors) RecvMsg(m any) error { return fromStream(s.ClientStream.RecvMsg(m)) }
func (s *clientErrors) CloseSend() error    { return fromStream(s.ClientStream.CloseSend()) }
func (s *clientErrors) Header() (metadata.MD, error) {
	md, err := s.ClientStream.Header()
	return md, fromStream(err)
}

// fromStream leaves io.EOF, which is no error, as it is.
func fromStream(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return err
	}
	return FromStatus(err)
}
