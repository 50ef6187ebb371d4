// Package tracker folds what an agent reported about a sync into what the hub says about a module in a cluster, and
// finds what garbage collection may forget. It is pure; it must not know how reports arrive or where trackers are kept.
package tracker

import (
	"slices"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// Input is all that is known about one module in one cluster.
type Input struct {
	// Desired is what the cluster should run; nil when the module leaves it.
	Desired *fleet.Sync
	// Problem is why the hub cannot give the cluster what was assigned, such as a binding without a value.
	Problem string
	// Tombstone is set while the module leaves.
	Tombstone *fleet.Tombstone
	// Before is what is carried out before the cluster gets Desired: the removal of a module that had the name and was deleted.
	Before *fleet.Tombstone
	// Observed is the newest accepted report, of whatever generation; nil: none yet.
	Observed *fleet.SyncStatus
	// Since is when the observed state began. It dates nothing but what Observed says.
	Since time.Time
	// Connected says that the agent has a live session and sees its cluster. What is observed counts only then.
	Connected bool
	// Blind is why an agent that has a live session does not see its cluster; nil: it does, or has none.
	Blind *fleet.Condition
	// Unheard says that the agent has a live session, and that Observed is from before and was not said again in it.
	Unheard bool
	// Regressed says that the agent has seen a newer store of the hub than there is, and is told nothing: generations were given a
	// second time since, so that Observed speaks of another time. Such an agent is Unheard.
	Regressed bool
	// Accepted says that a person has accepted that: it ends as soon as the agent is there again.
	Accepted bool
	// LastHeard is when the agent was heard of last, while it is not connected or unheard.
	LastHeard time.Time
	// ClusterLeaves says that the cluster leaves the fleet, so that its agent is told to remove all that it has, or to let go of it, by no tombstone.
	ClusterLeaves bool
	// Refused is the agent's answer if it could not take what it was sent: the removal that comes before, the sync, or the tombstone.
	Refused string
	// Unable is what the agent that is connected cannot do of the sync; empty: nothing.
	Unable string
}

// Tracker is what the hub says about one module in one cluster.
type Tracker struct {
	Sync   fleet.SyncState
	Health fleet.Health
	// Ready: the report speaks of the generation and bundle wanted now, every object is applied as that says, and every
	// object is healthy (DESIGN §1.3). One that drifts since then is OutOfSync, but that is no reason to call it unready:
	// either a policy leaves it so, or it is being corrected. The same holds of one that somebody deleted, if the agent says
	// that a policy leaves it so.
	Ready bool
	// Held: nothing is written by order of a person, and all that is wanted was written before. It is not Ready, for nobody
	// corrects what changes, but it is not on its way anywhere either.
	Held bool
	// HeldWell: it is Held, and every object is healthy, or deleted and left so by a policy, as for Ready.
	HeldWell bool
	// Altered: something that is held was changed by somebody, so that how it does says nothing of what the module has there.
	Altered bool
	// Current: the report speaks of the generation and bundle wanted now.
	Current bool
	// Written: by that report every object of the sync was applied as it says, though one may have been changed by others since.
	Written bool
	// Failed: it cannot get there by itself.
	Failed   bool
	Removing bool
	// Removed: the agent confirmed that nothing is left; of a module that comes after a deleted one, that nothing of that is.
	Removed bool
	Reason  string
	Message string
	Counts  Counts
	// Since is since when it stands so: by the report, if that says how, or since its cluster was heard of last. Zero: nobody noted it, as of what
	// the hub itself says of an assignment.
	Since time.Time
	// Away: the cluster cannot be seen.
	Away bool
	// Ahead: its agent has seen a newer store of the hub, and is told nothing, so that nobody knows what it has.
	Ahead bool
	// Was is the last word of a cluster that cannot be seen, or is not heard yet; nil: it is seen, or there is no word of what is wanted now.
	Was *Was
	// Then is the same of whatever was wanted when it was heard.
	Then *Was
}

// Was is how a module stood when its cluster was last heard of.
type Was struct {
	Sync   fleet.SyncState
	Health fleet.Health
	Ready  bool // Tracker.Fine
	// Altered as Tracker.Altered.
	Altered bool
	Counts  Counts
}

// Counts are exact, whatever lists are cut. Of a cluster that cannot be seen only Objects and Extra are known.
type Counts struct {
	Objects, Healthy, Progressing, Bad, Drifted, Extra int
	// Unjudged objects are Healthy only for want of anything to judge them by.
	Unjudged int
}

// Fold is the tracker for an input. Everything that says how a module stands in a cluster comes from here: what cannot be
// seen is Unknown, whatever was reported last (DESIGN §1.11).
func Fold(in Input) Tracker {
	t := fold(in)
	t.Away, t.Ahead = !in.Connected, in.Regressed && !in.Accepted
	if in.Seen() || !t.Current && !t.Away && !in.Regressed { // one that is regressed is sent nothing, so that is not on its way
		return t
	}
	return asLastHeard(in, t)
}

// Seen reports that what is observed is the word of an agent that is there now.
func (in Input) Seen() bool { return in.Connected && !in.Unheard }

// asLastHeard takes from a tracker all that only the agent can say, and keeps it as its last word. What the hub itself
// knows stays: what was assigned, why it could not be, and that the agent confirmed a removal.
func asLastHeard(in Input, t Tracker) Tracker {
	if then, ok := lastWord(in, t); ok {
		t.Was = then.was()
		t.Then = t.Was
	} else if o := in.Observed; o != nil && !in.Regressed && !o.Bundle.IsZero() && o.Phase != fleet.PhaseStray {
		in.Desired = &fleet.Sync{Module: o.Module, Generation: o.Generation, Bundle: o.Bundle, Objects: len(o.States), Watched: len(o.Watched)}
		in.Unable = ""
		t.Then = foldCurrent(in, Tracker{Sync: fleet.SyncOutOfSync, Health: fleet.HealthProgressing}).was()
	}
	t.Counts = Counts{Objects: t.Counts.Objects, Extra: t.Counts.Extra}
	t.Ready, t.Held, t.HeldWell, t.Altered = false, false, false, false
	if !in.LastHeard.IsZero() {
		t.Since = in.LastHeard
	}
	switch {
	case t.Removing && (t.Removed || in.Problem != "" || t.Reason == fleet.TrackerRefused):
	case t.Removing:
		if t.Reason, t.Message = unseen(in), ""; in.Blind != nil {
			t.Message = in.Blind.Message
		}
	default:
		t.Sync, t.Health = fleet.SyncUnknown, fleet.HealthUnknown
		if in.Problem == "" && in.Refused == "" {
			t.Failed = false
			t.Reason = unseen(in)
			switch {
			case in.Blind != nil:
				t.Message = in.Blind.Message
			case t.Was == nil:
				t.Message = ""
			}
		}
	}
	return t
}

// was is how it stands, as a last word.
func (t Tracker) was() *Was {
	return &Was{Sync: t.Sync, Health: t.Health, Ready: t.Fine(), Altered: t.Altered, Counts: t.Counts}
}

// lastWord is the tracker by what was reported last. That is of how the cluster stood, whatever the hub has noted since without a word from
// it: a hold, or a value that it lost, changes nothing there. What was said of other objects is no word of these.
func lastWord(in Input, t Tracker) (Tracker, bool) {
	switch {
	case t.Current:
		return t, true
	case in.Desired == nil || in.Tombstone != nil || in.Before != nil || in.Observed == nil || in.Regressed:
		return t, false
	case in.Desired.Bundle.IsZero() || in.Observed.Bundle != in.Desired.Bundle || in.Observed.Phase == fleet.PhaseStray:
		return t, false
	}
	return foldCurrent(in, Tracker{Sync: fleet.SyncOutOfSync, Health: fleet.HealthProgressing}), true
}

// unseen says why nothing is known now.
func unseen(in Input) (reason string) {
	switch {
	case in.Blind != nil:
		return fleet.TrackerNotSeen
	case in.Connected && in.Regressed:
		return fleet.TrackerRegressed
	case in.Connected:
		return fleet.TrackerNotHeard
	}
	return fleet.TrackerDisconnected
}

func fold(in Input) Tracker {
	switch {
	case in.Tombstone != nil:
		return foldTombstone(in)
	case in.Desired == nil:
		return Tracker{Sync: fleet.SyncUnknown, Health: fleet.HealthUnknown, Reason: fleet.TrackerNotAssigned}
	}
	t := Tracker{Sync: fleet.SyncOutOfSync, Health: fleet.HealthProgressing}
	t.Counts.Objects = in.Desired.Objects + in.Desired.Watched
	switch {
	case in.Problem != "":
		t.Health, t.Failed, t.Reason, t.Message = fleet.HealthDegraded, true, fleet.TrackerCannotAssign, in.Problem
		return t
	case in.Before != nil:
		return foldBefore(in, t)
	case in.Refused != "":
		t.Health, t.Failed, t.Reason, t.Message = fleet.HealthDegraded, true, fleet.TrackerRefused, in.Refused
		return t
	case in.goesWithCluster():
		t.Health, t.Reason, t.Message, t.Since = fleet.HealthTerminating, fleet.TrackerLeaving, in.Observed.Message, in.Since
		if in.Observed.Reason != fleet.TrackerRemoving {
			t.Reason = in.Observed.Reason
		}
		return t
	case !in.Reported():
		t.Reason = fleet.TrackerSending
		return t
	}
	return foldCurrent(in, t)
}

// goesWithCluster reports that the agent is at it to remove what was wanted, or to let go of it, for its cluster leaves the fleet. It says so of the
// generation that it had by then, also where the hub has given another one since.
func (in Input) goesWithCluster() bool {
	o := in.Observed
	return in.ClusterLeaves && o != nil && o.Bundle.IsZero() && len(o.States) == 0 &&
		(o.Phase == fleet.PhaseRemoving || o.Phase == fleet.PhaseRemoved || o.Phase == fleet.PhaseHeld)
}

func current(want fleet.Sync, have fleet.SyncStatus) bool {
	return have.Generation == want.Generation && have.Bundle == want.Bundle && have.Phase != fleet.PhaseStray
}

// foldBefore is a module that waits until what had its name is removed.
func foldBefore(in Input, t Tracker) Tracker {
	left := foldTombstone(Input{Tombstone: in.Before, Observed: in.Observed, Since: in.Since, Refused: in.Refused})
	t.Removed, t.Since = left.Removed, left.Since
	t.Counts.Extra = left.Counts.Extra
	t.Counts.Objects += left.Counts.Extra
	t.Reason, t.Message = fleet.TrackerRemovingFirst, left.Message
	if left.Reason == fleet.TrackerRefused { // it does not come about by itself, so neither does what waits for it
		t.Health, t.Failed, t.Reason = fleet.HealthDegraded, true, fleet.TrackerRefused
		t.Message = "what a deleted module of this name left here is not removed: " + in.Refused
	}
	return t
}

func foldTombstone(in Input) Tracker {
	t := Tracker{Sync: fleet.SyncOutOfSync, Health: fleet.HealthTerminating, Removing: true, Reason: reasonOf(in.Tombstone)}
	o := in.Observed
	if in.Problem != "" {
		// Assigned again before the removal is confirmed, but not assignable.
		t.Failed, t.Reason, t.Message = true, fleet.TrackerCannotAssign, in.Problem
	}
	if o == nil || in.Leaving() {
		if in.Refused != "" && !t.Failed {
			t.Reason, t.Message = fleet.TrackerRefused, in.Refused
		}
		if o != nil {
			t.Counts.Extra = in.leavingObjects() + o.Extra()
			t.Counts.Objects = t.Counts.Extra
		}
		return t
	}
	t.Removed = o.Phase == fleet.PhaseRemoved
	t.Counts.Extra, t.Counts.Objects = o.Extra(), o.Extra()
	if t.Failed {
		return t
	}
	t.Since, t.Message = in.Since, o.Message
	if o.Reason != "" {
		t.Reason = o.Reason
	}
	return t
}

func foldCurrent(in Input, t Tracker) Tracker {
	o := in.Observed
	t.Current, t.Since = true, in.Since
	states := o.States
	if len(o.Watched) > 0 {
		states = slices.Concat(o.States, o.Watched)
	}
	t.Counts = Count(states, o.Extra())
	t.Counts.Objects += max(0, in.Desired.Objects+in.Desired.Watched-len(states)) // of a sync that the agent cannot read it has none
	worst, missing, ready := fleet.HealthHealthy, false, true
	synced := len(o.States) == in.Desired.Objects && len(o.Watched) == in.Desired.Watched
	applied, left := synced, synced
	for i, s := range states {
		switch {
		case s.Uncounted:
		case s.LeftMissing() && !fails(o, i):
			missing = true
		case s.Health.Worse(worst):
			worst = s.Health
		}
		ready = ready && (s.Health == fleet.HealthHealthy || s.Health == fleet.HealthSuspended || s.LeftMissing() || s.Uncounted)
		synced = synced && s.Sync == fleet.SyncSynced
		applied = applied && (s.Sync == fleet.SyncSynced || drifted(s))
		left = left && (s.Sync == fleet.SyncSynced || s.Sync == fleet.SyncOutOfSync && s.Drift == fleet.DriftDrifted)
		t.Altered = t.Altered || s.Drift == fleet.DriftHeld
	}
	if missing && ready { // else it is not that which the module is not ready for
		worst = fleet.HealthMissing
	}
	t.Health, t.Reason, t.Message = worst, o.Reason, o.Message
	for _, x := range o.Exceptions {
		if t.Message == "" && (x.Ordinal >= len(states) || !states[x.Ordinal].Fine()) {
			t.Reason, t.Message = x.Reason, x.Message
		}
	}
	t.Written = written(in, o)
	t.Held = left && o.Phase == fleet.PhaseHeld // under a hold an agent calls Drifted what a policy leaves so, and nothing else
	t.HeldWell = t.Held && ready
	if synced && (o.Phase == fleet.PhaseApplied || t.Held) {
		t.Sync = fleet.SyncSynced
	}
	t.Failed = o.Phase == fleet.PhaseFailed
	t.Ready = o.Ready && o.Phase == fleet.PhaseApplied && applied && ready
	switch {
	case o.Phase == fleet.PhaseFailed:
		t.Health = fleet.HealthDegraded
	case !t.Ready && !t.Held && (worst == fleet.HealthHealthy || worst == fleet.HealthSuspended), worst == fleet.HealthMissing && o.Phase == fleet.PhaseApplying:
		// What is missing because its turn has not come is on its way.
		t.Health = fleet.HealthProgressing
	}
	if in.Unable != "" && !t.Failed {
		// What it says is not what the module asks for.
		t.Ready, t.HeldWell, t.Health, t.Reason, t.Message = false, false, fleet.HealthUnknown, fleet.TrackerTooOld, in.Unable
		t.Since = time.Time{}
	}
	return t
}

// fails reports that the agent says of an object why it cannot be made again.
func fails(o *fleet.SyncStatus, ordinal int) bool {
	return slices.ContainsFunc(o.Exceptions, func(x fleet.ObjectException) bool {
		return x.Ordinal == ordinal && x.Reason != fleet.ObjectMissing && x.Reason != fleet.ObjectHeld
	})
}

// written goes by the phase, which knows what was written before a watch has shown it, and else by the objects, of which none tells nothing: while
// drift is corrected the phase is that of a sync that is on its way.
func written(in Input, o *fleet.SyncStatus) bool {
	if len(o.States) != in.Desired.Objects || o.Phase == fleet.PhaseStray {
		return false
	}
	return o.Phase == fleet.PhaseApplied || len(o.States) > 0 && !slices.ContainsFunc(o.States, func(s fleet.ObjectState) bool {
		return s.Sync != fleet.SyncSynced && (s.Sync != fleet.SyncOutOfSync || s.Drift != fleet.DriftDrifted)
	})
}

// drifted reports that an object was applied and changed by somebody afterwards. Of what was not applied the agent says
// that it fails, or is still at it.
func drifted(s fleet.ObjectState) bool {
	return s.Sync == fleet.SyncOutOfSync && (s.Drift == fleet.DriftDrifted || s.Drift == fleet.DriftConflict)
}

// Count counts the states.
func Count(states []fleet.ObjectState, extra int) Counts {
	c := Counts{Objects: len(states) + extra, Extra: extra}
	for _, s := range states {
		switch s.Health {
		case fleet.HealthHealthy, fleet.HealthSuspended:
			c.Healthy++
		case fleet.HealthDegraded, fleet.HealthMissing:
			c.Bad++
		default:
			c.Progressing++
		}
		if s.Unjudged != "" {
			c.Unjudged++
		}
		if s.Drift != fleet.DriftInSync && s.Drift != fleet.DriftIgnored {
			c.Drifted++
		}
	}
	return c
}

// Fine reports that what is wanted is there and healthy. A hold takes nothing from that: it stops what comes next.
func (t Tracker) Fine() bool { return t.Ready || t.HeldWell }

// Proves reports that it is fine as the module has it there. What is held and was changed by somebody may be fine by that change.
func (t Tracker) Proves() bool { return t.Ready && !t.Altered }

// DoesWell reports the same of one that may be held, by its last word.
func (t Tracker) DoesWell() bool {
	if t.Was != nil {
		return t.Was.Ready && !t.Was.Altered
	}
	return t.Fine() && !t.Altered
}

// Class is the column of a table that a tracker counts in: every tracker is in exactly one.
type Class int

// Classes of trackers.
const (
	Healthy Class = iota
	Progressing
	Bad
	Away  // nobody knows how it does
	Ahead // nor here, for its agent has seen a newer store of the hub: what ends it is a person's word, whether the agent is there or not
)

// Classify puts a tracker in its column.
func Classify(t Tracker) Class {
	switch {
	case t.Ahead:
		return Ahead
	case t.Away:
		return Away
	case t.Fine():
		return Healthy
	case t.Failed || t.Health == fleet.HealthDegraded || t.Health == fleet.HealthMissing:
		return Bad
	default:
		return Progressing
	}
}
