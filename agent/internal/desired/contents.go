package desired

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

const (
	contentPrefix = "contents/"
	packMagic     = "towline.pack/1\n"
)

// contents are compressed bytes by digest, in packs: one for each bundle, with its objects, and one for each list of
// policies. A pack is written once and never changed.
type contents struct {
	data  map[fleet.Digest][]byte
	packs map[fleet.Digest][]fleet.Digest // what each pack holds, its root first
}

func newContents() contents {
	return contents{data: map[fleet.Digest][]byte{}, packs: map[fleet.Digest][]fleet.Digest{}}
}

// complete reports whether every root is held.
func (c contents) complete(roots []fleet.Digest) bool {
	for _, d := range roots {
		if c.packs[d] == nil {
			return false
		}
	}
	return true
}

// get is the content, checked against its digest.
func (c contents) get(d fleet.Digest) ([]byte, error) {
	packed, ok := c.data[d]
	if !ok {
		return nil, fleet.Errorf(fleet.ErrNotFound, "content %s: is not held", d.Short())
	}
	return unpack(d, packed)
}

func unpack(d fleet.Digest, packed []byte) ([]byte, error) {
	b, err := wire.Decompress(packed, wire.MaxContentBytes)
	if err != nil {
		return nil, fmt.Errorf("content %s: %w", d.Short(), err)
	}
	if fleet.DigestOf(b) != d {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "content %s: the bytes have digest %s", d.Short(), fleet.DigestOf(b).Short())
	}
	return b, nil
}

// with is a copy that holds the packs of the roots only, the new ones among them.
func (c contents) with(added contents, roots []fleet.Digest) contents {
	out := newContents()
	for _, root := range roots {
		members, from := added.packs[root], added
		if members == nil {
			members, from = c.packs[root], c
		}
		if members == nil {
			continue
		}
		out.packs[root] = members
		for _, d := range members {
			if b, ok := from.data[d]; ok {
				out.data[d] = b
			} else if b, ok := c.data[d]; ok {
				out.data[d] = b
			}
		}
	}
	return out
}

func packName(root fleet.Digest) string { return contentPrefix + root.String() }

// encodePack writes the members of a pack, each as its digest, its length and its bytes.
func encodePack(members []fleet.Digest, data func(fleet.Digest) []byte) []byte {
	out := []byte(packMagic)
	for _, d := range members {
		b := data(d)
		out = append(out, d[:]...)
		out = binary.AppendUvarint(out, uint64(len(b)))
		out = append(out, b...)
	}
	return out
}

// decodePack reads a pack into contents, and returns its first member, which names it.
func decodePack(raw []byte, into contents) (root fleet.Digest, err error) {
	rest, ok := bytes.CutPrefix(raw, []byte(packMagic))
	if !ok {
		return root, fleet.Errorf(fleet.ErrCorrupt, "is no pack")
	}
	var members []fleet.Digest
	for len(rest) > 0 {
		var d fleet.Digest
		if len(rest) < len(d) {
			return root, fleet.Errorf(fleet.ErrCorrupt, "is cut off")
		}
		rest = rest[copy(d[:], rest):]
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > uint64(len(rest)-size) {
			return root, fleet.Errorf(fleet.ErrCorrupt, "is cut off")
		}
		into.data[d] = rest[size : size+int(n)]
		rest = rest[size+int(n):]
		members = append(members, d)
	}
	if len(members) == 0 {
		return root, fleet.Errorf(fleet.ErrCorrupt, "is empty")
	}
	into.packs[members[0]] = members
	return members[0], nil
}

// loadContents reads the packs of the roots. One that is missing or damaged is left out: the hub is asked for it again.
func loadContents(ctx context.Context, state State, s *set, log *slog.Logger) (contents, error) {
	out := newContents()
	for _, root := range s.roots() {
		var err error
		raw, loose := s.loose[root]
		if !loose {
			raw, err = state.Read(ctx, packName(root))
		}
		if err == nil {
			_, err = decodePack(raw, out)
		}
		switch {
		case errors.Is(err, fleet.ErrNotFound), errors.Is(err, fleet.ErrCorrupt):
			log.Error("content is damaged; the hub is asked for it again", "content", root.Short(), "error", err)
		case err != nil:
			return out, fmt.Errorf("desired: %w", err)
		}
	}
	return out, nil
}

// reader has contents by digest.
type reader interface {
	Object(d fleet.Digest) ([]byte, error)
}

func bundleIn(r reader, d fleet.Digest) (fleet.Bundle, error) {
	b, err := r.Object(d)
	if err != nil {
		return fleet.Bundle{}, err
	}
	return assemble.DecodeBundle(b)
}

func policiesIn(r reader, d fleet.Digest) (fleet.PolicySet, error) {
	if d.IsZero() {
		return fleet.PolicySet{}, nil
	}
	b, err := r.Object(d)
	if err != nil {
		return fleet.PolicySet{}, err
	}
	return wire.PolicySetFromContent(b)
}

// Bundle is a held bundle.
func (s *Store) Bundle(d fleet.Digest) (fleet.Bundle, error) { return bundleIn(s, d) }

// Object is a held content, such as an object's canonical JSON.
func (s *Store) Object(d fleet.Digest) ([]byte, error) {
	s.mu.RLock()
	packed, ok := s.contents.data[d]
	s.mu.RUnlock()
	if !ok {
		return nil, fleet.Errorf(fleet.ErrNotFound, "content %s: is not held", d.Short())
	}
	return unpack(d, packed)
}

// Policies is a held policy set; the zero digest is none.
func (s *Store) Policies(d fleet.Digest) (fleet.PolicySet, error) { return policiesIn(s, d) }
