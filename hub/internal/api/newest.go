package api

import (
	"context"

	"google.golang.org/grpc"

	"towline.dev/towline/pkg/rpc"
)

// NewestUnary has calls that write begin with all that anybody was told is committed, for hubs that share a store: what finds that there is nothing to do
// writes nothing that another hub's word could conflict with.
func NewestUnary(s interface {
	Barrier(ctx context.Context) (int64, error)
}) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if rpc.Records(info.FullMethod) {
			if _, err := s.Barrier(ctx); err != nil {
				return nil, err
			}
		}
		return h(ctx, req)
	}
}
