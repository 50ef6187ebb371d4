package worker

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Limits of a status.
const (
	maxExceptions = 200
	maxText       = 256
)

// How often a module reports: small ones at once, large ones at intervals, because a status lists every object.
const (
	smallModule   = 200
	reportEvery   = 50 * time.Millisecond
	reportObject  = 20 * time.Microsecond
	failedTries   = 3
	hiccup        = 30 * time.Second
	progressEvery = 500 * time.Millisecond
)

// reporter remembers what was reported.
type reporter struct {
	last    *fleet.SyncStatus
	at      time.Time
	began   time.Time // when the objects were begun to be applied
	removed bool
	extras  int // that the last report listed
}

func (r *reporter) reset() { r.removed = false }

// summary is what the items amount to.
type summary struct {
	pending, transient, failed, unready int
	first                               *item // the worst item that fails
	slow                                *item // one that is not healthy yet
}

// refresh brings every item's state up to date.
func (w *worker) refresh(now time.Time) summary {
	var s summary
	for _, it := range w.items {
		action := w.verdict(it)
		state, d := w.stateOf(it, action)
		if state != it.state || d.reason != it.said().reason {
			it.since = now
		}
		it.state = state
		it.say(d)
		w.count(it, action, &s, now)
	}
	return s
}

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

// passing reports that a failure is no verdict yet, because it may pass by itself. What the API server could not do is
// none for longer: it may restart, and change its leader, and a module is not to be blamed for that.
func (w *worker) passing(it *item, now time.Time) bool {
	switch {
	case !it.fail.Transient:
		return false
	case it.awaits():
		return true
	case it.fail.Unreached():
		return !w.m.o.Reachable() || now.Sub(it.fail.Since) < hiccup
	default:
		return it.tries < failedTries
	}
}

func (w *worker) count(it *item, action plan.Action, s *summary, now time.Time) {
	rec := w.m.inventory.Get(it.entry.ID)
	switch {
	case w.protected[it.ordinal] == "" && (it.use != nil || rec != nil && rec.Module == w.ref && rec.Written() && it.writtenAs(rec, action)):
	case it.fail == nil:
		s.pending++
	case w.passing(it, now):
		s.transient++
	default:
		if s.failed++; s.first == nil || s.first.fail.Transient {
			s.first = it
		}
	}
	if it.state.Health != fleet.HealthHealthy && it.state.Health != fleet.HealthSuspended && !it.tolerated(action) {
		s.unready++
		if s.slow == nil || it.state.Health.Worse(s.slow.state.Health) {
			s.slow = it
		}
	}
}

// tolerated reports that the object is missing and a policy leaves it so: that is no failure of the module.
func (it *item) tolerated(action plan.Action) bool {
	return it.state.LeftMissing() && action.Verb == plan.Leave && it.policy.Drift != fleet.DriftCorrect
}

// writtenAs reports that what we last wrote is what is wanted, as far as is known. What was repeated until that stopped was.
func (it *item) writtenAs(rec *apply.Record, action plan.Action) bool {
	return rec.Want == it.want && (action.Verb != plan.Repeat || it.flaps().fighting())
}

// applied reports whether every object of the sync is applied, and whether all are healthy, too.
func (w *worker) applied() (applied, ready bool) {
	s := w.refresh(time.Now())
	applied = s.pending+s.transient+s.failed == 0
	return applied, applied && s.unready == 0
}

// stateOf is what is known of an item, and why it is not fine.
func (w *worker) stateOf(it *item, action plan.Action) (fleet.ObjectState, detail) {
	if it.use != nil {
		return w.stateOfUse(it)
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
	case rec == nil || rec.Module != w.ref || !rec.Written():
	case f == nil && !(synced && w.m.watcher.Gone(it.resource, it.liveNamespace(), it.entry.ID.Name)):
		state.Sync, state.Health = fleet.SyncUnknown, fleet.HealthUnknown
		if why := w.m.watcher.Blind(it.resource); why != nil {
			d = detail{reason: "NotWatched", message: it.entry.ID.String() + ": the kind cannot be watched: " + why.Error()}
		}
	case (f == nil || f.UID != rec.UID) && rec.Ran():
		state.Health, d = ranHealth(rec.Outcome), detail{reason: rec.Outcome.String(), message: ranText(rec.ID, rec.Outcome)}
		if it.writtenAs(rec, action) {
			state.Sync = fleet.SyncSynced
		}
	case f == nil || f.UID != rec.UID:
		d = detail{reason: "Missing", message: it.entry.ID.String() + ": was deleted by somebody else"}
	default:
		state.Health = f.Health
		d = detail{reason: f.Reason, message: f.Message}
		if t := it.rare; t != nil && t.pods.reason != "" && f.Health != fleet.HealthHealthy {
			d = t.pods
		}
		judged(it.policy, f, &state)
		if it.writtenAs(rec, action) {
			state.Sync = fleet.SyncSynced
		}
	}
	d = w.driftOf(it, action, f, &state, d)
	if rec != nil && rec.Module == w.ref && rec.Unmet != nil && state.Drift == fleet.DriftInSync {
		state.Sync, state.Drift, d = fleet.SyncOutOfSync, fleet.DriftConflict, unmetDetail(rec.ID, fleet.ModuleRef{}, *rec.Unmet)
	}
	if it.fail != nil {
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
		d = detail{it.fail.Reason, it.fail.Message, nonEmpty(it.fail.By, d.by), v}
	}
	return state, d
}

// conflicts reports that the object is somebody else's.
func (it *item) conflicts() bool {
	return it.fail != nil && it.fail.Reason == apply.ReasonConflict && (!it.fail.Transient || it.fail.Kind == fleet.ErrExists)
}

// judged notes that an object is Healthy only for want of anything to judge it by. Under Strict that is Unknown.
func judged(p *fleet.Policy, f *watch.Fingerprint, state *fleet.ObjectState) {
	switch {
	case state.Health != fleet.HealthHealthy || f.Reason != fleet.NoStatus && f.Reason != fleet.NoRule:
	case p.Health == fleet.HealthStrict:
		state.Health = fleet.HealthUnknown
	default:
		state.Unjudged = f.Reason
	}
}

// stateOfUse is what is known of a Namespace in which nothing is the module's.
func (w *worker) stateOfUse(it *item) (fleet.ObjectState, detail) {
	state := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}
	var d detail
	switch f, synced := w.print(it); {
	case f == nil && synced:
		state.Sync, state.Health = fleet.SyncOutOfSync, fleet.HealthMissing
		d = detail{reason: "Missing", message: it.entry.ID.String() + ": was deleted by somebody else"}
	case f == nil && w.m.watcher.Blind(it.resource) != nil:
		state.Sync, state.Health = fleet.SyncUnknown, fleet.HealthUnknown
	case f != nil:
		state.Health, d = f.Health, detail{reason: f.Reason, message: f.Message}
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
		d = detail{"Drifted", driftText(it, action, v, f.Change.By), f.Change.By, v}
	}
	if text := it.scaledText(f); text != "" && state.Drift == fleet.DriftInSync {
		state.Drift = fleet.DriftIgnored
		d = detail{reason: reasonAutoscaled, message: text}
	}
	if it.flaps().fighting() && (action.Drift == fleet.DriftDrifted || action.Verb == plan.Repeat) {
		state.Sync, state.Drift = fleet.SyncOutOfSync, fleet.DriftConflict
		if f != nil && f.Change != nil {
			d.by = f.Change.By
		}
		d.reason, d.message = "TwoWriters", it.entry.ID.String()+": two writers: "+rival(action, d.by)+" changes it back each time; corrections are made every "+flapRetry.String()+" only"
	}
	return d
}

// rival is who writes against us. What stands in the name of our own field manager is what admission made of somebody else's
// write, or else another agent's.
func rival(action plan.Action, by string) string {
	switch {
	case action.Verb != plan.Repeat:
		return nonEmpty(by, "somebody")
	case by != "":
		return fmt.Sprintf("an admission policy or webhook of the cluster, whenever %s writes,", by)
	}
	return "another agent of Towline"
}

func driftText(it *item, action plan.Action, v values, by string) string {
	text := it.entry.ID.String() + ": " + v.field + " is " + v.live + ", set by " + nonEmpty(by, "somebody")
	switch {
	case v.field == "":
		text = it.entry.ID.String() + ": was changed by " + nonEmpty(by, "somebody")
	case v.live == "":
		text = it.entry.ID.String() + ": " + v.field + " was removed by " + nonEmpty(by, "somebody")
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
	return reason != "" && (!it.state.Fine() || it.fail != nil || reason == plan.Completed.String() || reason == reasonAutoscaled)
}

// exception is what a status says of an object that is not fine.
func (it *item) exception() fleet.ObjectException {
	d := it.said()
	x := fleet.ObjectException{Ordinal: it.ordinal, Reason: d.reason, Message: clip(d.message), Since: it.since,
		Field: d.field, Want: d.want, Live: d.live, ChangedBy: d.by}
	if it.state.Drift != fleet.DriftInSync {
		x.Seen = it.flaps().changes()
	}
	return x
}

func nonEmpty(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// interval is how long the module rests between looks at all of its objects.
func (w *worker) interval() time.Duration {
	n := len(w.items) + w.status.extras
	if n <= smallModule {
		return 0
	}
	return max(reportEvery, time.Duration(n)*reportObject)
}

// progress reports in the middle of a sync, now and then. A short one is reported when it is done: a word before that
// would hold up the one that counts.
func (w *worker) progress() {
	if now := time.Now(); min(now.Sub(w.status.at), now.Sub(w.status.began)) >= progressEvery {
		w.report(now)
	}
}

// report sends the newest status if it changed. A large module that reported just now waits; the time says until when.
func (w *worker) report(now time.Time) time.Time {
	if next := w.status.at.Add(w.interval()); w.status.last != nil && now.Before(next) {
		return next
	}
	var s fleet.SyncStatus
	switch w.cur.kind {
	case targetNone:
		return time.Time{}
	case targetTombstone:
		s = w.removalStatus()
	case targetUnlisted:
		s = fleet.SyncStatus{Module: w.ref, Phase: fleet.PhaseStray, Reason: "Unlisted",
			Message: "the hub does not list the module; its objects stay as they are"}
	default:
		s = w.syncStatus(now)
	}
	s.Extras = w.extras()
	s.Message = clip(s.Message)
	if w.status.last != nil && sameStatus(*w.status.last, s) {
		return time.Time{}
	}
	s.Observed = now
	w.status.last, w.status.at = &s, now
	w.m.o.Report(s)
	return time.Time{}
}

func (w *worker) removalStatus() fleet.SyncStatus {
	s := fleet.SyncStatus{Module: w.ref, Generation: w.cur.tombstone.Generation, Phase: fleet.PhaseRemoving, Reason: "Removing"}
	if w.cur.reported != 0 || w.m.leaving() {
		s.Generation = w.cur.reported
	}
	if held := w.held(); held != "" {
		s.Phase, s.Reason, s.Message = fleet.PhaseHeld, "Held", held
	}
	if i := slices.IndexFunc(w.pruning.kept, func(k plan.Kept) bool { return k.Reason == plan.ReasonAwaitingHeir }); i >= 0 {
		s.Reason, s.Message = plan.ReasonAwaitingHeir, w.pruning.kept[i].Record.ID.String()+": "+w.pruning.kept[i].Message
	}
	if w.pruning.waiting != "" {
		s.Reason, s.Message = plan.ReasonAwaitingSearch, w.pruning.waiting
	}
	if f := w.pruning.failed; f != nil {
		s.Reason, s.Message = f.Reason, f.Message
	}
	if w.status.removed {
		s.Phase, s.Reason, s.Message = fleet.PhaseRemoved, "", w.keptText()
	}
	return s
}

func (w *worker) syncStatus(now time.Time) fleet.SyncStatus {
	sync := w.cur.sync
	s := fleet.SyncStatus{Module: w.ref, Generation: sync.Generation, Bundle: sync.Bundle, Corrections: w.corrections}
	if w.loadError != nil {
		s.Phase, s.Reason, s.Message = fleet.PhaseFailed, w.loadError.Reason, w.loadError.Message
		return s
	}
	sum := w.refresh(now)
	s.States = make([]fleet.ObjectState, len(w.items))
	for i, it := range w.items {
		s.States[i] = it.state
		if len(s.Exceptions) < maxExceptions && it.tells() {
			s.Exceptions = append(s.Exceptions, it.exception())
		}
	}
	w.phase(&s, sum)
	return s
}

func (w *worker) phase(s *fleet.SyncStatus, sum summary) {
	switch {
	case sum.failed > 0 && !w.busy:
		s.Phase, s.Reason, s.Message = fleet.PhaseFailed, sum.first.fail.Reason, sum.first.fail.Message
	case sum.pending+sum.transient+sum.failed > 0:
		s.Phase, s.Reason = fleet.PhaseApplying, "Applying"
	default:
		s.Phase = fleet.PhaseApplied
		s.Ready = sum.unready == 0
		if !s.Ready {
			s.Reason, s.Message = nonEmpty(sum.slow.said().reason, string(sum.slow.state.Health)), healthText(sum.slow)
		}
	}
	if f := w.pruning.failed; f != nil && s.Reason == "" {
		s.Reason, s.Message = f.Reason, f.Message
	}
	if len(w.pruning.held) > 0 && s.Reason == "" {
		s.Reason, s.Message = plan.ReasonAwaitingConfirm, "dropping more than half of the module's objects waits for a confirm"
	}
	held := w.held()
	switch {
	case held != "":
		s.Phase, s.Reason, s.Message, s.Ready = fleet.PhaseHeld, "Held", held, false
	case w.cur.kind == targetStray:
		s.Phase, s.Ready = fleet.PhaseStray, false
	}
}

func healthText(it *item) string {
	id := it.entry.ID.String()
	if strings.HasPrefix(it.said().message, id) {
		return it.said().message
	}
	return id + ": " + nonEmpty(it.said().message, string(it.state.Health))
}

// extras lists the objects that the sync does not list and that are still there: all that the inventory has, each with
// what the last look said of it.
func (w *worker) extras() []fleet.ExtraObject {
	if w.status.removed {
		return nil
	}
	reason, message := plan.ReasonRemoving, "goes when its turn comes"
	switch {
	case w.cur.kind == targetStray, w.cur.kind == targetUnlisted:
		reason, message = plan.ReasonKept, "the hub does not list it, and did not say that it goes"
	case w.cur.kind == targetSync && w.pruning.at.IsZero():
		reason, message = plan.ReasonAwaitingApply, "whether it goes is looked at with the rest"
	}
	said, held := w.pruning.said(), map[fleet.ObjectID]bool{}
	for _, id := range w.pruning.held {
		held[id] = true
	}
	var out []fleet.ExtraObject
	w.m.inventory.Each(w.ref, func(r *apply.Record) {
		x := fleet.ExtraObject{ID: r.ID, Version: r.Version, Reason: reason, Message: message,
			State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}}
		s, known := said[r.ID]
		if w.desires(r.ID) || !known && !r.Written() && !r.Found {
			return
		}
		if r.Found {
			x.Message = "found by its marks, the agent has lost its record; " + message
		}
		if known {
			x.Reason, x.Message = s.reason, clip(s.message)
		}
		if x.Held = held[r.ID]; x.Reason == plan.ReasonTerminating {
			x.State.Health = fleet.HealthTerminating
		}
		out = append(out, x)
	})
	slices.SortFunc(out, func(a, b fleet.ExtraObject) int { return a.ID.Compare(b.ID) })
	w.status.extras = len(out)
	return out
}

// said is what the last look said of each object, the first word of it.
func (p *pruneState) said() map[fleet.ObjectID]leaving {
	out := make(map[fleet.ObjectID]leaving, len(p.kept)+len(p.leaving))
	for _, l := range p.leaving {
		out[l.record.ID] = l
	}
	for _, k := range slices.Backward(p.kept) {
		out[k.Record.ID] = leaving{k.Record, k.Reason, k.Message}
	}
	return out
}

func clip(s string) string { return fleet.Clip(s, maxText) }

// sameStatus compares what a reader could tell apart, the time aside.
func sameStatus(a, b fleet.SyncStatus) bool {
	return a.Generation == b.Generation && a.Bundle == b.Bundle && a.Phase == b.Phase && a.Ready == b.Ready &&
		a.Reason == b.Reason && a.Message == b.Message && a.Corrections == b.Corrections &&
		slices.Equal(a.States, b.States) && slices.Equal(a.Exceptions, b.Exceptions) &&
		slices.Equal(a.Extras, b.Extras)
}
