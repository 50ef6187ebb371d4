package assemble

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// The first bytes of each canonical encoding: what it is, and the version of its layout.
const (
	assemblageMagic = "towline.assemblage/1\n"
	bundleMagic     = "towline.bundle/1\n"
)

// MaxBundleObjects is how many objects a bundle may have.
const MaxBundleObjects = 20_000

// encoder writes the canonical encoding: lengths and numbers as the shortest uvarint, digests as 32 bytes.
type encoder []byte

func (e *encoder) number(v uint64)       { *e = binary.AppendUvarint(*e, v) }
func (e *encoder) digest(d fleet.Digest) { *e = append(*e, d[:]...) }

func (e *encoder) text(s string) {
	e.number(uint64(len(s)))
	*e = append(*e, s...)
}

// module writes the text of a module's full name.
func (e *encoder) module(m fleet.ModuleRef) {
	e.number(uint64(len(m.Project) + 1 + len(m.Name)))
	*e = append(append(append(*e, m.Project...), '/'), m.Name...)
}

func (e *encoder) flags(bits ...bool) {
	var b byte
	for i, set := range bits {
		if set {
			b |= 1 << i
		}
	}
	*e = append(*e, b)
}

// Digest is the digest of an assemblage: of its syncs and tombstones, in any order, and of its hold. The assemblage's
// own Generation is left out; those of its syncs and tombstones are in.
func Digest(a fleet.Assemblage) fleet.Digest {
	return digestOf(pointers(a.Syncs), pointers(a.Tombstones), a.Hold)
}

func pointers[T any](list []T) []*T {
	out := make([]*T, len(list))
	for i := range list {
		out[i] = &list[i]
	}
	return out
}

// digestOf sorts the lists, if they are not.
func digestOf(syncs []*fleet.Sync, tombstones []*fleet.Tombstone, hold bool) fleet.Digest {
	syncs = sorted(syncs, func(x, y *fleet.Sync) int {
		return cmp.Or(compareRef(x.Module, y.Module), cmp.Compare(x.Generation, y.Generation))
	})
	tombstones = sorted(tombstones, func(x, y *fleet.Tombstone) int {
		return cmp.Or(compareRef(x.Module, y.Module), cmp.Compare(x.Generation, y.Generation))
	})
	var alive, dead Encoded
	for _, s := range syncs {
		alive.Bytes = AppendSync(alive.Bytes, s)
	}
	for _, t := range tombstones {
		dead.Bytes = AppendTombstone(dead.Bytes, t)
	}
	alive.Count, dead.Count = len(syncs), len(tombstones)
	return DigestOf(alive, dead, hold)
}

// Encoded are syncs or tombstones one after the other, in the order of their modules, each as AppendSync or AppendTombstone writes
// it.
type Encoded struct {
	Count int
	Bytes []byte
}

// DigestOf is the digest of an assemblage of these.
func DigestOf(syncs, tombstones Encoded, hold bool) fleet.Digest {
	e := encoder(assemblageMagic)
	e.flags(hold)
	e.number(uint64(syncs.Count))
	h := sha256.New()
	_, _ = h.Write(e) // a hash takes everything
	_, _ = h.Write(syncs.Bytes)
	e = e[:0]
	e.number(uint64(tombstones.Count))
	_, _ = h.Write(e)
	_, _ = h.Write(tombstones.Bytes)
	return fleet.Digest(h.Sum(nil))
}

// sorted is the list, or a copy of it that is in order.
func sorted[T any](list []T, compare func(a, b T) int) []T {
	if slices.IsSortedFunc(list, compare) {
		return list
	}
	list = slices.Clone(list)
	slices.SortFunc(list, compare)
	return list
}

// What follows the policy of a tombstone that is held, or that has heirs, policies or dependencies; no policy ends so.
const (
	heldMark     = "/hold"
	heirsMark    = "/heirs"
	policiesMark = "/policies"
	dependsMark  = "/depends"
)

// AppendTombstone appends the canonical encoding of a tombstone.
func AppendTombstone(to []byte, t *fleet.Tombstone) []byte {
	e := encoder(to)
	e.module(t.Module)
	e.number(t.Generation)
	policy := t.Policy
	if t.Hold {
		policy += heldMark
	}
	if len(t.Heirs) > 0 {
		policy += heirsMark
	}
	if t.Policies != "" {
		policy += policiesMark
	}
	if len(t.DependsOn) > 0 {
		policy += dependsMark
	}
	e.text(policy)
	e.heirs(t.Heirs)
	if t.Policies != "" {
		e.text(t.Policies)
	}
	e.dependsOn(t.DependsOn)
	return e
}

// AppendSync appends the canonical encoding of a sync.
func AppendSync(to []byte, s *fleet.Sync) []byte {
	e := encoder(to)
	e.module(s.Module)
	e.number(s.Generation)
	e.number(uint64(s.Revision))
	e.digest(s.Bundle)
	e.number(uint64(len(s.Values)))
	if len(s.Values) > 0 {
		for _, name := range slices.Sorted(maps.Keys(s.Values)) {
			e.text(name)
			e.text(s.Values[name])
		}
	}
	e.digest(s.Policies)
	e.flags(s.Hold, s.PruneConfirmed, len(s.Yields) > 0, len(s.Heirs) > 0, len(s.Recycles) > 0, len(s.Held) > 0, len(s.DependsOn) > 0, len(s.PruneShown) > 0)
	e.number(uint64(s.Objects))
	if len(s.Yields) > 0 {
		e.yields(s.Yields)
	}
	e.heirs(s.Heirs)
	e.recycles(s.Recycles)
	if len(s.Held) > 0 {
		e.keys(s.Held)
	}
	if len(s.PruneShown) > 0 {
		e.keys(s.PruneShown)
	}
	e.dependsOn(s.DependsOn)
	return e
}

// dependsOn follows only where a flag or a mark says that there is some.
func (e *encoder) dependsOn(list []fleet.ModuleRef) {
	if len(list) == 0 {
		return
	}
	e.number(uint64(len(list)))
	for _, m := range list {
		e.module(m)
	}
}

// recycles follow only where a flag says that there are some.
func (e *encoder) recycles(list []fleet.Recycle) {
	if len(list) == 0 {
		return
	}
	e.number(uint64(len(list)))
	for _, x := range list {
		e.number(uint64(x.Revision))
		e.keys(x.Keys)
	}
}

func (e *encoder) keys(list []uint64) {
	e.number(uint64(len(list)))
	for _, k := range list {
		*e = binary.BigEndian.AppendUint64(*e, k)
	}
}

// heirs follow only where a flag or a mark says that there are some.
func (e *encoder) heirs(list []fleet.Heir) {
	if len(list) == 0 {
		return
	}
	e.number(uint64(len(list)))
	for _, h := range list {
		e.text(h.Module.String())
		e.flags(h.Unknown)
		e.keys(h.Keys)
	}
}

// yields follow only where the flags say that there are some.
func (e *encoder) yields(list []fleet.Yield) {
	e.number(uint64(len(list)))
	for _, y := range list {
		e.text(y.Owner.String())
		e.number(y.Since)
		e.number(uint64(len(y.Ordinals)))
		for _, o := range y.Ordinals {
			e.number(uint64(o))
		}
	}
}

// BundleDigest is the digest of a bundle and the canonical bytes that it names, the content that travels. Entries are
// taken in any order; identities must be unique, or DecodeBundle refuses the bytes.
func BundleDigest(entries []fleet.BundleEntry) (fleet.Digest, []byte) {
	sorted := slices.SortedFunc(slices.Values(entries), func(a, b fleet.BundleEntry) int { return a.ID.Compare(b.ID) })
	e := encoder(bundleMagic)
	e.number(uint64(len(sorted)))
	for _, entry := range sorted {
		e.digest(entry.Digest)
		e.text(entry.ID.Group)
		e.text(entry.Version)
		e.text(entry.ID.Kind)
		e.text(entry.ID.Namespace)
		e.text(entry.ID.Name)
		e.number(zigzag(entry.Wave))
	}
	return fleet.DigestOf(e), e
}

// IsBundle reports whether a content is a bundle.
func IsBundle(content []byte) bool { return bytes.HasPrefix(content, []byte(bundleMagic)) }

// DecodeBundle reads the canonical bytes of a bundle. It takes nothing that BundleDigest would write otherwise, so a
// bundle has one digest only.
func DecodeBundle(content []byte) (fleet.Bundle, error) {
	d := decoder{rest: content}
	d.magic(bundleMagic)
	n := d.number()
	if n > MaxBundleObjects {
		return fleet.Bundle{}, fleet.Errorf(fleet.ErrInvalid, "bundle: %d objects; at most %d", n, MaxBundleObjects)
	}
	// An entry has at least 38 bytes, so what is allocated is bounded by what came.
	entries := make([]fleet.BundleEntry, 0, min(int(n), len(d.rest)/minEntry+1))
	var last fleet.BundleEntry
	for i := 0; i < int(n) && d.err == nil; i++ {
		e := d.entry(last)
		if i > 0 && d.err == nil && last.ID.Compare(e.ID) >= 0 {
			return fleet.Bundle{}, fleet.Errorf(fleet.ErrCorrupt, "bundle: %s is listed twice or out of order", e.ID)
		}
		entries = append(entries, e)
		last = e
	}
	if d.err == nil && len(d.rest) > 0 {
		d.fail("%d bytes after the last object", len(d.rest))
	}
	if d.err != nil {
		return fleet.Bundle{}, d.err
	}
	return fleet.Bundle{Digest: fleet.DigestOf(content), Entries: entries}, nil
}

// minEntry is the size of the smallest entry: a digest and six one-byte fields.
const minEntry = len(fleet.Digest{}) + 6

// decoder reads what encoder wrote. After the first error it reads zeros.
type decoder struct {
	rest []byte
	err  error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fleet.Errorf(fleet.ErrCorrupt, "bundle: "+format, args...)
	}
	d.rest = nil
}

func (d *decoder) magic(want string) {
	if len(d.rest) < len(want) || string(d.rest[:len(want)]) != want {
		d.fail("does not begin with %q: it is no bundle, or of a newer version", want)
		return
	}
	d.rest = d.rest[len(want):]
}

func (d *decoder) number() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 {
		d.fail("a number is cut off or too long")
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.rest)) {
		d.fail("%d bytes are missing", n-uint64(len(d.rest)))
		return nil
	}
	out := d.rest[:n]
	d.rest = d.rest[n:]
	return out
}

func (d *decoder) text() string { return string(d.take(d.number())) }

// same is text that is likely to be last: then it is kept once.
func (d *decoder) same(last string) string {
	if b := d.take(d.number()); string(b) != last {
		return string(b)
	}
	return last
}

// entry reads the next one. What it has in common with the last is kept once.
func (d *decoder) entry(last fleet.BundleEntry) fleet.BundleEntry {
	var e fleet.BundleEntry
	copy(e.Digest[:], d.take(uint64(len(e.Digest))))
	e.ID.Group, e.Version, e.ID.Kind = d.same(last.ID.Group), d.same(last.Version), d.same(last.ID.Kind)
	e.ID.Namespace, e.ID.Name = d.same(last.ID.Namespace), d.text()
	wave := d.number()
	if wave > 1<<32-1 {
		d.fail("%s: wave %d is out of range", e.ID, wave)
	}
	e.Wave = unzigzag(wave)
	if d.err == nil && (e.Digest.IsZero() || e.Version == "" || e.ID.Kind == "" || e.ID.Name == "") {
		d.fail("%s: digest, version, kind and name are required", e.ID)
	}
	return e
}

func zigzag(v int32) uint64   { return uint64(uint32(v<<1) ^ uint32(v>>31)) }
func unzigzag(v uint64) int32 { return int32(uint32(v)>>1) ^ -int32(v&1) }
