package tracker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Row is one object of a module in a cluster.
type Row struct {
	ID      fleet.ObjectID
	Version string
	State   fleet.ObjectState
	// Extra rows are of objects that the sync does not list, and Revision is the last one that listed them, if the agent knows.
	Extra    bool
	Revision int64
	// Watched rows are of what is somebody else's.
	Watched bool
	Reason  string
	Message string
	// Field, Want, Live, ChangedBy, Seen, First and Last are as in fleet.ObjectException.
	Field, Want, Live string
	ChangedBy         string
	Seen              int
	First, Last       time.Time
	// Since is since when the object stands so. Of most the agent says no time: what is healthy in a module that is ready has been since that is;
	// else it is zero, for nobody noted it.
	Since time.Time
	// Was is the last word of a cluster that cannot be seen, or is not heard yet; nil: there is none. All from Reason to Last is of then, too,
	// and Since is when that was.
	Was *fleet.ObjectState
}

// Listed are the objects of a tracker by their names.
type Listed struct {
	// Entries are of the sync, and Watched what it only watches.
	Entries, Watched []fleet.BundleEntry
	// Left are those of the bundle that the agent reported last, of a module that is Leaving.
	Left []fleet.BundleEntry
}

// Rows lists every object of a tracker once, exact also with the agent away: the bundle's entries with the states last
// reported for that bundle, then what the sync only watches, then what is left of older revisions, or of a module that goes. Without a report
// for the bundle, or a cluster that can be seen, states are Unknown.
func Rows(in Input, l Listed) []Row {
	listed, extras := listedRows(in, l), extraRows(in, l)
	switch {
	case len(extras) == 0:
		return listed
	case in.removal() != nil: // what is there goes, whatever comes after it under the name
		return append(without(listed, extras), extras...)
	}
	return append(listed, without(extras, listed)...) // wanted again since that was reported
}

// without are the rows whose objects have no row among others.
func without(rows, others []Row) []Row {
	if len(rows) == 0 || len(others) == 0 {
		return rows
	}
	have := make(map[fleet.ObjectID]bool, len(others))
	for i := range others {
		have[others[i].ID] = !others[i].Watched
	}
	return slices.DeleteFunc(rows, func(r Row) bool { return have[r.ID] })
}

// listedRows are those of what the sync lists, and of what it only watches.
func listedRows(in Input, l Listed) []Row {
	rows := make([]Row, 0, len(l.Entries)+len(l.Watched))
	var states, watched []fleet.ObjectState
	reported := in.Reported() && !in.Leaving()
	if reported {
		states, watched = in.Observed.States, in.Observed.Watched
	}
	for i, e := range l.Entries {
		rows = append(rows, in.row(e, false, states, i))
	}
	for i, e := range l.Watched {
		r := in.row(e, false, watched, i)
		r.Watched = true
		rows = append(rows, r)
	}
	if reported {
		annotate(rows, in.Observed.Exceptions, in.Seen())
	}
	return rows
}

// row is that of the entry whose state is the i-th of a report; where that has none it is Unknown.
func (in Input) row(e fleet.BundleEntry, extra bool, states []fleet.ObjectState, i int) Row {
	r := Row{ID: e.ID, Version: e.Version, Extra: extra, State: unknownState(), Since: in.unseenSince()}
	if i < len(states) {
		r.set(in, states[i])
		r.Reason = states[i].Unjudged
	}
	return r
}

// extraRows are those of what is there and the sync does not list. Of a module that is Leaving that is all that it had by the last report.
func extraRows(in Input, l Listed) (rows []Row) {
	o := in.Observed
	if o == nil {
		return nil
	}
	if in.Leaving() {
		for i, e := range l.Left {
			if i < len(o.States) && o.States[i].Used {
				continue
			}
			r := in.row(e, true, o.States, i)
			r.Reason = in.leavingReason()
			rows = append(rows, r)
		}
	}
	var reported []Row
	for _, x := range o.Extras {
		r := Row{ID: x.ID, Version: x.Version, Extra: true, Revision: x.Revision, Reason: x.Reason, Message: x.Message, Since: in.unseenSince()}
		x.State.Drift = fleet.DriftUnknown // nobody compares it with anything
		r.set(in, x.State)
		reported = append(reported, r)
	}
	return append(rows, without(reported, rows)...)
}

// Reported reports that what is observed speaks of what is desired, whatever keeps the hub from assigning something newer.
func (in Input) Reported() bool {
	return in.Observed != nil && in.Desired != nil && current(*in.Desired, *in.Observed)
}

// Leaving reports that the module, or the one that had its name before, is to go and that the agent has not said yet how far that is: what
// it reported last is what there is.
func (in Input) Leaving() bool {
	t := in.removal()
	return t != nil && in.Observed != nil && in.Observed.Generation != t.Generation
}

// leavingObjects is how many objects of what the agent reported last are to go, or to be let go, with a module that is Leaving.
func (in Input) leavingObjects() (n int) {
	for _, s := range in.Observed.States {
		if !s.Used {
			n++
		}
	}
	return n
}

// removal is the tombstone of the module, or of the one that had its name before; nil: neither is to go.
func (in Input) removal() *fleet.Tombstone { return cmp.Or(in.Tombstone, in.Before) }

// leavingReason is said of what is there of a module that is Leaving.
func (in Input) leavingReason() string { return reasonOf(in.removal()) }

// reasonOf is what a tombstone does with the objects: takes them away, or leaves them.
func reasonOf(t *fleet.Tombstone) string {
	if t.Policy == fleet.DeleteOrphan {
		return fleet.TrackerReleasing
	}
	return fleet.TrackerRemoving
}

// set takes a reported state for what it is: the present one, or the last word.
func (r *Row) set(in Input, s fleet.ObjectState) {
	if s.Sync == fleet.SyncUnknown && s.Health == fleet.HealthUnknown {
		s.Drift = fleet.DriftUnknown // the agent does not see the object
	}
	if r.State = s; !in.Seen() {
		was := s // only here: one that is seen takes no memory
		r.State, r.Was = unknownState(), &was
		return
	}
	if !r.Extra && in.Observed.Ready && s.Fine() && s.Health == fleet.HealthHealthy {
		r.Since = in.Since
	}
}

// unseenSince is since when objects are Unknown because their cluster cannot be seen; zero: it can, or was never heard of.
func (in Input) unseenSince() time.Time {
	if in.Seen() {
		return time.Time{}
	}
	return in.LastHeard
}

// annotate adds what the agent says of some objects. The times are of how they stand while they are seen.
func annotate(rows []Row, exceptions []fleet.ObjectException, seen bool) {
	for _, x := range exceptions {
		if x.Ordinal < 0 || x.Ordinal >= len(rows) {
			continue
		}
		r := &rows[x.Ordinal]
		r.Reason, r.Message = x.Reason, strings.TrimPrefix(x.Message, r.ID.String()+": ") // the row says of what
		r.Field, r.Want, r.Live, r.ChangedBy, r.Seen = x.Field, x.Want, x.Live, x.ChangedBy, x.Seen
		r.First, r.Last = x.First, x.Last
		if seen && !x.Since.IsZero() {
			r.Since = x.Since
		}
	}
}

func unknownState() fleet.ObjectState {
	return fleet.ObjectState{Sync: fleet.SyncUnknown, Health: fleet.HealthUnknown, Drift: fleet.DriftUnknown}
}
