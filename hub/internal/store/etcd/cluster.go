package etcd

import (
	"context"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/pkg/fleet"
)

// oneCluster has all answers be of the cluster of etcd that gave the first. The client asks its endpoints in turn and takes them for members of one:
// of two clusters it would read from the one and write to the other, and a write that was told as done would be nowhere to be read.
type oneCluster struct {
	id    atomic.Uint64
	other atomic.Pointer[error] // an answer was of another one; from then on nothing is known
}

// see looks at the header of an answer. A proxy may leave the cluster out.
func (c *oneCluster) see(answer any, from *peer.Peer) error {
	headed, ok := answer.(interface{ GetHeader() *pb.ResponseHeader })
	if !ok {
		return nil
	}
	id := headed.GetHeader().GetClusterId()
	if id == 0 || c.id.CompareAndSwap(0, id) || c.id.Load() == id {
		return nil
	}
	at := "one of its members"
	if from != nil && from.Addr != nil {
		at = from.Addr.String()
	}
	err := fleet.Errorf(backend.ErrAnother, "etcd: %s answers for cluster %x, and answers before were of cluster %x: all that --etcd-endpoints names, and what these lead to, has to be of one cluster. What was restored from a snapshot may be another one than before: then stop all hubs, mark it with towline-hub restore --etcd-endpoints, and start them",
		at, id, c.id.Load())
	c.other.CompareAndSwap(nil, &err)
	return err
}

// options are those of the connections.
func (c *oneCluster) options() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			var from peer.Peer
			if err := invoke(ctx, method, req, reply, cc, append(opts, grpc.Peer(&from))...); err != nil {
				return err
			}
			return c.see(reply, &from)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(ctx, desc, cc, method, opts...)
			if err != nil {
				return nil, err
			}
			return &seenStream{ClientStream: s, cluster: c}, nil
		}),
	}
}

// seenStream is a stream of answers that are looked at.
type seenStream struct {
	grpc.ClientStream
	cluster *oneCluster
}

// RecvMsg receives an answer.
func (s *seenStream) RecvMsg(answer any) error {
	if err := s.ClientStream.RecvMsg(answer); err != nil {
		return err
	}
	from, _ := peer.FromContext(s.Context())
	return s.cluster.see(answer, from)
}
