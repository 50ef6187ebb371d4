package session

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

const (
	// chunkBytes is the most that one frame of contents carries.
	chunkBytes = 256 << 10
	// maxDigests bounds one request; an agent asks again for more.
	maxDigests = 20_000
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
	may, err := x.contents(st.Context())
	if err != nil {
		return err
	}
	p := packer{st: st}
	for _, raw := range req.GetDigests() {
		d, err := fleet.DigestFromBytes(raw)
		if err != nil || !may[d] {
			return fleet.Errorf(fleet.ErrNotFound, "cluster %s: content %s is not in its index", cluster, d.Short())
		}
		data, err := s.o.Store.Blobs().GetCompressed(st.Context(), d)
		if err != nil {
			return fmt.Errorf("cluster %s: content %s: %w", cluster, d.Short(), err)
		}
		if err := p.add(d, data); err != nil {
			return err
		}
	}
	return p.flush()
}

// contents is the set of digests that the session may read.
func (x *session) contents(ctx context.Context) (map[fleet.Digest]bool, error) {
	may := map[fleet.Digest]bool{}
	for _, a := range x.allowedContents() {
		if !a.policies.IsZero() {
			may[a.policies] = true
		}
		if may[a.bundle] {
			continue
		}
		may[a.bundle] = true
		b, err := x.server.o.Bundles.Get(ctx, a.bundle)
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", x.cluster, err)
		}
		for _, e := range b.Entries {
			may[e.Digest] = true
		}
	}
	return may, nil
}

// packer puts small contents together in frames and cuts large ones.
type packer struct {
	st    grpc.ServerStreamingServer[agentv1.GetObjectsResponse]
	batch []*agentv1.Content
	size  int
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
	}
	return nil
}

func (p *packer) flush() error {
	if len(p.batch) == 0 {
		return nil
	}
	err := p.st.Send(&agentv1.GetObjectsResponse{Contents: p.batch})
	p.batch, p.size = nil, 0
	return err
}
