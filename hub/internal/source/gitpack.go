package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/memory"

	"towline.dev/towline/pkg/fleet"
)

// Limits of what is in a pack.
const (
	MaxObjects     = 200_000   // folders and files
	MaxObjectBytes = 256 << 20 // of all that a pack unpacks to, and of what its changes make
)

// packLimits are those of one pack.
type packLimits struct {
	objects uint32
	bytes   int64
}

// readObjects makes the objects of a pack. All of it is looked at before the first one is made, so that a small pack cannot grow to
// more than there is room for.
func readObjects(ctx context.Context, packed []byte, most packLimits) (*memory.Storage, error) {
	if err := scanPack(ctx, packed, most); err != nil {
		return nil, err
	}
	store := memory.NewStorage()
	parser, err := packfile.NewParserWithStorage(packfile.NewScanner(&packReader{bytes.NewReader(packed), ctx}), store)
	if err != nil {
		return nil, damagedPack(err)
	}
	if _, err = parser.Parse(); ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, damagedPack(err)
	}
	return store, nil
}

// packReader reads nothing any more when its context has ended, so that what is made of it ends, too.
type packReader struct {
	*bytes.Reader
	ctx context.Context
}

// Read implements io.Reader.
func (r *packReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// scanPack refuses a pack that unpacks to too much, or makes too much of that. Each object counts before it is unpacked.
func scanPack(ctx context.Context, packed []byte, most packLimits) error {
	s := packfile.NewScanner(&packReader{bytes.NewReader(packed), ctx})
	_, count, err := s.Header()
	if err != nil {
		return damagedPack(err)
	}
	if count > most.objects {
		return manyObjects("has %d files and folders in its commits; at most %d are taken", count, most.objects)
	}
	left, seen := most.bytes, map[plumbing.Hash]bool{}
	for range count {
		if err := scanObject(s, most, &left, seen); err != nil && ctx.Err() == nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	if _, err := s.Checksum(); err != nil {
		return damagedPack(err)
	}
	return nil
}

// scanObject looks at the next object, for which so many bytes are left. A change counts by what it is and by what it makes: either may be
// small for the other. Seen are the objects that are no change: the parser makes all changes of one anew for each time that it is there.
func scanObject(s *packfile.Scanner, most packLimits, left *int64, seen map[plumbing.Hash]bool) error {
	h, err := s.NextObjectHeader()
	if err != nil {
		return damagedPack(err)
	}
	if h.Length < 0 || h.Length > most.bytes {
		return manyObjects("has a file of %d bytes; at most %d are taken in all", h.Length, most.bytes)
	}
	if *left -= h.Length; *left < 0 {
		return manyObjects("has more than %d MiB of files", most.bytes>>20)
	}
	var head deltaHead
	hash := plumbing.NewHasher(h.Type, h.Length)
	if n, _, err := s.NextObject(io.MultiWriter(&head, hash)); err != nil || n != h.Length {
		return damagedPack(errors.Join(err, fmt.Errorf("an object has %d bytes, and says %d", n, h.Length)))
	}
	if h.Type != plumbing.OFSDeltaObject && h.Type != plumbing.REFDeltaObject {
		is := hash.Sum()
		if seen[is] {
			return damagedPack(fmt.Errorf("object %s is there twice", is))
		}
		seen[is] = true
		return nil
	}
	size, err := head.target()
	if err != nil {
		return err
	}
	if *left -= size; *left < 0 {
		return manyObjects("has more than %d MiB of files", most.bytes>>20)
	}
	return nil
}

// deltaHead keeps the first bytes of an object that says how another one is changed: they tell how large it will be.
type deltaHead struct{ first []byte }

func (d *deltaHead) Write(p []byte) (int, error) {
	if room := 2*binary.MaxVarintLen64 - len(d.first); room > 0 {
		d.first = append(d.first, p[:min(room, len(p))]...)
	}
	return len(p), nil
}

// target is the size of what the change makes.
func (d *deltaHead) target() (int64, error) {
	_, n := binary.Uvarint(d.first)
	if n <= 0 {
		return 0, damagedPack(fmt.Errorf("a change has no sizes"))
	}
	size, n := binary.Uvarint(d.first[n:])
	if n <= 0 || size > MaxObjectBytes {
		return 0, manyObjects("has a file of more than %d MiB", MaxObjectBytes>>20)
	}
	return int64(size), nil
}

func damagedPack(err error) error {
	return fleet.Errorf(fleet.ErrCorrupt, "the server sends a damaged pack: %s", clip(err.Error()))
}

func manyObjects(format string, args ...any) error {
	return fleet.Errorf(fleet.ErrExhausted, format+": put only what is to be delivered into the repository", args...)
}
