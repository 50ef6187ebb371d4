package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/storage/memory"

	"towline.dev/towline/pkg/fleet"
)

// Limits of what is in a pack.
const (
	MaxObjects     = 200_000   // folders and files
	MaxObjectBytes = 256 << 20 // of all of them
)

// readObjects makes the objects of a pack. All of it is looked at before the first one is made, so that a small pack cannot grow to
// more than there is room for.
func readObjects(ctx context.Context, packed []byte) (*memory.Storage, error) {
	if err := scanPack(ctx, packed); err != nil {
		return nil, err
	}
	store := memory.NewStorage()
	parser, err := packfile.NewParserWithStorage(packfile.NewScanner(bytes.NewReader(packed)), store)
	if err != nil {
		return nil, damagedPack(err)
	}
	if _, err := parser.Parse(); err != nil {
		return nil, damagedPack(err)
	}
	return store, ctx.Err()
}

func scanPack(ctx context.Context, packed []byte) error {
	s := packfile.NewScanner(bytes.NewReader(packed))
	_, count, err := s.Header()
	if err != nil {
		return damagedPack(err)
	}
	if count > MaxObjects {
		return manyObjects("has %d files and folders in its commits; at most %d are taken", count, MaxObjects)
	}
	var total int64
	for range count {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := s.NextObjectHeader()
		if err != nil {
			return damagedPack(err)
		}
		if h.Length < 0 || h.Length > MaxObjectBytes {
			return manyObjects("has a file of %d bytes; at most %d are taken in all", h.Length, MaxObjectBytes)
		}
		var head deltaHead
		if _, _, err := s.NextObject(&head); err != nil {
			return damagedPack(err)
		}
		size := h.Length
		if h.Type == plumbing.OFSDeltaObject || h.Type == plumbing.REFDeltaObject {
			if size, err = head.target(); err != nil {
				return err
			}
		}
		if total += size; size > MaxObjectBytes || total > MaxObjectBytes {
			return manyObjects("has more than %d MiB of files", MaxObjectBytes>>20)
		}
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
