package plan

import "towline.dev/towline/pkg/fleet"

// RecordState says how far an object has become ours.
type RecordState string

// States of a record.
const (
	// Intent was noted before the first write; it proves nothing.
	Intent RecordState = "intent"
	// Owned was noted after a write of ours succeeded, with the object's UID.
	Owned RecordState = "owned"
	// Used is somebody else's: a Namespace that existed, and in which fields may be ours. It is never deleted.
	Used RecordState = "used"
)

// Unmet is a field that is wanted of a used object and that another manager, or another module, has otherwise.
type Unmet struct{ Pointer, By, Want, Live string }

// Record is what the inventory says about one object.
type Record struct {
	ID      fleet.ObjectID
	Version string
	Wave    int32
	Module  fleet.ModuleRef
	// From is the module that handed the object over and whose marks it carries until Module writes it; zero: none.
	From  fleet.ModuleRef
	State RecordState
	// UID of the object that we wrote.
	UID string
	// ResourceVersion is the answer to our last write; 0 if it is no number.
	ResourceVersion uint64
	// Want names what we last applied.
	Want fleet.Digest
	// Born is the generation under which the object first became ours, 0 if that was in an earlier lineage; Generation is
	// that of our last write. Both count in Lineage.
	Born, Generation, Lineage uint64
	// Prune and Delete are the object's policies when we last looked at it, and Named says that they name its kind; they
	// hold when a tombstone comes without a sync.
	Prune, Delete string
	Named         bool
	// Legacy says as Prune that keepLegacy keeps the object when it is dropped.
	Legacy bool
	// Shared says that the policies of its module let others share the object.
	Shared bool
	// Revision is the last one that listed the object in this cluster, noted when a newer one does not, or RevisionUnknown; 0: the
	// newest lists it.
	Revision int64
	// Found says that the inventory was lost and the object's marks are all that speaks for us: a sync's omission is not
	// enough to delete it, a person has to confirm. Asked says that it is on the list that one was shown last, before he confirmed
	// it: a confirm speaks of no other objects.
	Found, Asked bool
	// Fleeting says that the cluster takes the object away by itself when it has ended, and Outcome how that was.
	Fleeting bool
	Outcome  Outcome
	// Aggregated says that an API server of its own had the object, so that it may be there though its kind is not.
	Aggregated bool
	// Keepers are those who kept the object beside the module when it became the module's (Keepers).
	Keepers string
	// Scaler is a program that is no HorizontalPodAutoscaler and has the object's replicas (Scaling); empty: none has.
	Scaler string
	// Givers are the modules that handed the object over and may still have what its pods use, until it is through with what the module that
	// has it now makes of it (WithGiver); empty: none.
	Givers string
	// Deleting is of the word that decided to delete the object, noted before the first request; zero: none did.
	Deleting fleet.Age
	// Taking says that a DELETE of the object was noted before it was to be sent, and that the module has not applied the object since: whether
	// it drops the object, goes itself, or makes it again. An object that is gone went by that, as far as anybody knows.
	Taking bool
	// Unheard says that when that was noted a write which makes the object was on its way of which nobody had heard the answer, so that the object may
	// come to be though it is not there.
	Unheard bool
}

// RevisionUnknown stands for a revision of which there is no record.
const RevisionUnknown int64 = -1

// Tracker is the revision that listed the object last; 0: it is not known.
func (r Record) Tracker() int64 { return max(r.Revision, 0) }

// Root reports that a policy keeps the object as long as its module is there, or longer.
func (r Record) Root() bool {
	return r.Prune == fleet.PruneOnModuleDelete || r.Prune == fleet.PruneNever
}

// Goes reports that it was decided to delete the object.
func (r Record) Goes() bool { return r.Deleting != fleet.Age{} }

// LetGo reports that the object carries neither of our marks, as a release leaves it, and that one was noted before it was to be sent: the answer to that
// was lost.
func (r Record) LetGo(s Seen) bool {
	return r.Goes() && !r.Taking && s.UID == r.UID && s.Labels[fleet.HubLabel] == "" && s.Annotations[fleet.OwnerAnnotation] == ""
}

// Written reports that a write of ours to the object succeeded.
func (r Record) Written() bool { return r.State == Owned || r.State == Used }

// settled reports that the object carries the module's marks, as our last write left it: nothing has to be written anew whatever is
// wanted.
func (r Record) settled() bool {
	return r.State == Owned && !r.Want.IsZero() && r.From == fleet.ModuleRef{}
}

// Age of our last write.
func (r Record) Age() fleet.Age { return fleet.Age{Lineage: r.Lineage, Generation: r.Generation} }

// bornBefore reports that the object was ours before something was said.
func (r Record) bornBefore(a fleet.Age) bool {
	return fleet.Age{Lineage: r.Lineage, Generation: r.Born}.Compare(a) < 0
}

// At is the record after a write for a sync of that age: what was born in an earlier lineage is older than all of this one.
func (r Record) At(a fleet.Age) Record {
	if r.Lineage != a.Lineage {
		r.Born = 0
	}
	r.Lineage, r.Generation = a.Lineage, a.Generation
	return r
}

// Match says how the live values at our path set compare to those that the server answered to our last write.
type Match int

// Matches.
const (
	// MatchUnknown needs a look at the live object.
	MatchUnknown Match = iota
	// MatchYes means that nobody changed what is ours.
	MatchYes
	// MatchNo is drift.
	MatchNo
	// MatchTaken means that the values are as we left them, but that somebody else holds fields of ours, so that a later
	// revision could not take those away.
	MatchTaken
	// MatchUnsettled means that a write of ours was committed which is not the last that we know of: its answer was lost,
	// or we died before it came.
	MatchUnsettled
	// MatchContested means that something came after our last write which left fields to others: they may be free now.
	MatchContested
)

// Live is what is known of the object in the cluster.
type Live struct {
	// Known is false until the watch of the kind has synced in this process, or we read the object ourselves.
	Known  bool
	Exists bool
	// Confirmed says of an object that does not exist that a live GET said so. Watches show only what has our label, so
	// that their word that it is gone is a hint.
	Confirmed   bool
	UID         string
	Terminating bool
	Match       Match
	// Made says that it is another one than the record has and that the module made it, by what stands on it: the agent did not
	// live to note that.
	Made bool
}

// Facts are what Decide needs about one desired object.
type Facts struct {
	Module fleet.ModuleRef
	Want   fleet.Digest
	// Record is nil if the inventory has none.
	Record *Record
	Live   Live
	Policy fleet.Policy
	// Exempt is what of the object is left as it is.
	Exempt *Exempt
	// Read says of an object that is only to be read that it was, as it is now, and Differs that it was not as wanted when it was read last.
	Read, Differs bool
	// Hold stops every write.
	Hold bool
	// Yields says that another module of the cluster owns the object, whether it is here or not.
	Yields bool
	// Alike says of an object that is gone that the module lists it as when it was written, be there other values which it does not use, or another
	// hub whose label it is to carry.
	Alike bool
}

// Gone reports that the object which the record has is not there, as far as is known.
func (f Facts) Gone() bool {
	return f.Live.Known && (!f.Live.Exists || f.Live.UID != f.Record.UID)
}

// StaysGone reports that whatever else is wanted of an object that is gone is no reason to make it: a policy leaves what somebody deleted until a
// revision makes it. What the module itself was to delete, or had from another one, nobody deleted, nor what ran to its end.
func (f Facts) StaysGone() bool {
	r := f.Record
	return f.Alike && f.Policy.Drift != fleet.DriftCorrect && !r.Taking && !r.Goes() && r.From == fleet.ModuleRef{} && !r.MayHaveRun()
}

// Verb is what is to be done about an object.
type Verb string

// Verbs.
const (
	// Skip: it is as wanted.
	Skip Verb = "skip"
	// Wait: nothing can be said or done before something else happens.
	Wait Verb = "wait"
	// Create: apply, only if there is no such object.
	Create Verb = "create"
	// Apply: apply to the object that we know.
	Apply Verb = "apply"
	// Correct: apply again what somebody changed.
	Correct Verb = "correct"
	// Restore: create again what somebody deleted.
	Restore Verb = "restore"
	// Repeat: apply again, because another write of ours came after the last that is known.
	Repeat Verb = "repeat"
	// Keep: note that the object is as wanted, as it is.
	Keep Verb = "keep"
	// Look: read the live object, then decide again.
	Look Verb = "look"
	// Leave: it differs, and a policy or a person says not to write.
	Leave Verb = "leave"
	// Conflict: it is another module's.
	Conflict Verb = "conflict"
	// Read: it is only to be read: look whether it is there, and how.
	Read Verb = "read"
	// Share: it is another module's, and both say that it is shared: nothing is to be done.
	Share Verb = "share"
	// Use: it is another module's, and may be used as it is: look how that is.
	Use Verb = "use"
)

// Action is a verb with the drift to report meanwhile.
type Action struct {
	Verb  Verb
	Drift fleet.Drift
}

// Writes reports whether the verb leads to a write.
func (v Verb) Writes() bool {
	return v == Create || v == Apply || v == Correct || v == Restore || v == Repeat
}

// Makes reports whether the write makes an object that is not there.
func (v Verb) Makes() bool { return v == Create || v == Restore }

// Acts reports whether the verb leads to a request.
func (v Verb) Acts() bool { return v.Writes() || v == Look || v == Read || v == Use || v == Keep }

// Decide says what to do about one desired object.
func Decide(f Facts) Action {
	r := f.Record
	if f.Policy.Reads() {
		return reading(f)
	}
	if r != nil && r.Module != f.Module && IsNamespace(r.ID) {
		return Action{Use, fleet.DriftInSync}
	}
	if r != nil && r.Module != f.Module && r.Shared && r.Written() && f.Policy.Shares() {
		return Action{Share, fleet.DriftInSync}
	}
	if r != nil && r.Module != f.Module || r == nil && f.Yields {
		return Action{Conflict, fleet.DriftConflict}
	}
	if r == nil || !r.Written() {
		return unlessHeld(f, Create)
	}
	gone := f.Gone()
	leaving := f.Live.Known && !gone && f.Live.Terminating
	if r.Want != f.Want && !(gone && f.StaysGone()) {
		switch {
		case leaving:
			return Action{Wait, fleet.DriftInSync}
		case gone && f.Hold && !f.Live.Exists && !f.Live.Confirmed:
			return Action{Look, fleet.DriftHeld} // nothing is tried that would find out
		case gone:
			return unlessHeld(f, Create)
		case f.Exempt.KeepsWhole() && r.settled():
			return Action{Keep, fleet.DriftInSync}
		default:
			return unlessHeld(f, Apply)
		}
	}
	if !f.Live.Known {
		return Action{Wait, fleet.DriftInSync}
	}
	if gone {
		return f.decideGone()
	}
	if leaving {
		return Action{Wait, fleet.DriftInSync}
	}
	return f.decideThere()
}

// decideGone is Decide where the object is as the revision wants it by the record, and is not there, or another one is in its place.
func (f Facts) decideGone() Action {
	r := f.Record
	switch {
	case !f.Live.Exists && !f.Live.Confirmed:
		return Action{Look, fleet.DriftInSync}
	case f.Live.Made && !f.Live.Terminating:
		return unlessHeld(f, Create)
	case r.Ran():
		return Action{Skip, fleet.DriftInSync}
	case r.Unseen():
		return Action{Look, fleet.DriftInSync}
	default:
		return drifted(f, Restore)
	}
}

// decideThere is Decide where the object is there.
func (f Facts) decideThere() Action {
	switch f.Live.Match {
	case MatchYes:
		return Action{Skip, fleet.DriftInSync}
	case MatchUnknown:
		return Action{Look, fleet.DriftInSync}
	case MatchUnsettled:
		if f.Exempt.Stays() { // no write of ours has its way, the last one neither
			return Action{Skip, fleet.DriftInSync}
		}
		return unlessHeld(f, Repeat)
	case MatchContested:
		if f.Exempt != nil && f.Exempt.Drifts {
			return Action{Skip, fleet.DriftInSync}
		}
		return unlessHeld(f, Repeat)
	case MatchTaken:
		if f.Hold || f.Policy.Drift != fleet.DriftCorrect {
			return Action{Skip, fleet.DriftInSync}
		}
		return Action{Correct, fleet.DriftInSync}
	default:
		return drifted(f, Correct)
	}
}

// reading is what to do about an object that is only to be read. Until it is read again it drifts as it did when it was read last.
func reading(f Facts) Action {
	out := Action{Leave, fleet.DriftDrifted}
	switch {
	case !f.Differs:
		out = Action{Skip, fleet.DriftInSync}
	case f.Policy.Drift == fleet.DriftIgnore:
		out.Drift = fleet.DriftIgnored
	}
	if !f.Read {
		out.Verb = Read
	}
	return out
}

func unlessHeld(f Facts, v Verb) Action {
	if f.Hold {
		return Action{Leave, fleet.DriftHeld}
	}
	return Action{v, fleet.DriftInSync}
}

func drifted(f Facts, v Verb) Action {
	switch {
	case f.Policy.Drift == fleet.DriftIgnore:
		return Action{Leave, fleet.DriftIgnored}
	case f.Policy.Drift == fleet.DriftReport: // a hold adds nothing: nobody would write without it
		return Action{Leave, fleet.DriftDrifted}
	case f.Hold:
		return Action{Leave, fleet.DriftHeld}
	default:
		return Action{v, fleet.DriftDrifted}
	}
}
