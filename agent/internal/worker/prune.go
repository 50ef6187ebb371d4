package worker

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// pruneState is what the worker knows of objects that are not wanted any more.
type pruneState struct {
	touched bool // an event may have changed what is known
	facts   pruneFacts
	retry   time.Time
	tries   int
	at      time.Time // of the last look
	kept    []plan.Kept
	leaving []leaving
	held    []fleet.ObjectID
	failed  *apply.Failure
}

// pruneFacts are what else than events and time lets objects go.
type pruneFacts struct{ applied, ready, held bool }

// leaving is an object that is on its way out, and what it waits for.
type leaving struct {
	record          plan.Record
	reason, message string
}

// Back-off of pruning.
const (
	firstPrune = 100 * time.Millisecond
	maxPrune   = 10 * time.Second
	keptPrune  = time.Minute // of what stays until somebody does something about it
	claimRetry = 20 * time.Millisecond
	claimTries = 6 // before it is said what is waited for
)

// prune removes what the sync omits, as far as the rules allow now. It looks again only if something changed, or if it is
// time to: a look may cost many requests.
func (w *worker) prune(ctx context.Context, now time.Time) {
	p := &w.pruning
	if w.cur.kind != targetSync || ctx.Err() != nil {
		if w.cur.kind == targetStray && p.touched {
			w.listRecords()
			p.touched = false
		}
		return
	}
	applied, ready := w.applied()
	facts := pruneFacts{applied, ready, w.held() != ""}
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
	if len(in.Records) == 0 {
		*p = pruneState{facts: facts}
		return
	}
	in.Age, in.Desired, in.Policies = w.cur.sync.Age(), w.desires, w.policies
	in.Complete, in.Applied, in.Ready = w.loadError == nil, applied, ready
	in.Confirmed = w.cur.sync.PruneConfirmed
	in.AppliedUID = w.appliedUIDs()
	w.carryOut(ctx, in, now, due)
}

// pruneInput has the records that may have to go, and those that stay if any goes.
func (w *worker) pruneInput() plan.PruneInput {
	in := plan.PruneInput{Module: w.ref, Lineage: w.cur.lineage, Hold: w.held() != "",
		WantedBy: w.m.inventory.WantedBy, AppliedUID: func(string) bool { return false }}
	all := w.m.inventory.Module(w.ref)
	extra := false
	for _, r := range all {
		extra = extra || !w.desires(r.ID)
	}
	if !extra {
		return in
	}
	for _, r := range all {
		in.Records = append(in.Records, r.Record)
	}
	return in
}

// appliedUIDs finds what the sync applied under another name or group.
func (w *worker) appliedUIDs() func(string) bool {
	uids := map[string]bool{}
	for _, it := range w.items {
		if r := w.m.inventory.Get(it.entry.ID); r != nil && r.State == plan.Owned && r.Module == w.ref {
			uids[r.UID] = true
		}
	}
	return func(uid string) bool { return uids[uid] }
}

// removal carries out a tombstone.
func (w *worker) removal(ctx context.Context, now time.Time) time.Time {
	p := &w.pruning
	in := w.pruneInput()
	due := p.retry.IsZero() || !now.Before(p.retry)
	if len(in.Records) > 0 && (due || p.touched) {
		p.touched = false
		in.Tombstone, in.Policy, in.Age = true, w.cur.tombstone.Policy, w.cur.tombstone.Age()
		in.Dependent = w.dependent
		w.carryOut(ctx, in, now, due)
		in = w.pruneInput()
	}
	if len(in.Records) > 0 {
		return earliest(w.report(now), p.retry)
	}
	if err := w.m.inventory.Sync(ctx); err != nil {
		p.retry = now.Add(firstPrune)
		return p.retry
	}
	if !w.status.removed {
		w.status.removed = true
		w.m.each(func(o *worker) { o.touch(fleet.ObjectID{}) }) // some may wait for what this module had
	}
	return w.report(now)
}

// dependent finds an object of the API groups that another module has which is removed as well.
func (w *worker) dependent(groups map[string]bool) (plan.Record, bool) {
	for _, ref := range w.m.inventory.Modules() {
		if ref == w.ref || !w.m.removing(ref) {
			continue
		}
		for _, r := range w.m.inventory.Module(ref) {
			if groups[r.ID.Group] && r.State == plan.Owned {
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
	if w.m.unclaimed.Load() > 0 {
		w.awaitClaims(in, now)
		return
	}
	kinds := w.kindsOf(ctx, in.Records)
	in.Kind = func(r plan.Record) (plan.KindState, string) { k := kinds[kindOf(r)]; return k.state, k.why }
	e := eraser{w: w, in: in, kinds: kinds, leaving: map[fleet.ObjectID]leaving{}}
	for _, l := range p.leaving {
		if !due && l.reason == plan.ReasonTerminating {
			e.leaving[l.record.ID] = l
		}
	}
	if e.forgetMissing(ctx) {
		in.Records = w.records()
		e.in = in
	}
	todo := plan.Prune(in)
	if e.settle(ctx, todo.Settle) {
		in.Records = w.records()
		e.in = in
		todo = plan.Prune(in)
	}
	p.kept, p.held, p.leaving, p.failed = todo.Kept, todo.Held, nil, nil
	for _, h := range todo.Handover {
		w.handOver(h)
	}
	for _, r := range todo.Forget {
		w.log.Info("object is gone with its kind", "object", r.ID.String(), "uid", r.UID, "rule", plan.RuleUnknownKind)
		w.m.inventory.Drop(w.ref, r.ID)
	}
	for _, r := range todo.Unuse {
		e.unuse(ctx, r)
	}
	e.stage(ctx, todo.Release, true)
	e.doomed = map[fleet.ObjectID]bool{}
	for _, r := range slices.Concat(todo.Delete...) {
		e.doomed[r.ID] = true
	}
	if len(todo.Delete) > 0 && w.writeAhead(ctx, todo.Delete, in.Age.Generation) {
		for _, stage := range todo.Delete {
			if !e.stage(ctx, stage, false) {
				break
			}
		}
	}
	w.lookAgain(e.checked, now, due)
	p.kept = append(p.kept, e.checked...)
}

// lookAgain sets the time of the next look, should no event come before.
func (w *worker) lookAgain(checked []plan.Kept, now time.Time, due bool) {
	p := &w.pruning
	most := time.Duration(0)
	switch {
	case p.failed != nil, len(p.leaving) > 0, w.cur.kind == targetTombstone && len(w.m.inventory.Module(w.ref)) > 0:
		most = maxPrune
	case len(checked) > 0, unknownKinds(p.kept):
		most = keptPrune
	}
	if most == 0 {
		p.retry, p.tries = time.Time{}, 0
		return
	}
	if !due && now.Before(p.retry) {
		return
	}
	p.retry = now.Add(min(firstPrune<<min(p.tries, 16), most))
	p.tries++
}

func unknownKinds(kept []plan.Kept) bool {
	for _, k := range kept {
		if k.Rule == plan.RuleUnknownKind {
			return true
		}
	}
	return false
}

// writeAhead notes durably what is going to be deleted.
func (w *worker) writeAhead(ctx context.Context, stages [][]plan.Record, generation uint64) bool {
	for _, stage := range stages {
		for _, r := range stage {
			w.m.inventory.Amend(w.ref, r.ID, func(next *apply.Record) bool {
				noted := next.Deleting == generation
				next.Deleting = generation
				return !noted
			})
		}
	}
	if err := w.m.inventory.Sync(ctx); err != nil {
		w.pruning.failed = apply.Explain(stages[0][0].ID, err)
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
	w.log.Info("object handed over", "object", h.Record.ID.String(), "to", h.To.String(), "rule", plan.RuleWantedElsewhere)
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
	poke(w.signal)
}

// eraser removes objects under one plan.
type eraser struct {
	w       *worker
	in      plan.PruneInput
	kinds   map[kindKey]located
	checked []plan.Kept                // stay after a look at the cluster
	doomed  map[fleet.ObjectID]bool    // go by the plan, unless a look found that they stay; fixed while a stage goes on
	leaving map[fleet.ObjectID]leaving // were on their way out at the last look
}

// erased is what came of one object.
type erased struct {
	record  plan.Record
	gone    bool
	kept    *plan.Kept
	fail    *apply.Failure
	leaving leaving // if it is none of these
}

// stage removes or releases the objects of one stage. It reports whether all are gone, so that the next stage may begin.
func (e *eraser) stage(ctx context.Context, records []plan.Record, release bool) bool {
	for _, k := range e.checked {
		delete(e.doomed, k.Record.ID)
	}
	results := make(chan erased, cap(e.w.m.slots))
	next, inFlight, clean := 0, 0, true
	for next < len(records) || inFlight > 0 {
		if next < len(records) && e.halted(ctx) {
			next, clean = len(records), false
			continue
		}
		slots := e.w.m.slots
		if next == len(records) {
			slots = nil
		}
		select {
		case slots <- struct{}{}:
			r := records[next]
			next++
			inFlight++
			go func() {
				defer func() { <-e.w.m.slots }()
				results <- e.erase(ctx, r, release)
			}()
		case got := <-results:
			inFlight--
			clean = e.take(got) && clean
			if got.fail != nil {
				next, clean = len(records), false
			}
		}
	}
	return clean
}

// halted reports that nothing more is to be begun: a newer target waits, or writes are forbidden.
func (e *eraser) halted(ctx context.Context) bool {
	return ctx.Err() != nil || e.w.superseded() || e.w.m.forbidden() != ""
}

func (e *eraser) take(got erased) bool {
	p := &e.w.pruning
	switch {
	case got.fail != nil:
		p.failed = got.fail
		e.checked = append(e.checked, plan.Kept{Record: got.record, Rule: plan.RuleOrder, Reason: got.fail.Reason, Message: got.fail.Message})
	case got.kept != nil:
		e.checked = append(e.checked, *got.kept)
		return true
	case !got.gone:
		got.leaving.record = got.record
		p.leaving = append(p.leaving, got.leaving)
	}
	return got.gone
}

// erase looks at the live object and removes it if it is ours. Only a look that finds it gone forgets it.
func (e *eraser) erase(ctx context.Context, r plan.Record, release bool) erased {
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	for attempt := 0; ; attempt++ {
		got, again := e.attempt(ctx, r, e.kinds[kindOf(r)].Resource, release)
		if !again || attempt == 3 {
			return got
		}
	}
}

func (e *eraser) attempt(ctx context.Context, r plan.Record, res apply.Resource, release bool) (out erased, again bool) {
	out.record = r
	if l, ok := e.leaving[r.ID]; ok && e.w.seenLeaving(res, r) {
		out.leaving = l
		return out, false
	}
	if why := fleet.OfAgent(r.ID, e.w.m.o.Namespace); why != "" {
		e.w.log.Warn("object is left as it is", "object", r.ID.String(), "because", why)
		e.w.m.inventory.Drop(e.w.ref, r.ID)
		out.gone = true
		return out, false
	}
	seen, version, err := e.w.see(ctx, res, r)
	if err != nil {
		out.fail = apply.Explain(r.ID, err)
		return out, false
	}
	verdict, rule := plan.Verify(e.in, r, seen, e.w.m.claimant(e.w.ref))
	if release && verdict == plan.Delete {
		verdict = plan.Release
	}
	if to, wanted := e.in.WantedBy(r.ID); wanted && to != e.w.ref && (verdict == plan.Delete || verdict == plan.Release) {
		out.gone = e.w.handOver(plan.Handover{Record: r, To: to}) // it came to want it since the plan was made
		return out, false
	}
	if verdict == plan.Release && e.in.Tombstone && e.in.Policy != fleet.DeleteOrphan {
		e.w.noteKept(r.ID.Short())
	}
	switch verdict {
	case plan.Gone, plan.Foreign:
		e.forget(r, res, verdict, rule)
		out.gone = true
		return out, false
	case plan.Leaving:
		out.leaving = leaving{reason: plan.ReasonTerminating, message: e.w.holdsUp(ctx, res, r, seen)}
		return out, false
	case plan.Stay:
		out.kept = &plan.Kept{Record: r, Rule: rule, Reason: plan.ReasonKept, Message: "a policy that selects its labels keeps it"}
		return out, false
	case plan.Delete:
		kept, wait, err := e.occupied(ctx, r, res)
		switch {
		case err != nil:
			out.fail = apply.Explain(r.ID, err)
			return out, false
		case wait != "":
			out.leaving = leaving{reason: plan.ReasonRemoving, message: wait}
			return out, false
		case kept != nil && !e.in.Tombstone:
			out.kept = kept
			return out, false
		case kept != nil:
			e.w.log.Info("object stays", "object", r.ID.String(), "rule", kept.Rule, "because", kept.Message)
			e.w.noteKept(r.ID.Short() + " (" + kept.Message + ")")
			verdict = plan.Release
		}
	}
	return e.request(ctx, r, res, seen, version, verdict)
}

// request deletes or releases exactly what was seen, then looks whether it is gone.
func (e *eraser) request(ctx context.Context, r plan.Record, res apply.Resource, seen plan.Seen, version string, verdict plan.Verdict) (out erased, again bool) {
	out.record = r
	act := e.w.m.client.Delete
	if verdict == plan.Release {
		act = e.w.m.client.Release
	}
	err := e.w.write(ctx, func(ctx context.Context) error {
		if e.w.superseded() {
			return errSuperseded
		}
		return act(ctx, res, namespaceOf(res, r.ID), r.ID.Name, types.UID(seen.UID), version)
	})
	switch {
	case errors.Is(err, errSuperseded), errors.Is(err, errHeld):
		out.leaving = leaving{reason: plan.ReasonHeld, message: "not sent: a newer word of the hub comes first"}
		return out, false
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return out, true
	case err != nil:
		out.fail = e.w.explain(ctx, res, r.ID, nil, err)
		return out, false
	}
	generation := e.in.Age.Generation
	if verdict == plan.Release {
		e.w.log.Info("object released", "object", r.ID.String(), "uid", seen.UID, "generation", generation, "rule", plan.RuleProtection)
		e.w.m.inventory.Drop(e.w.ref, r.ID)
		out.gone = true
		return out, false
	}
	e.w.log.Info("object deleted", "object", r.ID.String(), "uid", seen.UID, "resourceVersion", version, "generation", generation,
		"tombstone", e.in.Tombstone, "rules", "1-9, 11, 16-18 hold")
	e.w.noteGone(types.UID(seen.UID))
	now, _, err := e.w.see(ctx, res, r)
	if err == nil && (!now.Found || now.UID != seen.UID) {
		e.forget(r, res, plan.Gone, plan.RuleOwnershipLive)
		out.gone = true
	}
	out.leaving = leaving{reason: plan.ReasonTerminating, message: leavingText(now)}
	return out, false
}

func (e *eraser) forget(r plan.Record, res apply.Resource, verdict plan.Verdict, rule plan.Rule) {
	if verdict == plan.Foreign {
		e.w.log.Info("object is not ours any more", "object", r.ID.String(), "rule", rule)
	}
	e.w.m.inventory.Drop(e.w.ref, r.ID)
	e.w.m.watcher.Forget(res, namespaceOf(res, r.ID), r.ID.Name, r.UID)
}

// settleTime bounds how long intents are looked at before the module goes on; what is left is looked at later.
const settleTime = time.Minute

// settle finds out which intents became objects of ours. It reports whether any record changed. An intent whose kind the
// cluster does not have was never written: nothing but the record is forgotten.
func (e *eraser) settle(ctx context.Context, intents []plan.Record) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for _, r := range intents {
		kind := e.kinds[kindOf(r)]
		switch kind.state {
		case plan.KindGone:
			e.w.m.inventory.Drop(e.w.ref, r.ID)
			changed = true
			continue
		case plan.KindUnknown:
			e.checked = append(e.checked, plan.Kept{Record: r, Rule: plan.RuleUnknownKind, Reason: plan.ReasonUnsettled,
				Message: "whether it was written cannot be found out now: " + kind.why})
			continue
		}
		seen, _, err := e.w.see(ctx, kind.Resource, r)
		if err != nil {
			e.checked = append(e.checked, plan.Kept{Record: r, Rule: plan.RuleIntentIsNotOwned, Reason: plan.ReasonUnsettled,
				Message: "cannot be looked at: " + err.Error()})
			continue
		}
		changed = true
		verdict, _ := plan.Verify(e.in, r, seen, e.w.m.claimant(e.w.ref))
		if verdict == plan.Gone || verdict == plan.Foreign {
			e.w.m.inventory.Drop(e.w.ref, r.ID)
			continue
		}
		e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
			next.State, next.UID = plan.Owned, seen.UID
			return true
		})
	}
	return changed
}

// seenLeaving reports that the watch has the object as one that is being deleted.
func (w *worker) seenLeaving(res apply.Resource, r plan.Record) bool {
	f, synced := w.m.watcher.Look(res, namespaceOf(res, r.ID), r.ID.Name)
	return synced && f != nil && f.UID == r.UID && f.Terminating
}

// see reads the live object's metadata from the API server.
func (w *worker) see(ctx context.Context, res apply.Resource, r plan.Record) (plan.Seen, string, error) {
	live, err := w.m.client.GetMeta(ctx, res, namespaceOf(res, r.ID), r.ID.Name)
	switch {
	case apply.IsGone(err):
		return plan.Seen{}, "", nil
	case apierrors.IsNotFound(err):
		w.m.mapper.Reset(res.Group)
		return plan.Seen{}, "", err
	case err != nil:
		return plan.Seen{}, "", err
	}
	seen := plan.Seen{Found: true, UID: string(live.UID), Terminating: live.DeletionTimestamp != nil, Finalizers: live.Finalizers,
		Labels: live.Labels, Annotations: live.Annotations, Proof: apply.ProofOf(live.ManagedFields)}
	return seen, live.ResourceVersion, nil
}

// holdsUp says why an object that is being deleted is still there.
func (w *worker) holdsUp(ctx context.Context, res apply.Resource, r plan.Record, seen plan.Seen) string {
	if !plan.IsNamespace(r.ID) {
		return leavingText(seen)
	}
	live, err := w.m.client.Get(ctx, res, "", r.ID.Name)
	if err != nil {
		return leavingText(seen)
	}
	text := "is being deleted"
	if why := apply.NamespaceTrouble(live); why != "" {
		text += ": " + why
	}
	survey, err := w.m.served.get(ctx, w.m.mapper)
	if err != nil {
		return text
	}
	for _, f := range survey.Failed {
		text += "; " + w.m.unavailable(ctx, f)
	}
	return text
}

func leavingText(seen plan.Seen) string {
	if len(seen.Finalizers) == 0 {
		return "is being deleted"
	}
	return "is being deleted; finalizers that nobody has taken yet: " + strings.Join(seen.Finalizers, ", ")
}

func namespaceOf(res apply.Resource, id fleet.ObjectID) string {
	if !res.Namespaced {
		return ""
	}
	return id.Namespace
}

// listRecords shows the records that no target speaks of.
func (w *worker) listRecords() {
	w.pruning.kept = nil
	for _, r := range w.m.inventory.Module(w.ref) {
		if !w.desires(r.ID) {
			w.pruning.kept = append(w.pruning.kept, plan.Kept{Record: r.Record, Rule: plan.RulePositiveIntent, Reason: plan.ReasonKept,
				Message: "the hub does not list it, and did not say that it goes"})
		}
	}
}
