package worker

import (
	"cmp"
	"fmt"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// verdict is the last decision about an item. One that was only to wait is made again, for what came since may be no reason
// to call the item fine; what follows from it is done in the next pass.
func (w *worker) verdict(it *item) plan.Action {
	switch it.action.Verb {
	case "", plan.Wait, plan.Look:
	default:
		return it.action
	}
	now := w.decide(it)
	if now.Verb != it.action.Verb {
		it.look = true
		dirty.Poke(w.signal)
	}
	return now
}

// tolerated reports that the object is missing and a policy leaves it so: that is no failure of the module.
func (it *item) tolerated(action plan.Action) bool {
	return it.state.LeftMissing() && action.Verb == plan.Leave && it.policy.Drift != fleet.DriftCorrect
}

// writtenAs reports that what we last wrote is what is wanted, as far as is known. What was repeated until that stopped was.
func (it *item) writtenAs(rec *apply.Record, action plan.Action) bool {
	return rec.Want == it.want && (action.Verb != plan.Repeat || it.history().Fights())
}

// stateOf is what is known of an item, and why it is not fine.
func (w *worker) stateOf(it *item, action plan.Action) (fleet.ObjectState, detail) {
	it.old, it.unseen, it.differs, it.turnedBack = 0, false, false, false
	if it.policy.Reads() {
		return w.stateOfReading(it, action)
	}
	if it.use != nil {
		return w.stateOfUse(it)
	}
	if action.Verb == plan.Share {
		return w.stateOfShare(it)
	}
	state := fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthMissing, Drift: action.Drift}
	var d detail
	rec := w.m.inventory.Get(it.entry.ID)
	f, synced := w.print(it)
	if rec != nil {
		w.noteScaled(it, f, rec)
	}
	switch {
	case it.conflicts():
		state.Health = fleet.HealthUnknown // it is there, and somebody else's
	case it.awaits():
		state.Health = fleet.HealthProgressing // it is on its way from one module to the other
	case (rec == nil || rec.Module != w.ref || !rec.Written()) && it.kindUnseen():
		state.Sync, state.Health = fleet.SyncUnknown, fleet.HealthUnknown // the agent may have lost its record of it
	case rec == nil || rec.Module != w.ref || !rec.Written():
		if f != nil && plan.IsNamespace(it.entry.ID) { // every Namespace is seen, whoever has it
			state.Health, d = f.Health, w.heard(it.liveID(), f.Reason, f.Message)
		}
	case f == nil && !(synced && w.m.watcher.Gone(it.resource, it.liveNamespace(), it.entry.ID.Name)):
		state.Sync, state.Health = fleet.SyncUnknown, fleet.HealthUnknown
		w.seeUse(it, action, rec, nil, false)
		if why := w.m.watcher.Blind(it.resource); why != nil {
			d = detail{reason: "NotWatched", message: it.entry.ID.String() + ": the kind cannot be watched: " + why.Error()}
		}
	case (f == nil || f.UID != rec.UID) && rec.Ran():
		state.Health, d = ranHealth(rec.Outcome), detail{reason: rec.Outcome.String(), message: ranText(rec.ID, rec.Outcome, it.exempt.KeepsWhole())}
		if f != nil {
			d.message += "; another object is in its place, which somebody else made: nothing is said of that"
		}
		if it.writtenAs(rec, action) {
			state.Sync = fleet.SyncSynced
		}
	case f == nil || f.UID != rec.UID:
		d = detail{reason: fleet.ObjectMissing, message: goneText(rec, action.Drift == fleet.DriftHeld)}
		if f != nil {
			d.message += ", and another object is in its place"
		}
	default:
		state.Health, d = w.healthOf(it, rec, f)
		w.seeUse(it, action, rec, f, state.Health == fleet.HealthHealthy || state.Health == fleet.HealthSuspended)
		judged(it.policy, f.Reason, &state)
		if it.writtenAs(rec, action) {
			state.Sync = fleet.SyncSynced
		}
	}
	d = w.driftOf(it, action, f, &state, d)
	if rec != nil && rec.Module == w.ref && rec.Unmet != nil && state.Drift == fleet.DriftInSync {
		state.Sync, state.Drift, d = fleet.SyncOutOfSync, fleet.DriftConflict, unmetDetail(rec.ID, fleet.ModuleRef{}, *rec.Unmet)
	}
	if why := w.holdText(it.entry.ID); why != "" && it.fail == nil && state.Drift != fleet.DriftConflict && d.field == "" {
		said := it.entry.ID.String() + ": " + why
		if d.reason == fleet.ObjectMissing && rec.Taking {
			said = d.message + "; " + why
		}
		d = detail{reason: plan.ReasonHeld, message: said, by: d.by}
	}
	if it.turnedBack {
		if state.Health == fleet.HealthHealthy || state.Health == fleet.HealthSuspended {
			state.Health = fleet.HealthProgressing // it is judged by what it was before
		}
		d.message += "; it was not ready before as the revision has it"
	}
	if it.fail != nil {
		d = it.failure(&state, d)
	}
	if f != nil && !f.Terminating && w.writesNothing(it.entry.ID) {
		if said := w.sentBefore(rec, it.liveID()); said != "" {
			d.reason, d.message = cmp.Or(d.reason, plan.ReasonHeld), it.entry.ID.String()+": "+said+"; "+cmp.Or(d.message, heldText)
		}
	}
	return state, d
}

// healthOf is the health of an object that is there, and why it is that.
func (w *worker) healthOf(it *item, rec *apply.Record, f *watch.Fingerprint) (fleet.Health, detail) {
	switch {
	case w.misjudged(rec, f):
		return fleet.HealthProgressing, detail{reason: reasonJudging, message: it.entry.ID.String() + ": is judged anew, by other health rules"}
	case it.awaitsPod(f):
		return fleet.HealthHealthy, detail{}
	case it.rare != nil && it.rare.pods.reason != "" && f.Health != fleet.HealthHealthy:
		return f.Health, w.heard(it.liveID(), it.rare.pods.reason, it.rare.pods.message)
	}
	return f.Health, w.heard(it.liveID(), f.Reason, f.Message)
}

// heard is what the cluster says of an object: controllers and webhooks quote its fields in conditions.
func (w *worker) heard(id fleet.ObjectID, reason, message string) detail {
	if reason == "" && message == "" {
		return detail{}
	}
	hidden := w.hidden(id)
	return detail{reason: hidden.scrub(reason), message: hidden.scrub(message)}
}

// failure completes the state of an item that failed, and says why it did.
func (it *item) failure(state *fleet.ObjectState, d detail) detail {
	switch {
	case it.conflicts():
		state.Drift = fleet.DriftConflict
	case it.awaits():
		state.Drift = fleet.DriftInSync
	}
	v := d.values
	if it.fail.Field != "" {
		v = values{it.fail.Field, it.fail.Want, it.fail.Live}
	}
	return detail{it.fail.Reason, it.fail.Message, cmp.Or(it.fail.By, d.by), v}
}

// conflicts reports that the object is somebody else's.
func (it *item) conflicts() bool {
	return it.fail != nil && it.fail.Reason == apply.ReasonConflict && (!it.fail.Transient || it.fail.Kind == fleet.ErrExists)
}

// kindUnseen reports that it could not be asked where objects of its kind are, so that nothing says whether it is there.
func (it *item) kindUnseen() bool {
	return it.resource.Resource == "" && it.fail != nil && (it.fail.Reason == apply.ReasonUnavailable || it.fail.Reason == apply.ReasonForbidden)
}

// judged notes that an object is Healthy only for want of anything to judge it by. Under Strict that is Unknown.
func judged(p *fleet.Policy, reason string, state *fleet.ObjectState) {
	switch {
	case state.Health != fleet.HealthHealthy || reason != fleet.NoStatus && reason != fleet.NoRule:
	case p.Health == fleet.HealthStrict:
		state.Health = fleet.HealthUnknown
	default:
		state.Unjudged = reason
	}
}

// stateOfUse is what is known of a Namespace in which nothing is the module's.
func (w *worker) stateOfUse(it *item) (fleet.ObjectState, detail) {
	state := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}
	var d detail
	switch f, synced := w.print(it); {
	case f == nil && synced:
		state.Sync, state.Health = fleet.SyncOutOfSync, fleet.HealthMissing
		d = detail{reason: fleet.ObjectMissing, message: it.entry.ID.String() + ": was deleted by somebody else"}
	case f == nil: // no watch shows it
		state.Sync, state.Health = fleet.SyncUnknown, fleet.HealthUnknown
	case f != nil:
		state.Health, d = f.Health, w.heard(it.liveID(), f.Reason, f.Message)
	}
	if it.fail != nil { // it is another one than what was looked at
		if state.Sync == fleet.SyncSynced {
			state.Sync = fleet.SyncUnknown
		}
		return state, detail{it.fail.Reason, it.fail.Message, it.fail.By, values{}}
	}
	if len(it.use.unmet) == 0 {
		return state, d
	}
	state.Sync, state.Drift = fleet.SyncOutOfSync, fleet.DriftConflict
	return state, unmetDetail(it.entry.ID, it.use.owner, it.use.unmet)
}

// driftOf completes the state by what the item's drift means for it, and says what to tell of it.
func (w *worker) driftOf(it *item, action plan.Action, f *watch.Fingerprint, state *fleet.ObjectState, d detail) detail {
	switch action.Drift {
	case "":
		state.Drift = fleet.DriftInSync
	case fleet.DriftIgnored:
		state.Sync = fleet.SyncSynced
	case fleet.DriftDrifted, fleet.DriftConflict:
		state.Sync = fleet.SyncOutOfSync
	}
	if state.Drift != fleet.DriftInSync && f != nil && f.Change != nil {
		v := w.drifting(it, f.Change)
		d = detail{fleet.ObjectDrifted, driftText(it, action, v, f.Change.By), f.Change.By, v}
		if it.policy.Drift == fleet.DriftReport && action.Drift != fleet.DriftHeld {
			d.reason = fleet.ObjectLeftSo
		}
	}
	if text := it.scaledText(f); text != "" && state.Drift == fleet.DriftInSync {
		state.Drift = fleet.DriftIgnored
		d = detail{reason: reasonAutoscaled, message: text}
	}
	if it.history().Fights() && (action.Drift == fleet.DriftDrifted || action.Verb == plan.Repeat) {
		state.Sync, state.Drift = fleet.SyncOutOfSync, fleet.DriftConflict
		if f != nil && f.Change != nil {
			d.by = f.Change.By
		}
		d.reason, d.message = fleet.ObjectTwoWriters, it.entry.ID.String()+": two writers: "+rival(action, d.by)+" changes it back each time; corrections are made every "+plan.FightRetry.String()+" only"
	}
	return d
}

// rival is who writes against us. What stands in the name of our own field manager is what admission made of somebody else's
// write, or else another agent's.
func rival(action plan.Action, by string) string {
	switch {
	case action.Verb != plan.Repeat:
		return cmp.Or(by, "somebody")
	case by != "":
		return fmt.Sprintf("an admission policy or webhook of the cluster, whenever %s writes,", by)
	}
	return "another agent of Towline"
}

func driftText(it *item, action plan.Action, v values, by string) string {
	text := it.entry.ID.String() + ": " + v.field + " is " + v.live + ", set by " + cmp.Or(by, "somebody")
	switch {
	case v.field == "":
		text = it.entry.ID.String() + ": was changed by " + cmp.Or(by, "somebody")
	case v.live == "":
		text = it.entry.ID.String() + ": " + v.field + " was removed by " + cmp.Or(by, "somebody")
	}
	switch {
	case action.Drift == fleet.DriftHeld:
		text += "; held as it is"
	case it.policy.Drift == fleet.DriftReport:
		text += "; the policy drift: Report leaves it so"
	}
	return text
}

// tells reports that a status says more of the object than its state.
func (it *item) tells() bool {
	reason := it.said().reason
	return reason != "" && (!it.state.Fine() || it.fail != nil || reason == plan.Completed.String() || reason == reasonAutoscaled || reason == fleet.ObjectShared || reason == plan.ReasonHeld)
}

// exception is what a status says of an object that is not fine.
func (it *item) exception() fleet.ObjectException {
	d := it.said()
	x := fleet.ObjectException{Ordinal: it.ordinal, Reason: d.reason, Message: clip(d.message), Since: it.since,
		Field: d.field, Want: d.want, Live: d.live, ChangedBy: d.by}
	if it.state.Drift != fleet.DriftInSync {
		x.Seen = it.history().Changes()
		x.First, x.Last = it.history().Span(it.since)
	}
	return x
}
