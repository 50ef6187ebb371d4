package simagent

import (
	"context"
	"errors"
	"io"
	"maps"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// unfold takes a move, or refuses it as the real agent does.
func (a *Agent) unfold(ctx context.Context, client agentv1.AgentServiceClient, st stream, m *agentv1.Move) error {
	ix, contents, err := wire.IndexFromMove(m, a.Held(), a.Content)
	if err == nil {
		_, err = wire.AssemblageFromIndex(ix, a.Held())
	}
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		return st.Send(&agentv1.ConnectRequest{Frame: &agentv1.ConnectRequest_Ack{Ack: &agentv1.Ack{Digest: m.GetResultsIn(),
			Generation: m.GetGeneration(), Epoch: a.current, Code: "DIGEST_MISMATCH", Message: wire.CutText(err.Error())}}})
	}
	a.mu.Lock()
	maps.Copy(a.contents, contents)
	a.mu.Unlock()
	return a.accept(ctx, client, st, ix)
}

// Content is one that is kept.
func (a *Agent) Content(d fleet.Digest) ([]byte, error) {
	a.mu.Lock()
	b, ok := a.contents[d]
	a.mu.Unlock()
	if !ok {
		return nil, fleet.Errorf(fleet.ErrNotFound, "content %s: is not held", d.Short())
	}
	return b, nil
}

// Forget drops every content that it keeps, as if its state had been lost.
func (a *Agent) Forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.contents)
}

// keep gets what an assemblage needs and is not kept: bundles and policies, then objects.
func (a *Agent) keep(ctx context.Context, client agentv1.AgentServiceClient, next fleet.Assemblage) error {
	var roots, objects []fleet.Digest
	for _, s := range next.Syncs {
		roots = append(roots, s.Bundle, s.Policies)
	}
	if err := a.get(ctx, client, roots); err != nil {
		return err
	}
	for _, s := range next.Syncs {
		raw, err := a.Content(s.Bundle)
		if err != nil {
			return err
		}
		b, err := assemble.DecodeBundle(raw)
		if err != nil {
			return err
		}
		for _, e := range b.Entries {
			objects = append(objects, e.Digest)
		}
	}
	return a.get(ctx, client, objects)
}

func (a *Agent) get(ctx context.Context, client agentv1.AgentServiceClient, digests []fleet.Digest) error {
	req := &agentv1.GetObjectsRequest{Epoch: a.current}
	for _, d := range digests {
		if _, err := a.Content(d); err != nil && !d.IsZero() {
			req.Digests = append(req.Digests, d.Bytes())
		}
	}
	if len(req.GetDigests()) == 0 {
		return nil
	}
	st, err := client.GetObjects(ctx, req)
	if err != nil {
		return err
	}
	parts := map[fleet.Digest][]byte{}
	for {
		m, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, c := range m.GetContents() {
			if err := a.store(c.GetDigest(), c.GetData()); err != nil {
				return err
			}
		}
		if p := m.GetPart(); p != nil {
			d, err := fleet.DigestFromBytes(p.GetDigest())
			if err != nil {
				return err
			}
			if parts[d] = append(parts[d], p.GetData()...); p.GetLast() {
				if err := a.store(p.GetDigest(), parts[d]); err != nil {
					return err
				}
			}
		}
	}
}

// store keeps a content that came as zstd.
func (a *Agent) store(digest, packed []byte) error {
	d, err := fleet.DigestFromBytes(digest)
	if err != nil {
		return err
	}
	b, err := wire.Decompress(packed, wire.MaxContentBytes)
	if err != nil {
		return err
	}
	if fleet.DigestOf(b) != d {
		return fleet.Errorf(fleet.ErrCorrupt, "content %s: the bytes have another digest", d.Short())
	}
	a.mu.Lock()
	a.contents[d] = b
	a.mu.Unlock()
	a.Contents.Add(1)
	return nil
}
