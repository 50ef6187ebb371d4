package worker

import (
	"context"
	"slices"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// pruneState is what the worker knows of objects that are not wanted any more.
type pruneState struct {
	touched bool // an event may have changed what is known
	facts   pruneFacts
	retry   time.Time
	tries   int
	awaits  time.Time // since when it waits for something without which nothing can be said of what goes; zero: it does not
	at      time.Time // of the last look
	kept    []plan.Kept
	leaving []leaving
	held    []fleet.ObjectID
	failed  *apply.Failure
	labels  map[fleet.ObjectID]seenLabels
	refused map[fleet.ObjectID]int // how often the API server refused to delete them: they go last
	waiting string                 // for what a tombstone waits that has nothing left to remove
	needs   fleet.ModuleRef        // goes as well, and has objects that wait for the controllers of this one; zero: none does
}

// pruneFacts are what else than events and time lets objects go.
type pruneFacts struct {
	applied, ready, held bool
	old                  string // who may use it though all is ready
}

// leaving is an object that is on its way out, and what it waits for.
type leaving struct {
	record          plan.Record
	reason, message string
	others          bool // these are objects of other modules
}

// Back-off of pruning.
const (
	firstPrune = 100 * time.Millisecond
	maxPrune   = 10 * time.Second
	keptPrune  = time.Minute            // of what stays until somebody does something about it
	awaitQuiet = 600 * time.Millisecond // before it is said what is waited for
)

// prune removes what the sync omits, as far as the rules allow now. It looks again only if something changed, or if it is
// time to: a look may cost many requests.
func (w *worker) prune(ctx context.Context, now time.Time) {
	p := &w.pruning
	if w.cur.kind != targetSync || ctx.Err() != nil {
		p.touched = false
		return
	}
	applied, ready := w.applied()
	facts := pruneFacts{applied: applied, ready: ready, held: w.held() != ""}
	if ready {
		facts.old = w.usersText()
	}
	due := !p.retry.IsZero() && !now.Before(p.retry)
	if !p.touched && !due && p.facts == facts {
		return
	}
	if next := p.at.Add(w.interval()); now.Before(next) {
		p.retry = next
		return
	}
	p.touched, p.at, p.facts = false, now, facts
	in := w.pruneInput()
	in.Age, in.Complete, in.Applied, in.Ready = w.cur.sync.Age(), w.loadError == nil, applied, ready
	if len(in.Records) == 0 {
		*p = pruneState{facts: facts}
		if applied { // what was dropped and is listed again is there again: the change is over
			in.Change = w.m.inventory.Losing(w.ref)
			w.m.inventory.Lose(w.ref, plan.Prune(in).Change)
		}
		return
	}
	defer w.releaseUnused()
	w.rememberExtras(in.Records)
	in.Desired, in.Policies, in.Old = w.desires, w.policies, facts.old
	in.Confirmed, in.Recycles = w.cur.sync.PruneConfirmed, w.cur.sync.Recycles
	w.unaskUnshown(in)
	uids := w.appliedUIDs()
	in.Alias = w.aliases(ctx, in.Records, uids)
	in.AppliedUID = func(uid string) bool { return uids[uid] }
	w.carryOut(ctx, in, now, due)
}

// pruneInput has the records that may have to go, and those that stay if any goes.
func (w *worker) pruneInput() plan.PruneInput {
	in := plan.PruneInput{Module: w.ref, Lineage: w.cur.lineage, Hold: w.held() != "", Held: w.recordHeld, Heirs: w.heirs(), Untaken: w.cur.untaken,
		WantedBy: w.m.inventory.WantedBy, AppliedUID: func(string) bool { return false }}
	in.FirstReason, in.First = w.first()
	in.Reads = w.reads
	if w.drops() {
		in.Records = w.records()
	}
	return in
}

// heirs are the modules that the hub says are to have what this one lets go. A cluster that leaves the fleet waits for
// nobody.
func (w *worker) heirs() []fleet.Heir {
	if w.cur.kind == targetTombstone {
		return w.cur.tombstone.Heirs
	}
	return w.cur.sync.Heirs
}

// removal carries out a tombstone.
func (w *worker) removal(ctx context.Context, now time.Time) time.Time {
	p := &w.pruning
	in := w.pruneInput()
	due := p.retry.IsZero() || !now.Before(p.retry)
	if next := p.at.Add(w.interval()); len(in.Records) > 0 && (due || p.touched) && now.Before(next) {
		return earliest(w.report(now), next)
	}
	if len(in.Records) > 0 && (due || p.touched) {
		p.touched, p.at = false, now
		in.Tombstone, in.Policy, in.Age = true, w.cur.tombstone.Policy, w.cur.tombstone.Age()
		w.rememberFound(in.Records)
		w.rememberRead(in.Records)
		in.Policies, in.Old = w.lastPolicies(), plan.UsersText(w.given())
		in.Dependent, p.needs = w.dependent, fleet.ModuleRef{}
		w.carryOut(ctx, in, now, due)
		in = w.pruneInput()
	}
	w.releaseUnused() // the hub may not hear of it for long, and tell it to go on until then
	if len(in.Records) > 0 {
		w.status.removed, p.waiting = false, ""
		return earliest(w.report(now), p.retry)
	}
	if p.waiting = w.m.searching(); p.waiting != "" {
		return w.report(now) // the search wakes the worker
	}
	if err := w.ended(ctx); err != nil {
		w.log.Warn("the end of the module cannot be kept yet", "error", err)
		p.retry = now.Add(firstPrune)
		return p.retry
	}
	if !w.status.removed {
		w.status.removed = true
		w.m.o.Removed(w.ref, w.cur.tombstone.Age())
		w.m.each(func(o *worker) { o.touch(fleet.ObjectID{}) }) // some may wait for what this module had
	}
	return w.report(now)
}

// ended makes the end of a module durable. What its bindings read ends with it, and so do the secrets of a hub whose fleet the cluster
// leaves: what comes under the same name later, from that hub or from another one, begins anew.
func (w *worker) ended(ctx context.Context) error {
	if err := w.m.inventory.Sync(ctx); err != nil {
		return err
	}
	if err := w.unbind(ctx); err != nil {
		return err
	}
	if !w.m.leaving() {
		return nil
	}
	return w.m.secrets.forget(ctx)
}

// dependent finds an object of the API groups that another module has which is removed as well.
func (w *worker) dependent(groups map[string]bool) (plan.Record, bool) {
	for _, ref := range w.m.inventory.Modules() {
		if ref == w.ref || !w.m.removing(ref) || w.m.sequence.awaitsEnd(ref, w.ref) {
			continue // it waits for this module itself
		}
		for _, r := range w.m.inventory.Module(ref) {
			if groups[r.ID.Group] && r.State == plan.Owned {
				w.pruning.needs = ref
				return r.Record, true
			}
		}
	}
	return plan.Record{}, false
}

// carryOut makes the plan and does what it says. The same plan is what people are shown. If it is not due, an event is
// the reason to look: what a watch still sees on its way out then needs no look of its own.
func (w *worker) carryOut(ctx context.Context, in plan.PruneInput, now time.Time, due bool) {
	p := &w.pruning
	w.doomed.Store(nil)
	if why := w.m.searching(); why != "" {
		w.await(in, now, plan.Kept{Rule: plan.RuleIntentIsNotOwned, Reason: plan.ReasonAwaitingSearch, Message: why})
		return
	}
	if by, owed := w.m.claims.await(w); owed {
		w.await(in, now, plan.Kept{Rule: plan.RuleWantedElsewhere, Reason: plan.ReasonAwaitingModules,
			Message: "may be an object of a module that cannot be read now: " + plan.Names(by)})
		return
	}
	p.awaits = time.Time{}
	kinds := w.kindsOf(ctx, in.Records)
	in.Kind = func(r plan.Record) (plan.KindState, string) { return w.stateOfKind(kinds[kindOf(r)], r) }
	e := eraser{w: w, in: in, kinds: kinds, leaving: map[fleet.ObjectID]leaving{}}
	for _, l := range p.leaving {
		if !due && l.reason == plan.ReasonTerminating {
			e.leaving[l.record.ID] = l
		}
	}
	if e.forgetMissing(ctx) {
		e.in.Records = w.records()
	}
	todo := e.decide()
	if e.settle(ctx, todo.Settle) {
		e.in.Records = w.records()
		todo = e.decide()
	}
	if e.seeLabels(ctx) {
		todo = e.decide()
	}
	if e.noteKept(ctx, todo.Kept) {
		todo = e.decide()
	}
	in = e.in
	w.keepDenied(in, &todo)
	p.kept, p.held, p.leaving, p.failed = todo.Kept, todo.Held, nil, e.doubt
	w.asked(in, todo.Held)
	w.m.inventory.Lose(w.ref, todo.Change)
	for _, h := range todo.Handover {
		w.handOver(h)
	}
	for _, r := range todo.Forget {
		w.log.Info("object is gone with its kind", "object", r.ID.String(), "uid", r.UID)
		e.lost = append(e.lost, vanished{record: r, resource: kinds[kindOf(r)].Resource})
	}
	e.forget(ctx)
	for _, r := range todo.Unuse {
		if w.superseded() {
			break
		}
		e.unuse(ctx, r)
	}
	e.remove(ctx, todo)
	w.lookAgain(&e, now, due)
	p.kept = slices.Concat(e.late, p.kept, e.checked) // of each object the first word is said
	if p.settled() && !e.halted(ctx) {
		w.m.inventory.Lose(w.ref, plan.Change{})
	}
}

// decide makes the plan by what is known now. What was forgotten since the last one counts with what the module loses: that is noted with
// each record that is dropped, and nothing may be between this look at it and Lose, which would take it back.
func (e *eraser) decide() plan.PrunePlan {
	e.in.Change = e.w.m.inventory.Losing(e.w.ref)
	return plan.Prune(e.in)
}

// rememberExtras notes the policies of what the sync does not list any more.
func (w *worker) rememberExtras(records []plan.Record) {
	for i, r := range records {
		if w.desires(r.ID) {
			continue
		}
		next := plan.Remember(w.policies, r)
		if next == r {
			continue
		}
		records[i] = next
		w.m.inventory.Amend(w.ref, r.ID, func(old *apply.Record) bool {
			old.Record = plan.Remember(w.policies, old.Record)
			return old.Record != r
		})
	}
}

// rememberFound notes the policies of what was found of a module that goes, before any sync of it was seen.
func (w *worker) rememberFound(records []plan.Record) {
	if !slices.ContainsFunc(records, unremembered) {
		return
	}
	policies := w.lastPolicies()
	for i, r := range records {
		if !unremembered(r) {
			continue
		}
		records[i] = plan.Remember(policies, r)
		w.m.inventory.Amend(w.ref, r.ID, func(old *apply.Record) bool {
			old.Record = plan.Remember(policies, old.Record)
			return true
		})
	}
}

// rememberRead notes of what a module has that goes what its last sync was to read only.
func (w *worker) rememberRead(records []plan.Record) {
	policies := w.lastPolicies()
	if !slices.ContainsFunc(policies, fleet.Policy.Reads) {
		return
	}
	for i, r := range records {
		records[i] = plan.RememberRead(policies, r)
		w.m.inventory.Amend(w.ref, r.ID, func(old *apply.Record) bool {
			old.Record = plan.RememberRead(policies, old.Record)
			return records[i].Delete != r.Delete
		})
	}
}

// unremembered reports that the policies of an object were never noted.
func unremembered(r plan.Record) bool { return r.Found && r.Prune == "" && r.Delete == "" }

// lastPolicies are what the sync that is removed said of what stays. What cannot be read may say of anything that it does.
func (w *worker) lastPolicies() []fleet.Policy {
	set, err := fleet.PolicySet{}, error(nil)
	switch {
	case w.cur.tombstone.Policies != "":
		set, err = wire.PolicySetFromContent([]byte(w.cur.tombstone.Policies))
	case !w.cur.policies.IsZero():
		set, err = w.m.o.Contents.Policies(w.cur.policies)
	}
	if err != nil {
		return []fleet.Policy{{Prune: fleet.PruneNever}}
	}
	return set.Policies
}

// asked notes which objects are on the list that a person is shown: what he confirms is that one.
func (w *worker) asked(in plan.PruneInput, held []fleet.ObjectID) {
	shown := make(map[fleet.ObjectID]bool, len(held))
	for _, id := range held {
		shown[id] = true
	}
	for _, r := range in.Records {
		if in.Asks(r, shown[r.ID]) == r.Asked {
			continue
		}
		w.m.inventory.Amend(w.ref, r.ID, func(next *apply.Record) bool {
			was := next.Asked
			next.Asked = in.Asks(next.Record, shown[r.ID])
			return next.Asked != was
		})
	}
}

// unaskUnshown notes of what came to the list while a person was shown the one that he let go that nobody was asked about it, before the plan is
// made by which it might go.
func (w *worker) unaskUnshown(in plan.PruneInput) {
	for i, r := range in.Records {
		if !in.Unshown(r, w.cur.sync.PruneShown) {
			continue
		}
		in.Records[i].Asked = false
		w.m.inventory.Amend(w.ref, r.ID, func(next *apply.Record) bool {
			was := next.Asked
			next.Asked = false
			return was
		})
	}
}

// settled reports that what is left stays until a person or a revision does something about it.
func (p *pruneState) settled() bool {
	return p.failed == nil && len(p.leaving) == 0 && !slices.ContainsFunc(p.kept, func(k plan.Kept) bool {
		return k.Reason != plan.ReasonKept && k.Reason != plan.ReasonLegacy && k.Reason != plan.ReasonNotEmpty && k.Reason != plan.ReasonInUse
	})
}

// lookAgain sets the time of the next look, should no event come before.
func (w *worker) lookAgain(e *eraser, now time.Time, due bool) {
	p := &w.pruning
	most := time.Duration(0)
	switch {
	case p.waitsForRoom():
		most = keptPrune
	case p.failed != nil, len(p.leaving) > 0, len(e.late) > 0, e.soon, w.cur.kind == targetTombstone && len(w.m.inventory.Module(w.ref)) > 0:
		most = maxPrune
	case len(e.checked) > 0, unknownKinds(p.kept), e.unseen, len(p.labels) > 0:
		most = keptPrune
	}
	if most == 0 {
		p.retry, p.tries = time.Time{}, 0
		return
	}
	if !due && now.Before(p.retry) {
		return
	}
	if at := w.m.accepts.roomAt(now); !at.IsZero() && p.waitsForRoom() {
		p.retry, p.tries = at, 0
		return
	}
	p.retry = now.Add(min(firstPrune<<min(p.tries, 16), most))
	p.tries++
}

// waitsForRoom reports that the cluster's delete budget keeps an object.
func (p *pruneState) waitsForRoom() bool {
	return slices.ContainsFunc(p.kept, func(k plan.Kept) bool { return k.Reason == plan.ReasonDeleteBudget }) ||
		slices.ContainsFunc(p.leaving, func(l leaving) bool { return l.reason == plan.ReasonDeleteBudget })
}

func unknownKinds(kept []plan.Kept) bool {
	for _, k := range kept {
		if k.Rule == plan.RuleUnknownKind {
			return true
		}
	}
	return false
}

// writeAhead notes durably what is going to be deleted or released, and what the module loses by that. From
// here on the object is not what any target wants: should one list it again, it is made anew when it is gone, for nobody else deleted it, also
// if it ran to its end: with its content goes the word that it need not run once more.
func (e *eraser) writeAhead(ctx context.Context, released, deleted []plan.Record) bool {
	going, w := slices.Concat(released, deleted), e.w
	if len(going) == 0 {
		return false
	}
	for i, r := range going {
		res := e.kinds[kindOf(r)].Resource
		f, _ := w.m.watcher.Look(res, namespaceOf(res, r.ID), r.ID.Name)
		unheard := w.m.late.unheard(r.ID, f != nil, time.Now())
		w.m.inventory.Amend(w.ref, r.ID, func(next *apply.Record) bool {
			doomed := e.in.Doom(next.Record)
			doomed.Taking, doomed.Unheard = doomed.Taking || i >= len(released), unheard
			if doomed == next.Record {
				return false
			}
			next.Deleting, next.Taking, next.Unheard, next.Want, next.Content = doomed.Deleting, doomed.Taking, unheard, fleet.Digest{}, fleet.Digest{}
			return true
		})
	}
	if err := w.m.inventory.Sync(ctx); err != nil {
		w.pruning.failed = apply.Explain(going[0].ID, err)
		return false
	}
	return true
}

// handOver gives an object to the module that waits for it, without a request. If that does not wait any more, the
// worker has to look again.
func (w *worker) handOver(h plan.Handover) bool {
	if !w.m.inventory.HandOver(w.ref, h.Record.ID, h.To) {
		w.touch(h.Record.ID)
		return false
	}
	w.log.Info("object handed over", "object", h.Record.ID.String(), "to", h.To.String())
	if plan.MayUse(h.Record.ID) {
		w.touch(h.Record.ID) // what it may use waits from here on for what becomes of it there
	}
	w.m.retry(h.To, h.Record.ID)
	for _, x := range w.m.inventory.Wishes(h.Record.ID) {
		w.m.retry(x.Module, h.Record.ID) // they wait for another owner from here on
	}
	return true
}

// retry has an object looked at again at once, also while it backs off.
func (w *worker) retry(id fleet.ObjectID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dirty[id] = true
	w.hurry = append(w.hurry, id)
	dirty.Poke(w.signal)
}
