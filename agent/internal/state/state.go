// Package state keeps the agent's own records as named bytes: in files under a locked directory, or in Secrets of the
// workload cluster. It owns atomicity, durability and the check of what it reads back; it must not know what the bytes
// mean.
package state

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Store is durable storage of named bytes. Names are words joined by '/'. All methods are safe for concurrent use.
type Store interface {
	// Read returns what was written last; a name that is not there is fleet.ErrNotFound, damaged bytes are
	// fleet.ErrCorrupt.
	Read(ctx context.Context, name string) ([]byte, error)
	// Write is atomic, and durable when it returns.
	Write(ctx context.Context, name string, data []byte) error
	// WriteAll writes several: the last is not seen before the others are durable, and all are when it returns.
	WriteAll(ctx context.Context, items ...Item) error
	// Remove is no error for what is not there.
	Remove(ctx context.Context, name string) error
	// List returns the names that begin with prefix, sorted.
	List(ctx context.Context, prefix string) ([]string, error)
}

// Item is what to write under a name.
type Item struct {
	Name string
	Data []byte
}

const (
	magic      = "towline.state/1\n"
	maxName    = 512
	maxValue   = 256 << 20
	headerSize = len(magic) + crc32.Size
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts a header with a checksum before the data.
func seal(data []byte) []byte {
	out := make([]byte, 0, headerSize+len(data))
	out = append(out, magic...)
	out = binary.BigEndian.AppendUint32(out, crc32.Checksum(data, castagnoli))
	return append(out, data...)
}

func unseal(name string, b []byte) ([]byte, error) {
	switch {
	case len(b) < headerSize || string(b[:len(magic)]) != magic:
		return nil, fleet.Errorf(fleet.ErrCorrupt, "state %s: is damaged or of a newer version; update the agent, or remove its state and join again", name)
	case binary.BigEndian.Uint32(b[len(magic):]) != crc32.Checksum(b[headerSize:], castagnoli):
		return nil, fleet.Errorf(fleet.ErrCorrupt, "state %s: checksum does not match: the bytes are damaged", name)
	}
	return b[headerSize:], nil
}

func checkName(name string) error {
	if name == "" || len(name) > maxName {
		return fleet.Errorf(fleet.ErrInvalid, "state: a name has 1 to %d bytes, not %d", maxName, len(name))
	}
	for segment := range strings.SplitSeq(name, "/") {
		if segment == "" {
			return fleet.Errorf(fleet.ErrInvalid, "state %q: has an empty word between slashes", name)
		}
	}
	return nil
}

func checkWrite(name string, data []byte) error {
	if len(data) > maxValue {
		return fleet.Errorf(fleet.ErrExhausted, "state %s: %d bytes; at most %d", name, len(data), maxValue)
	}
	return checkName(name)
}

func notFound(name string) error {
	return fleet.Errorf(fleet.ErrNotFound, "state %s: not found", name)
}
