// Package backend is what a store stands on: an ordered map of bytes with one revision for all of it, guarded transactions,
// and a watch that can begin in the past. It owns that contract and what every backend and its users share: packing of
// transactions, elections within one process, and repeating what may be repeated. It must not know what the bytes mean:
// records, blobs and the read model are above it.
package backend

import (
	"context"
	"errors"
	"fmt"

	"towline.dev/towline/pkg/fleet"
)

// Backend is what a store stands on. Errors wrap fleet's sentinels: ErrUnavailable whenever a commit may or may not have
// happened, ErrExhausted when there is no space, ErrInvalid for what no retry can mend. A read that begins after a watch has
// handed out a revision is of that revision or a later one.
type Backend interface {
	// Commit puts the parts into one transaction and returns its revision, or the present one when nothing changed. Each
	// part stands for itself: its operations happen if its comparisons hold against the state before the transaction.
	// No two parts may touch the same key. It says which parts happened.
	Commit(ctx context.Context, parts []Part) (int64, []bool, error)
	// Get returns the keys that are there, as they were at the revision (0: now), and the present revision.
	Get(ctx context.Context, revision int64, keys ...string) (map[string]KV, int64, error)
	// Range returns a page of the keys with the prefix.
	Range(ctx context.Context, q RangeQuery) (Page, error)
	// Watch calls fn with what changed under the prefix, in order and complete, from the revision on. It returns when ctx
	// ends, or when the watch breaks: with ErrCompacted if the revision is too old.
	Watch(ctx context.Context, prefix string, from int64, fn func(Changes)) error
	// Progress asks that the watch says how far it is, even if nothing changed under its prefix.
	Progress(ctx context.Context) error
	// Revision is the present revision, read linearizably.
	Revision(ctx context.Context) (int64, error)
	// Elect blocks until the caller holds a key under the prefix that only one has at a time; value is what it holds.
	Elect(ctx context.Context, prefix string, value []byte) (Leadership, error)
	// Holder is the value of the key that Elect gave out under the prefix; false: nobody has it.
	Holder(ctx context.Context, prefix string) ([]byte, bool, error)
	// Announce puts a key that is there for as long as this process is: it goes at its Close, and, where others may share the backend,
	// some time after the process died or was cut off. One that was lost that way is put again as soon as that is possible.
	Announce(ctx context.Context, key string, value []byte) (Announcement, error)
	// Full is nil, or a fleet.ErrExhausted when the backend holds as much as it should. A backend that cannot tell is not.
	Full() error
	// Usage is how much it holds.
	Usage() Usage
	// Limits is what a transaction may hold.
	Limits() Limits
	// Close ends everything that runs for it.
	Close() error
}

// Usage is how much a backend holds.
type Usage struct {
	Bytes int64 // in use
	Limit int64 // at which it is full; 0: it cannot tell, as one of somebody else
}

// nearShare is the part of the limit from which people are warned: there is time then to make room, or to raise it.
const nearShare = 0.8

// NearlyFull reports that people should make room before anything is refused.
func (u Usage) NearlyFull() bool {
	return u.Limit > 0 && float64(u.Bytes) >= nearShare*float64(u.Limit)
}

func (u Usage) String() string {
	return fmt.Sprintf("%d MiB of %d MiB", u.Bytes>>20, u.Limit>>20)
}

// ErrCompacted says that a revision is no longer kept.
var ErrCompacted = errors.New("revision is compacted")

// ErrAnother says that something else answers than before, which has other contents. What it was asked to write was not written here.
var ErrAnother = fleet.Errorf(fleet.ErrUnavailable, "another store answers")

// Part is one of the independent pieces of a transaction.
type Part struct {
	If   []Compare
	Then []Op
}

// Size is what the part counts against Limits.Ops.
func (p Part) Size() int { return max(len(p.If), len(p.Then)) }

// Bytes is about what the part adds to a request.
func (p Part) Bytes() int {
	n := 0
	for _, o := range p.Then {
		n += len(o.Key) + len(o.Value) + OpOverhead
	}
	for _, c := range p.If {
		n += len(c.Key) + OpOverhead
	}
	return n
}

// OpOverhead is about what a request holds of an operation beside its key and value.
const OpOverhead = 32

// Compare is a condition on one revision of a key, or of several; a key that is not there has revision 0.
type Compare struct {
	Key      string
	Prefix   bool // it is of all keys that begin with Key, and holds if it holds of each that is there
	Created  bool // compares the create revision instead of the mod revision
	AtMost   bool // the revision is at most Revision, instead of equal
	Revision int64
}

// Holds reports whether the condition holds of the key as it is.
func (c Compare) Holds(kv KV) bool {
	got := kv.Mod
	if c.Created {
		got = kv.Create
	}
	if c.AtMost {
		return got <= c.Revision
	}
	return got == c.Revision
}

// Op writes or deletes a key.
type Op struct {
	Key    string
	Value  []byte
	Delete bool
}

// KV is a key with its value and revisions.
type KV struct {
	Key    string
	Value  []byte
	Mod    int64
	Create int64
}

// RangeQuery asks for a page.
type RangeQuery struct {
	Prefix   string
	After    string // only keys behind this one
	Revision int64  // 0: now
	Limit    int    // a backend may return more
	KeysOnly bool
}

// Page is a part of a range, ascending by key.
type Page struct {
	KVs      []KV
	Revision int64 // of the whole range
	More     bool
}

// Changes is what happened up to a revision. Without any it only says how far the watch is.
type Changes struct {
	Revision int64
	List     []Change
}

// Change is a put or a delete of a key.
type Change struct {
	KV
	Delete bool
}

// Limits is what a transaction may hold. With several parts, their number and the size of the largest count together.
type Limits struct {
	Ops   int
	Bytes int
}
