// Package state keeps the agent's own records as named bytes: in files under a locked directory, or in Secrets of the
// workload cluster. It owns atomicity, durability and the check of what it reads back; it must not know what the bytes
// mean.
package state

import (
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Tenure says of which cluster a state is, and under which Lease there it is written.
type Tenure struct {
	// Cluster is the UID of its kube-system namespace.
	Cluster string `json:"cluster"`
	// Epoch counts the holders of the Lease; it only grows.
	Epoch uint64 `json:"epoch"`
}

// Store is durable storage of named bytes. Names are words joined by '/'. All methods are safe for concurrent use.
type Store interface {
	// Tenure is the one that was taken last, by whatever process; the zero Tenure if there was none.
	Tenure(ctx context.Context) (Tenure, error)
	// Take makes the state this process's. What is read before may change; after it every write of a process with an
	// older epoch fails or counts for nothing, and so does every write of this one once a newer epoch took it:
	// fleet.ErrStale. The state of another cluster is fleet.ErrPrecondition.
	Take(ctx context.Context, t Tenure) error
	// Read returns what was written last; a name that is not there is fleet.ErrNotFound, damaged bytes are
	// fleet.ErrCorrupt. ErrUnread says that it may be there, and be read the next time.
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

// ErrUnread is of a read that nobody has answered who knows the state.
var ErrUnread = errors.New("the state was not read")

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

const tenureName = "tenure"

// follows says why a tenure must not follow an older one; nil: it may.
func (t Tenure) follows(old Tenure) error {
	switch {
	case old.Cluster != "" && old.Cluster != t.Cluster:
		return fleet.Errorf(fleet.ErrPrecondition, "it is of the cluster with UID %s, and this is the cluster with UID %s", old.Cluster, t.Cluster)
	case old.Epoch > t.Epoch:
		return superseded(old.Epoch, t.Epoch)
	}
	return nil
}

func superseded(newer, mine uint64) error {
	return fleet.Errorf(fleet.ErrStale, "an agent with epoch %d of the lease has it, this one had epoch %d", newer, mine)
}

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
