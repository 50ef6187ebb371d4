package session

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/rpc"
)

const (
	// chunkBytes is the most that one frame of contents carries.
	chunkBytes = 256 << 10
	// maxDigests bounds one request; an agent asks again for more.
	maxDigests = 20_000
	// contentPatience is for how many heartbeats an agent may read nothing of what it asked for. It is more than an agent
	// itself waits for the next frame.
	contentPatience = 5
)

// GetObjects sends contents that the index of the caller's live session, or the one before it, refers to.
func (s *Server) GetObjects(req *agentv1.GetObjectsRequest, st grpc.ServerStreamingServer[agentv1.GetObjectsResponse]) error {
	caller, ok := rpc.CallerFrom(st.Context())
	if !ok || caller.Cluster == "" {
		return fleet.Errorf(fleet.ErrUnknownUser, "this call needs the client certificate of a cluster")
	}
	cluster := fleet.ClusterName(caller.Cluster)
	s.mu.Lock()
	x := s.live[cluster]
	s.mu.Unlock()
	if x == nil || x.epoch != req.GetEpoch() {
		return fleet.Errorf(fleet.ErrStale, "cluster %s: epoch %d is not the live session", cluster, req.GetEpoch())
	}
	if len(req.GetDigests()) > maxDigests {
		return fleet.Errorf(fleet.ErrExhausted, "cluster %s: asks for %d contents; at most %d at once", cluster, len(req.GetDigests()), maxDigests)
	}
	ended := make(chan error, 1)
	p := &packer{st: st}
	// It may wait for the stream, which ends when this call returns.
	s.parts.Go(func() {
		ended <- guard.Run(func() error { return x.sendContents(st.Context(), req.GetDigests(), p) })
	})
	look := time.NewTicker(s.o.Heartbeat)
	defer look.Stop()
	for last, idle := int64(0), 0; ; idle++ {
		select {
		case err := <-ended:
			return err
		case <-x.over:
			return fleet.Errorf(fleet.ErrStale, "cluster %s: session %d is over", cluster, x.epoch)
		case <-look.C:
		}
		if now := p.sent.Load(); now != last {
			last, idle = now, 0
		}
		switch {
		case idle > contentPatience:
			return fleet.Errorf(fleet.ErrUnavailable, "cluster %s: the agent reads no more of its contents", cluster)
		case !s.isLive(x):
			return fleet.Errorf(fleet.ErrStale, "cluster %s: session %d is over", cluster, x.epoch)
		}
	}
}

func (s *Server) isLive(x *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[x.cluster] == x
}

// sendContents sends each content once.
func (x *session) sendContents(ctx context.Context, digests [][]byte, p *packer) error {
	may := x.grants.finder(x.server.o.Bundles)
	sent := map[fleet.Digest]bool{}
	for _, raw := range digests {
		d, err := fleet.DigestFromBytes(raw)
		if err != nil {
			return fleet.Errorf(fleet.ErrInvalid, "cluster %s: asks for contents: %v", x.cluster, err)
		}
		if sent[d] {
			continue
		}
		sent[d] = true
		switch granted, err := may.find(ctx, d); {
		case err != nil:
			return fmt.Errorf("cluster %s: %w", x.cluster, err)
		case !granted:
			return fleet.Errorf(fleet.ErrNotFound, "cluster %s: content %s is not in its index", x.cluster, d.Short())
		}
		data, err := x.server.o.Store.Blobs().GetCompressed(ctx, d)
		if err != nil {
			return fmt.Errorf("cluster %s: content %s: %w", x.cluster, d.Short(), err)
		}
		if err := p.add(d, data); err != nil {
			return err
		}
	}
	return p.flush()
}

// packer puts small contents together in frames and cuts large ones.
type packer struct {
	st    grpc.ServerStreamingServer[agentv1.GetObjectsResponse]
	batch []*agentv1.Content
	size  int
	sent  atomic.Int64 // frames
}

func (p *packer) add(d fleet.Digest, data []byte) error {
	if len(data) > chunkBytes {
		return p.parts(d, data)
	}
	if p.size+len(data) > chunkBytes {
		if err := p.flush(); err != nil {
			return err
		}
	}
	p.batch = append(p.batch, &agentv1.Content{Digest: d.Bytes(), Data: data})
	p.size += len(data)
	return nil
}

func (p *packer) parts(d fleet.Digest, data []byte) error {
	if err := p.flush(); err != nil {
		return err
	}
	for off := 0; off < len(data); off += chunkBytes {
		end := min(off+chunkBytes, len(data))
		part := &agentv1.ContentPart{Digest: d.Bytes(), Offset: uint64(off), Data: data[off:end], Last: end == len(data)}
		if err := p.st.Send(&agentv1.GetObjectsResponse{Part: part}); err != nil {
			return err
		}
		p.sent.Add(1)
	}
	return nil
}

func (p *packer) flush() error {
	if len(p.batch) == 0 {
		return nil
	}
	err := p.st.Send(&agentv1.GetObjectsResponse{Contents: p.batch})
	p.batch, p.size = nil, 0
	p.sent.Add(1)
	return err
}
