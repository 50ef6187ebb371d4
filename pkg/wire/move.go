package wire

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"

	"github.com/klauspost/compress/zstd"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// FeatureMoves names the feature of agents that take a Move.
const FeatureMoves = "moves"

// FeatureDictionaries names the feature of agents that take one whose contents have a dictionary.
const FeatureDictionaries = "dictionaries"

// MaxPatchBytes is how many bytes of contents all patches of a move make at most, and how many the dictionary of each has.
const MaxPatchBytes = 1 << 20

// PatchedOrdinals are the objects whose content is another one in a bundle than it was in the one before; false: they list
// different objects, so that no patch leads from one to the other.
func PatchedOrdinals(before, after fleet.Bundle) ([]int, bool) {
	if len(before.Entries) != len(after.Entries) {
		return nil, false
	}
	var out []int
	for i, e := range after.Entries {
		old := before.Entries[i]
		if old.Digest != e.Digest {
			out = append(out, i)
		}
		if old.Digest = e.Digest; old != e {
			return nil, false
		}
	}
	return out, true
}

// PackPatch is the patch that puts contents at ordinals; dictionary is what was there before, one after the other, or nothing.
func PackPatch(ordinals []int, contents [][]byte, dictionary []byte) (*agentv1.BundlePatch, error) {
	out := &agentv1.BundlePatch{Dictionary: len(dictionary) > 0}
	for i, c := range contents {
		out.Ordinals = append(out.Ordinals, uint32(ordinals[i]))
		out.Sizes = append(out.Sizes, uint32(len(c)))
	}
	whole := bytes.Join(contents, nil)
	if !out.GetDictionary() {
		out.Contents = Compress(whole)
		return out, nil
	}
	// The digest of the assemblage proves more than a checksum of the frame would.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(2*MaxPatchBytes),
		zstd.WithEncoderCRC(false), zstd.WithEncoderDictRaw(0, dictionary))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	defer func() { _ = enc.Close() }() // it has written to nothing
	out.Contents = enc.EncodeAll(whole, nil)
	return out, nil
}

// patched is a bundle that was made of another one: its canonical bytes, and the contents that are new, by their digests.
type patched struct {
	bundle   fleet.Digest
	contents map[fleet.Digest][]byte
}

// patch makes a bundle of one that is held. What it allocates is bounded whatever the patch says, and nothing of it is proved.
func patch(p *agentv1.BundlePatch, held fleet.Digest, content func(fleet.Digest) ([]byte, error), room *int) (patched, error) {
	raw, err := content(held)
	if err != nil {
		return patched{}, err
	}
	b, err := assemble.DecodeBundle(raw)
	if err != nil {
		return patched{}, err
	}
	size, err := checkPatch(p, len(b.Entries), *room)
	if err != nil {
		return patched{}, err
	}
	*room -= size
	var dictionary []byte
	if p.GetDictionary() {
		for _, o := range p.GetOrdinals() {
			old, err := content(b.Entries[o].Digest)
			if err != nil {
				return patched{}, err
			}
			if dictionary = append(dictionary, old...); len(dictionary) > MaxPatchBytes {
				return patched{}, fleet.Invalidf("patch.dictionary", "has more than %d bytes", MaxPatchBytes)
			}
		}
	}
	whole, err := decompressExactly(p.GetContents(), size, dictionary)
	if err != nil {
		return patched{}, err
	}
	out := patched{contents: make(map[fleet.Digest][]byte, len(p.GetOrdinals())+1)}
	for i, o := range p.GetOrdinals() {
		c := whole[:p.GetSizes()[i]:p.GetSizes()[i]]
		whole = whole[len(c):]
		b.Entries[o].Digest = fleet.DigestOf(c)
		out.contents[b.Entries[o].Digest] = c
	}
	out.bundle, raw = assemble.BundleDigest(b.Entries)
	out.contents[out.bundle] = raw
	return out, nil
}

// checkPatch is how many bytes the new contents have.
func checkPatch(p *agentv1.BundlePatch, entries, room int) (size int, err error) {
	if len(p.GetOrdinals()) != len(p.GetSizes()) {
		return 0, fleet.Invalidf("patch.sizes", "are %d, for %d ordinals", len(p.GetSizes()), len(p.GetOrdinals()))
	}
	next := uint64(0)
	for i, o := range p.GetOrdinals() {
		if uint64(o) < next || uint64(o) >= uint64(entries) {
			return 0, fleet.Invalidf("patch.ordinals", "%d is out of order, or not below %d", o, entries)
		}
		next = uint64(o) + 1
		n := int64(p.GetSizes()[i])
		if n == 0 || n > int64(room-size) {
			return 0, fleet.Invalidf("patch.sizes", "%d is not above 0, or all of the move are more than %d", n, MaxPatchBytes)
		}
		size += int(n)
	}
	return size, nil
}

// decompressExactly reads a frame that holds so many bytes.
func decompressExactly(b []byte, size int, dictionary []byte) ([]byte, error) {
	options := []zstd.DOption{zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(2 * MaxPatchBytes),
		zstd.WithDecodeAllCapLimit(true)}
	if len(dictionary) > 0 {
		options = append(options, zstd.WithDecoderDictRaw(0, dictionary))
	}
	dec, err := zstd.NewReader(nil, options...)
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	defer dec.Close()
	out, err := dec.DecodeAll(b, make([]byte, 0, size))
	if err != nil {
		return nil, corrupt(err)
	}
	if len(out) != size {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "zstd: holds %d bytes, not %d", len(out), size)
	}
	return out, nil
}

// AppliesTo is how a move names the assemblage that it applies to.
func AppliesTo(d fleet.Digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }

// IndexFromMove is the index that a move stands for, a delta of base, and the contents that are new with it, by their digests.
// What base has is read by content. AssemblageFromIndex proves the index, and so the contents, by the digest that it results in.
func IndexFromMove(in *agentv1.Move, base fleet.Assemblage, content func(fleet.Digest) ([]byte, error)) (*agentv1.Index, map[fleet.Digest][]byte, error) {
	if in.GetAppliesTo() != AppliesTo(base.Digest) {
		return nil, nil, fleet.Errorf(fleet.ErrCorrupt, "move: applies to %x, held is %s", in.GetAppliesTo(), base.Digest.Short())
	}
	out := &agentv1.Index{AppliesTo: base.Digest.Bytes(), ResultsIn: in.GetResultsIn(), Generation: in.GetGeneration(), Hold: base.Hold}
	contents := map[fleet.Digest][]byte{}
	next, room := uint64(0), MaxPatchBytes
	for _, m := range in.GetSyncs() {
		if uint64(m.GetPlace()) < next || uint64(m.GetPlace()) >= uint64(len(base.Syncs)) {
			return nil, nil, fleet.Invalidf("move.syncs", "place %d is out of order, or not below %d", m.GetPlace(), len(base.Syncs))
		}
		next = uint64(m.GetPlace()) + 1
		s := base.Syncs[m.GetPlace()]
		made, err := patch(m.GetPatch(), s.Bundle, content, &room)
		if err != nil {
			return nil, nil, fmt.Errorf("move: module %s: %w", s.Module.Display(), err)
		}
		maps.Copy(contents, made.contents)
		s.Bundle, s.Generation, s.Revision = made.bundle, m.GetGeneration(), m.GetRevision()
		if s.Generation == 0 {
			s.Generation = in.GetGeneration()
		}
		out.Syncs = append(out.Syncs, SyncToProto(s))
	}
	return out, contents, nil
}
