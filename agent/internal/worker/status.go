package worker

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/agent/internal/apply"
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
	deniedFor     = 5 * time.Second
	awaited       = 2 * time.Minute
	progressEvery = 500 * time.Millisecond
)

// reporter remembers what was reported.
type reporter struct {
	last    *fleet.SyncStatus
	at      time.Time
	began   time.Time // when the objects were begun to be applied
	removed bool
	extras  int       // that the last report listed
	doubt   time.Time // until when something that was said last may be unknown; zero: nothing is
}

func (r *reporter) reset() { r.removed = false }

// summary is what the items amount to.
type summary struct {
	pending, transient, failed, unready int
	held                                int   // of those pending
	stopped                             *item // one of them
	first                               *item // the worst item that fails
	waits                               *item // the first one whose failure is no verdict yet
	slow                                *item // one that is not healthy yet
	foreign                             *foreign
	uncounted                           *item // one that is not healthy, and does not count
}

// refresh brings every item's state up to date.
func (w *worker) refresh(now time.Time) summary {
	var s summary
	for _, it := range w.items {
		action := w.verdict(it)
		state, d := w.stateOf(it, action)
		state.Uncounted, state.Used = it.uncounted, w.onlyLists(it)
		if state != it.state || d.reason != it.said().reason {
			it.since = now
		}
		it.state = state
		it.say(d)
		w.count(it, action, &s, now)
	}
	s.foreign = w.refreshForeign(now)
	return s
}

// passing reports that a failure is no verdict yet, because it may pass by itself. What the API server could not do is
// none for longer: it may restart, and change its leader, and a module is not to be blamed for that. Nor is it for what others
// are about to bring: an operator takes some time to start. What is denied is a verdict when it still is after a moment.
func (w *worker) passing(it *item, now time.Time) bool {
	switch {
	case it.mayBeDeclared(now):
		return true
	case it.fail.Denied:
		return now.Sub(it.fail.Since) < deniedFor
	case !it.fail.Transient:
		return false
	case it.awaits():
		return true
	case it.fail.Awaited():
		return !w.m.o.Reachable() || now.Sub(it.fail.Since) < awaited
	case it.fail.Unreached():
		return !w.m.o.Reachable() || now.Sub(it.fail.Since) < it.mayStart()
	default:
		return it.tries < failedTries
	}
}

// mayStart is how long no answer is no verdict. A custom kind may be that of an API server of its own, whose pods start yet.
func (it *item) mayStart() time.Duration {
	if it.fail.Reason == apply.ReasonUnavailable && plan.IsCustom(it.entry.ID) {
		return awaited
	}
	return hiccup
}

func (w *worker) count(it *item, action plan.Action, s *summary, now time.Time) {
	switch {
	case w.asWanted(it, action):
	case it.fail == nil:
		s.pending++
		if w.holds(it.entry.ID) {
			s.held, s.stopped = s.held+1, it
		}
	case w.passing(it, now):
		if s.transient++; s.waits == nil {
			s.waits = it
		}
	default:
		if s.failed++; s.first == nil || s.first.fail.Transient {
			s.first = it
		}
	}
	switch {
	case it.unready(action):
		s.unready++
		if s.slow == nil || it.state.Health.Worse(s.slow.state.Health) {
			s.slow = it
		}
	case it.uncounted && !it.healthy() && (s.uncounted == nil || it.state.Health.Worse(s.uncounted.state.Health)):
		s.uncounted = it
	}
}

// asWanted reports that an object is applied as wanted, or that there is nothing to apply of it.
func (w *worker) asWanted(it *item, action plan.Action) bool {
	if w.protected[it.ordinal] != "" || it.denied {
		return false
	}
	if it.use != nil || it.reading != nil {
		return it.fail == nil // else what was looked at is another thing by now
	}
	rec := w.m.inventory.Get(it.entry.ID)
	return action.Verb == plan.Share || rec != nil && rec.Module == w.ref && rec.Written() && it.writtenAs(rec, action)
}

func (it *item) healthy() bool {
	return it.state.Health == fleet.HealthHealthy || it.state.Health == fleet.HealthSuspended
}

// unready reports that an object keeps the module, and the waves behind its own, from being ready.
func (it *item) unready(action plan.Action) bool {
	return !it.uncounted && !it.healthy() && !it.tolerated(action)
}

// applied reports whether every object of the sync is applied, and whether all are healthy, too.
func (w *worker) applied() (applied, ready bool) {
	s := w.refresh(time.Now())
	applied = s.pending+s.transient+s.failed == 0
	return applied, applied && s.unready == 0 && s.foreign == nil
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
	w.status.doubt = time.Time{}
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
	if !w.begun.IsZero() && s.Phase == fleet.PhaseApplied {
		w.log.Info("sync applied", "revision", w.cur.sync.Revision, "generation", w.cur.sync.Generation, "objects", len(w.items), "took", now.Sub(w.begun).Round(time.Millisecond))
		w.begun = time.Time{}
	}
	w.traced = w.traced.reported(&s, len(w.items), now)
	w.stand(s)
	s.Extras, s.MoreExtras = w.extras()
	s.Holds = w.annotated()
	s.Message = clip(s.Message)
	if w.status.last != nil && sameStatus(*w.status.last, s) {
		return w.status.doubt
	}
	s.Observed = now
	w.status.last, w.status.at = &s, now
	w.m.o.Report(s)
	return w.status.doubt
}

func (w *worker) removalStatus() fleet.SyncStatus {
	s := fleet.SyncStatus{Module: w.ref, Generation: w.cur.tombstone.Generation, Phase: fleet.PhaseRemoving, Reason: "Removing"}
	if w.cur.reported != 0 || w.m.leaving() {
		s.Generation = w.cur.reported
	}
	if held := w.held(); held != "" {
		s.Phase, s.Reason, s.Message = fleet.PhaseHeld, "Held", joined(w.sentBeforeAny(), held)
	}
	for _, reason := range []string{plan.ReasonAwaitingUpdate, plan.ReasonDependentsFirst} {
		if i := slices.IndexFunc(w.pruning.kept, func(k plan.Kept) bool { return k.Reason == reason }); i >= 0 {
			s.Reason, s.Message = reason, w.pruning.kept[i].Message
		}
	}
	if i := slices.IndexFunc(w.pruning.kept, func(k plan.Kept) bool { return k.Reason == plan.ReasonAwaitingHeir || isDenied(k.Reason) }); i >= 0 {
		s.Reason, s.Message = w.pruning.kept[i].Reason, w.pruning.kept[i].Record.ID.String()+": "+w.pruning.kept[i].Message
	}
	if i := slices.IndexFunc(w.pruning.leaving, func(l leaving) bool { return isDenied(l.reason) }); i >= 0 {
		s.Reason, s.Message = w.pruning.leaving[i].reason, w.pruning.leaving[i].message
	}
	if w.pruning.waiting != "" {
		s.Reason, s.Message = plan.ReasonAwaitingSearch, w.pruning.waiting
	}
	if f := w.pruning.failed; f != nil {
		s.Reason, s.Message = f.Reason, f.Message
	}
	if w.status.removed {
		s.Phase, s.Reason, s.Message = fleet.PhaseRemoved, "", joined(w.keptText(), w.unsearchedText())
	}
	return s
}

// unsearchedText says where objects of a module that is called removed may be left, because the agent had lost its records.
func (w *worker) unsearchedText() string {
	what := w.m.unsearched()
	if what == "" {
		return ""
	}
	return "the agent had lost its records, and may have left objects where it could not search: " + what
}

// joined puts texts together that are not empty.
func joined(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), "; ")
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
	for i, f := range w.foreign {
		s.Watched = append(s.Watched, f.state)
		if len(s.Exceptions) < maxExceptions && !f.state.Fine() {
			s.Exceptions = append(s.Exceptions, fleet.ObjectException{Ordinal: len(w.items) + i, Reason: f.why.reason, Message: clip(f.why.message), Since: f.since})
		}
	}
	w.phase(&s, sum)
	return s
}

func (w *worker) phase(s *fleet.SyncStatus, sum summary) {
	switch {
	case sum.failed > 0 && !w.busy:
		s.Phase, s.Reason, s.Message = fleet.PhaseFailed, sum.first.fail.Reason, sum.first.fail.Message
	case sum.stopped != nil && sum.pending+sum.transient+sum.failed == sum.held:
		s.Phase, s.Reason, s.Message = fleet.PhaseApplying, plan.ReasonHeld, sum.stopped.entry.ID.String()+": "+w.holdText(sum.stopped.entry.ID)
	case sum.pending+sum.transient+sum.failed > 0 && !w.started && w.awaits != "":
		s.Phase, s.Reason, s.Message = fleet.PhaseApplying, plan.ReasonAwaitingDependency, w.awaits
	case sum.pending+sum.transient+sum.failed > 0 && w.wavesText() != "":
		s.Phase, s.Reason, s.Message = fleet.PhaseApplying, plan.ReasonAwaitingWave, w.wavesText()
	case sum.pending+sum.transient+sum.failed > 0:
		s.Phase, s.Reason = fleet.PhaseApplying, "Applying"
		if sum.waits != nil && !w.busy {
			s.Message = sum.waits.fail.Message
		}
	default:
		s.Phase = fleet.PhaseApplied
		s.Ready = sum.unready == 0 && sum.foreign == nil
		switch {
		case sum.unready > 0:
			s.Reason, s.Message = cmp.Or(sum.slow.said().reason, string(sum.slow.state.Health)), healthText(sum.slow)
		case sum.foreign != nil:
			s.Reason, s.Message = cmp.Or(sum.foreign.why.reason, string(sum.foreign.state.Health)), sum.foreign.text()
		case sum.uncounted != nil:
			s.Reason, s.Message = plan.ReasonUncounted, uncountedText(sum.uncounted)
		}
	}
	if f := w.pruning.failed; f != nil && s.Reason == "" {
		s.Reason, s.Message = f.Reason, f.Message
	}
	if len(w.pruning.held) > 0 && s.Reason == "" {
		s.Reason, s.Message = plan.ReasonAwaitingConfirm, "dropping more than half of the module's objects waits for a confirm"
	}
	if i := slices.IndexFunc(w.pruning.kept, func(k plan.Kept) bool { return k.Reason == plan.ReasonAwaitingUpdate }); i >= 0 && s.Reason == "" {
		s.Reason, s.Message = plan.ReasonAwaitingUpdate, w.pruning.kept[i].Record.ID.String()+": "+w.pruning.kept[i].Message
	}
	if s.Phase == fleet.PhaseApplied && w.cur.kind == targetSync && !w.started && w.awaits != "" && w.drops() {
		// Its turn is to come, though nothing but what it drops tells it from the one before, and whatever is said of that.
		s.Phase, s.Ready, s.Reason, s.Message = fleet.PhaseApplying, false, plan.ReasonAwaitingDependency, w.awaits
	}
	if len(w.binder.told) > 0 && s.Reason == "" {
		s.Reason, s.Message = reasonSourceGone, w.binder.told[0]
	}
	held := w.held()
	switch {
	case held != "":
		s.Phase, s.Reason, s.Message, s.Ready = fleet.PhaseHeld, "Held", joined(w.sentBeforeAny(), held), false
	case w.cur.kind == targetStray:
		s.Phase, s.Ready = fleet.PhaseStray, false
	}
}

// drops reports that the module has something that its sync does not list as the module's own.
func (w *worker) drops() bool {
	return slices.ContainsFunc(w.records(), func(r plan.Record) bool { return !w.desires(r.ID) || w.reads(r.ID) })
}

// uncountedText says of an object that is not healthy that the module is ready without it.
func uncountedText(it *item) string {
	return fleet.ReadyAnnotation + " has it count for nothing: " + healthText(it)
}

func healthText(it *item) string {
	id := it.entry.ID.String()
	if strings.HasPrefix(it.said().message, id) {
		return it.said().message
	}
	return id + ": " + cmp.Or(it.said().message, string(it.state.Health))
}

// extras lists the objects that the sync does not list and that are still there: all that the inventory has, each with
// what the last look said of it. more says that there may be others: what is not found yet, what may have been written, and what
// a sync that cannot be read does not list: of none of the records is it known then whether the object is wanted.
func (w *worker) extras() (out []fleet.ExtraObject, more bool) {
	w.status.extras = 0
	if w.status.removed || w.loadError != nil {
		return nil, !w.status.removed
	}
	more = w.m.searching() != ""
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
	w.m.inventory.Each(w.ref, func(r *apply.Record) {
		x := fleet.ExtraObject{ID: r.ID, Version: r.Version, Reason: reason, Message: message, Revision: r.Tracker(), Root: r.Root(),
			State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}}
		s, known := said[r.ID]
		if w.desires(r.ID) {
			return
		}
		if !known && !r.Written() && !r.Found {
			more = true
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
	w.sayHeld(out)
	slices.SortFunc(out, func(a, b fleet.ExtraObject) int { return a.ID.Compare(b.ID) })
	w.status.extras = len(out)
	return out, more
}

// sayHeld adds to what is held that it may go all the same.
func (w *worker) sayHeld(extras []fleet.ExtraObject) {
	if !w.m.late.mayTakeAny(time.Now()) {
		return
	}
	for i, x := range extras {
		if x.Reason == plan.ReasonHeld {
			extras[i].Message = clip(joined(w.sentBefore(w.m.inventory.Get(x.ID), w.recordedLive(x.ID)), x.Message))
		}
	}
}

// said is what the last look said of each object, the first word of it.
func (p *pruneState) said() map[fleet.ObjectID]leaving {
	out := make(map[fleet.ObjectID]leaving, len(p.kept)+len(p.leaving))
	for _, l := range p.leaving {
		out[l.record.ID] = l
	}
	for _, k := range slices.Backward(p.kept) {
		out[k.Record.ID] = leaving{record: k.Record, reason: k.Reason, message: k.Message}
	}
	return out
}

func clip(s string) string { return fleet.Clip(s, maxText) }

// sameStatus compares what a reader could tell apart, the time aside.
func sameStatus(a, b fleet.SyncStatus) bool {
	return a.Generation == b.Generation && a.Bundle == b.Bundle && a.Phase == b.Phase && a.Ready == b.Ready &&
		a.Reason == b.Reason && a.Message == b.Message && a.Corrections == b.Corrections &&
		slices.Equal(a.States, b.States) && slices.Equal(a.Watched, b.Watched) && slices.Equal(a.Exceptions, b.Exceptions) &&
		slices.Equal(a.Extras, b.Extras) && a.MoreExtras == b.MoreExtras && slices.Equal(a.Holds, b.Holds)
}
