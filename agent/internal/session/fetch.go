package session

import (
	"context"
	"errors"
	"io"
	"slices"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

const (
	maxAsked      = 5000      // digests in one request
	maxFetchBytes = 256 << 20 // compressed bytes of one fetch
	maxHintBytes  = 1 << 20
	// fetchIdle is how long the hub may send nothing of a fetch.
	fetchIdle = 30 * time.Second
)

// hints are contents that the hub sent ahead of an index. They are checked like all others when they are used.
type hints struct {
	data map[fleet.Digest][]byte
	size int
}

func newHints() hints { return hints{data: map[fleet.Digest][]byte{}} }

func (h *hints) add(d *agentv1.BundleDelta) {
	contents := slices.Concat([]*agentv1.Content{{Digest: d.GetToBundle(), Data: d.GetManifest()}}, d.GetObjects())
	for _, c := range contents {
		if digest, err := fleet.DigestFromBytes(c.GetDigest()); err == nil && !digest.IsZero() {
			h.put(digest, c.GetData())
		}
	}
}

func (h *hints) put(d fleet.Digest, packed []byte) {
	if h.size+len(packed) > maxHintBytes {
		return
	}
	h.size += len(packed) - len(h.data[d])
	h.data[d] = packed
}

// fetch gets contents that are to be written.
func (s *session) fetch(ctx context.Context, digests []fleet.Digest) (map[fleet.Digest][]byte, error) {
	s.l.o.Worker.Expect(ctx)
	return s.gather(ctx, digests)
}

// gather gets contents, first from the hints, then from the hub.
func (s *session) gather(ctx context.Context, digests []fleet.Digest) (map[fleet.Digest][]byte, error) {
	g := gathering{out: make(map[fleet.Digest][]byte, len(digests)), parts: map[fleet.Digest][]byte{}}
	var rest []fleet.Digest
	s.mu.Lock()
	for _, d := range digests {
		if b, ok := s.hints.data[d]; ok && fits(d, b) {
			g.out[d] = b
		} else {
			rest = append(rest, d)
		}
	}
	s.mu.Unlock()
	for chunk := range slices.Chunk(rest, maxAsked) {
		if err := s.ask(ctx, chunk, &g); err != nil {
			return nil, err
		}
	}
	return g.out, nil
}

// fits checks a hint, so that a bad one only costs the fetch.
func fits(d fleet.Digest, packed []byte) bool {
	b, err := wire.Decompress(packed, wire.MaxContentBytes)
	return err == nil && fleet.DigestOf(b) == d
}

func (s *session) ask(ctx context.Context, digests []fleet.Digest, g *gathering) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(fetchIdle, func() {
		cancel(fleet.Errorf(fleet.ErrUnavailable, "contents from the hub: nothing came for %s", fetchIdle))
	})
	defer idle.Stop()
	req := &agentv1.GetObjectsRequest{Epoch: s.welcome.GetEpoch()}
	for _, d := range digests {
		req.Digests = append(req.Digests, d.Bytes())
	}
	stream, err := s.client.GetObjects(ctx, req)
	if err != nil {
		return s.cause(ctx, err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return s.cause(ctx, err)
		}
		idle.Reset(fetchIdle)
		if err := g.add(m); err != nil {
			return err
		}
	}
}

// gathering puts the frames of a fetch together, within bounds.
type gathering struct {
	out   map[fleet.Digest][]byte
	parts map[fleet.Digest][]byte
	size  int
}

func (g *gathering) add(m *agentv1.GetObjectsResponse) error {
	for _, c := range m.GetContents() {
		d, err := fleet.DigestFromBytes(c.GetDigest())
		if err != nil || d.IsZero() {
			return fleet.Errorf(fleet.ErrInvalid, "contents from the hub: a digest is malformed")
		}
		if err := g.grow(len(c.GetData())); err != nil {
			return err
		}
		g.out[d] = c.GetData()
	}
	if m.GetPart() == nil {
		return nil
	}
	return g.part(m.GetPart())
}

func (g *gathering) part(p *agentv1.ContentPart) error {
	d, err := fleet.DigestFromBytes(p.GetDigest())
	if err != nil || d.IsZero() {
		return fleet.Errorf(fleet.ErrInvalid, "contents from the hub: a digest is malformed")
	}
	if p.GetOffset() != uint64(len(g.parts[d])) {
		return fleet.Errorf(fleet.ErrInvalid, "content %s: a part begins at %d, not at %d", d.Short(), p.GetOffset(), len(g.parts[d]))
	}
	if len(g.parts[d])+len(p.GetData()) > wire.MaxContentBytes {
		return fleet.Errorf(fleet.ErrExhausted, "content %s: is larger than %d bytes", d.Short(), wire.MaxContentBytes)
	}
	if err := g.grow(len(p.GetData())); err != nil {
		return err
	}
	g.parts[d] = append(g.parts[d], p.GetData()...)
	if p.GetLast() {
		g.out[d] = g.parts[d]
		delete(g.parts, d)
	}
	return nil
}

func (g *gathering) grow(n int) error {
	if g.size += n; g.size > maxFetchBytes {
		return fleet.Errorf(fleet.ErrExhausted, "contents from the hub: more than %d bytes", maxFetchBytes)
	}
	return nil
}
