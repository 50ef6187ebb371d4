package apply

import (
	"strconv"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Record is what the inventory knows about an object. Records are never changed in place.
type Record struct {
	plan.Record
	// Content is the digest of what we last applied, after substitution and without marks.
	Content fleet.Digest
	// Paths are the fields that are ours, and Base their values as the server answered to our last write.
	Paths *PathSet
	Base  Values
	// Algorithm made Base.
	Algorithm int
}

// ParseVersion is a resource version as a number, so that two of one kind can be ordered; 0 if it is none.
func ParseVersion(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// SameAsBase reports whether live values are those of our last write. replicasFree says that an autoscaler has taken
// /spec/replicas.
func (r *Record) SameAsBase(v Values, replicasFree bool) bool {
	return v.Hash == r.Base.Hash && (replicasFree || v.Replicas == r.Base.Replicas)
}
