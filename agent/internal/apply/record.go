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
	// Made is of the last write, where the object's kind may use others (plan.MayUse); nil: it is not known. Before is of the write before,
	// until the object was seen ready as the last one made it, if that made it another one; nil: it was.
	Made, Before *Made
	// Unmet is of what others have of a used object; nil: of nothing.
	Unmet *[]plan.Unmet
	// Hidden are the values that nobody may be shown, and that the object may have by our writes, encrypted; empty: it has none.
	Hidden []byte
	// Exempt is what a policy leaves of the object; nil: nothing.
	Exempt *Exempt
	// Algorithm made Base.
	Algorithm int
	// Trying is the creation of an object that may run and be gone before its answer comes; nil: none is under way, as for nearly all.
	Trying *Trying
}

// Trying is what is being made, and since when by the API server's clock, in seconds.
type Trying struct {
	Content fleet.Digest
	Since   int64
}

// ParseVersion is a resource version as a number, so that two of one kind can be ordered; 0 if it is none.
func ParseVersion(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Makes notes what the object is made by after a write of ours, and what it was before: of an object that was never ready as the write
// before had it that is what it was ready as last.
func (r *Record) Makes(live map[string]any, before *Record) {
	if !plan.MayUse(r.ID) {
		return
	}
	r.Made = MadeBy(live, r.Paths)
	switch {
	case before == nil || before.UID != r.UID:
	case before.Before != nil:
		r.Before = before.Before
	case before.Made != nil && (r.Made == nil || *r.Made != *before.Made):
		r.Before = before.Made
	}
}

// Stays reports that a write left an object of a custom kind what it was, and that it was no other since it was ready: by whichever module it was
// written, nothing is left that was made by it otherwise. Workloads of Kubernetes tell that in their status.
func (r *Record) Stays(before *Record) bool {
	return plan.IsCustom(r.ID) && before != nil && before.UID == r.UID && before.Made != nil && before.Before == nil && !r.Content.IsZero() && before.Content == r.Content
}

// ReplicasDiffer reports that there are other live replicas than the module wants.
func (r *Record) ReplicasDiffer(v Values) bool {
	return r.Base.Replicas >= 0 && v.Replicas != r.Base.Replicas
}

// ReplicasTaken reports that there are other live replicas than the module wants, which no write of ours set.
func (r *Record) ReplicasTaken(v Values) bool {
	return r.ReplicasDiffer(v) && v.Holding&holdsReplicas == 0
}

// Match says how live values compare to those of our last write. replicasFree says that an autoscaler has taken
// /spec/replicas.
//
// Whoever changes a value of ours takes the path from us. So, a value that is another one at a path that is still ours
// was written by us, as are paths that are ours beyond those of the record.
func (r *Record) Match(v Values, replicasFree bool) plan.Match {
	scaled := !replicasFree && r.ReplicasDiffer(v)
	same := v.Hash == r.Base.Hash && !scaled
	less := v.Holding&(holdsLess|holdsNone) != 0 || v.Holding&holdsLessReplicas != 0 && !replicasFree ||
		scaled && v.Holding&holdsReplicas == 0
	switch {
	case r.Base.Holding == holdsNone && same: // a server that notes no managers
		return plan.MatchYes
	case r.Base.Holding == holdsNone:
		return plan.MatchNo
	case v.Holding&holdsMore != 0:
		return plan.MatchUnsettled
	case same && less:
		return plan.MatchTaken
	case same:
		return plan.MatchYes
	case less:
		return plan.MatchNo
	default:
		return plan.MatchUnsettled
	}
}
