package worker

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// eraser removes objects under one plan.
type eraser struct {
	w       *worker
	in      plan.PruneInput
	kinds   map[kindKey]located
	checked []plan.Kept                // stay after a look at the cluster
	doomed  map[fleet.ObjectID]bool    // go by the plan, unless a look found that they stay; fixed while a stage goes on
	leaving map[fleet.ObjectID]leaving // were on their way out at the last look
	left    map[fleet.ObjectID]bool    // stay in the cluster without our marks, by the plan or, maybe, by their labels
	owners  map[string]bool            // the UIDs of what goes by the plan
	climbs  bool                       // something is to go with which what is left may go
	descent descent                    // of what stays
	bound   bindings                   // what stays, and would go with others
	late    []plan.Kept                // are not there, and may still come to be; of what a sync does not list
	lost    []vanished                 // to be forgotten with the next proof
	unseen  bool                       // whether some that are left are there could not be seen
	doubt   *apply.Failure             // why that could not be proven
}

// vanished is a record whose object is not there any more, or is not ours, as a look has it.
type vanished struct {
	record   plan.Record
	resource apply.Resource
	verdict  plan.Verdict
}

// erased is what came of one object.
type erased struct {
	record  plan.Record
	gone    bool
	lost    *vanished // with gone: to be forgotten
	kept    *plan.Kept
	fail    *apply.Failure
	leaving leaving // if it is none of these
	says    string  // by what a removal leaves it, once it does
}

// remove releases and deletes what the plan says, stage by stage, once that is noted.
func (e *eraser) remove(ctx context.Context, todo plan.PrunePlan) {
	e.doomed, e.left, e.owners = map[fleet.ObjectID]bool{}, map[fleet.ObjectID]bool{}, map[string]bool{}
	doomed := slices.Concat(todo.Delete...)
	for _, r := range doomed {
		e.doomed[r.ID], e.owners[r.UID] = true, true
		if e.mayBeLeft(r) {
			e.left[r.ID] = true // should it, its owners are to be taken from it before
		}
	}
	e.doom()
	for _, r := range todo.Release {
		e.left[r.ID] = true
	}
	e.descent.m = e.w.m
	e.climbs = len(e.owners) > 0 || len(todo.Release) > 0 && e.w.m.deletes()
	if e.halted(ctx) || !e.w.writeAhead(ctx, slices.Concat(todo.Release, doomed), e.in) {
		return
	}
	e.stage(ctx, todo.Release, true)
	if len(todo.Delete) == 0 {
		return
	}
	if !e.w.ownedKnown(ctx, ownedWait) {
		e.awaitOwned(todo.Delete)
		return
	}
	if e.w.held() != "" { // by what the watches have only just told
		e.awaitHold(todo.Delete)
		return
	}
	for i, stage := range todo.Delete {
		if i > 0 && e.w.held() != "" { // since the stage before
			e.awaitHold(todo.Delete[i:])
			return
		}
		// What is on its way out is not deleted again, however long it waits for a finalizer: nobody has to know what goes with it.
		doomed = slices.DeleteFunc(doomed, func(r plan.Record) bool { return e.w.seenLeaving(e.kinds[kindOf(r)].Resource, r) })
		e.bound = e.w.m.bindings(ctx, &e.descent, e.staying, doomed) // a hold may have come while the stage before went on
		if !e.stage(ctx, stage, false) {
			return
		}
	}
}

// mayBeLeft reports that a look at an object that is to go may find labels by which it is left. Those that were seen for a tombstone are in
// the record.
func (e *eraser) mayBeLeft(r plan.Record) bool {
	if _, seen := e.w.pruning.labels[r.ID]; e.in.Tombstone {
		return !seen && e.in.AsksLabels(r)
	}
	return plan.MayBeLeft(e.in.Policies, r)
}

// doom tells the other modules what is about to be deleted of this one. Of what goes with its module they know no more than that, so that
// what may be left by labels which could not be read is not among it.
func (e *eraser) doom() {
	doomed := maps.Clone(e.doomed)
	maps.DeleteFunc(doomed, func(id fleet.ObjectID, _ bool) bool { return e.in.Tombstone && e.left[id] })
	e.w.doomed.Store(&doomed)
}

// stage removes or releases the objects of one stage. It reports whether all are gone, so that the next stage may begin.
func (e *eraser) stage(ctx context.Context, records []plan.Record, release bool) bool {
	for _, k := range e.checked {
		delete(e.doomed, k.Record.ID)
	}
	e.doom()
	// What was refused goes last, for the stage ends with the first that is: the others must not wait for it.
	slices.SortStableFunc(records, func(a, b plan.Record) int { return cmp.Compare(e.w.pruning.refused[a.ID], e.w.pruning.refused[b.ID]) })
	results := make(chan erased, cap(e.w.m.slots))
	next, inFlight, clean := 0, 0, true
	slow := time.NewTicker(progressEvery)
	defer slow.Stop()
	for next < len(records) || inFlight > 0 {
		if len(e.lost) >= forgetAtOnce {
			clean = e.forget(ctx) && clean
		}
		if next < len(records) && e.halted(ctx) {
			next, clean = len(records), false
			continue
		}
		slots := e.w.m.slots
		if next == len(records) || inFlight == cap(slots) {
			slots = nil
		}
		select {
		case slots <- struct{}{}:
			r := records[next]
			next++
			inFlight++
			go func() {
				defer e.w.m.lend()()
				results <- e.guarded(ctx, r, release)
			}()
		case got := <-results:
			inFlight--
			clean = e.take(got) && clean
			e.w.progress()
			if got.fail != nil {
				next, clean = len(records), false
			}
		case <-slow.C: // one request that hangs keeps nobody from hearing of the others
			clean = e.forget(ctx) && clean
			e.w.progress()
		}
	}
	return e.forget(ctx) && clean
}

// forgetAtOnce is how many records wait for one proof.
const forgetAtOnce = 100

// halted reports that nothing more is to be begun: a newer target waits, or writes are forbidden.
func (e *eraser) halted(ctx context.Context) bool {
	return ctx.Err() != nil || e.w.superseded() || e.w.m.forbidden() != ""
}

func (e *eraser) take(got erased) bool {
	p := &e.w.pruning
	switch {
	case got.fail != nil:
		if p.refused == nil {
			p.refused = map[fleet.ObjectID]int{}
		}
		p.refused[got.record.ID]++
		p.failed = got.fail
		e.checked = append(e.checked, plan.Kept{Record: got.record, Rule: plan.RuleOrder, Reason: got.fail.Reason, Message: got.fail.Message})
	case got.kept != nil:
		e.checked = append(e.checked, *got.kept)
		return true
	case !got.gone:
		got.leaving.record = got.record
		p.leaving = append(p.leaving, got.leaving)
	case got.lost != nil:
		e.lost = append(e.lost, *got.lost)
	}
	return got.gone
}

// guarded erases; a bug that it runs into fails this object alone.
func (e *eraser) guarded(ctx context.Context, r plan.Record, release bool) (out erased) {
	err := e.w.about(r.ID, func() error {
		out = e.erase(ctx, r, release)
		return nil
	})
	if err != nil {
		return erased{record: r, fail: apply.Explain(r.ID, err)}
	}
	return out
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
	if e.unasked(r, res, release, &out) {
		return out, false
	}
	seen, live, err := e.w.see(ctx, res, r)
	if err != nil {
		out.fail = apply.Explain(r.ID, err)
		return out, false
	}
	if why := e.w.annotation(live); why != "" {
		out.leaving = leaving{reason: plan.ReasonHeld, message: why}
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
	var ties []tie
	if verdict == plan.Release {
		if ties, err = e.ties(ctx, r, live); err != nil {
			out.fail = apply.Explain(r.ID, err)
			return out, false
		}
	}
	if verdict == plan.Release && e.left[r.ID] && len(ties) == 0 && e.w.m.freed.rests(r.UID, time.Now()) {
		out.leaving = leaving{reason: plan.ReasonRemoving, message: "is left when it has stayed without its owner for a moment"}
		return out, false
	}
	if verdict == plan.Release && e.in.Tombstone && e.in.Policy != fleet.DeleteOrphan && len(ties) == 0 && !e.goesAlong(live) {
		out.says = leftText(r, seen)
	}
	if verdict == plan.Foreign {
		e.stays(r, seen)
	}
	if verdict == plan.Gone && e.w.m.late.mayLand(r.ID, time.Now()) {
		out.leaving = leaving{reason: plan.ReasonRemoving, message: lateText}
		return out, false
	}
	if verdict, done := e.withoutRequest(ctx, r, res, seen, verdict, rule, &out); !done {
		return e.request(ctx, r, res, seen, live, verdict, ties, out.says)
	}
	return out, false
}

// withoutRequest says what becomes of a record that needs no request, by the look at the live object: out then tells, and it is done.
// Otherwise it returns the verdict that a request is to carry out.
func (e *eraser) withoutRequest(ctx context.Context, r plan.Record, res apply.Resource, seen plan.Seen, verdict plan.Verdict, rule plan.Rule, out *erased) (_ plan.Verdict, done bool) {
	switch verdict {
	case plan.Gone, plan.Foreign:
		out.gone, out.lost = true, &vanished{r, res, verdict}
	case plan.Another:
		e.another(r)
		out.leaving = leaving{reason: plan.ReasonRemoving, message: "is another one than the agent had noted; it is looked at again"}
	case plan.Leaving:
		out.leaving = leaving{reason: plan.ReasonTerminating, message: e.w.holdsUp(ctx, res, r, seen)}
	case plan.Stay:
		out.kept = e.keep(r, seen, rule)
	case plan.Delete:
		if e.in.Tombstone && e.noteLabels(r, seen.Labels) { // somebody has put one on it just now
			out.leaving = leaving{reason: plan.ReasonRemoving, message: "has a label by which a policy keeps it; it is looked at again"}
			return verdict, true
		}
		verdict = e.unlessOccupied(ctx, r, res, out)
		return verdict, verdict == plan.Stay
	default:
		return verdict, false
	}
	return verdict, true
}

// unasked says what becomes of a record without a look at the live object, if that is known: out then tells.
func (e *eraser) unasked(r plan.Record, res apply.Resource, release bool, out *erased) bool {
	if l, ok := e.leaving[r.ID]; ok && e.w.seenLeaving(res, r) {
		out.leaving = l
		return true
	}
	if why := fleet.OfAgent(r.ID, e.w.m.o.Namespace); why != "" {
		e.w.log.Warn("object is left as it is", "object", r.ID.String(), "because", why)
		e.w.drop(r)
		out.gone = true
		return true
	}
	if k := e.w.keptByPolicy(r); k != nil && !release {
		out.leaving = leaving{reason: k.Reason, message: k.Message}
		return true
	}
	return false
}

// keep notes that a policy which selects labels of the live object keeps it.
func (e *eraser) keep(r plan.Record, seen plan.Seen, rule plan.Rule) *plan.Kept {
	e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
		was := next.Record
		next.Record = plan.RememberSeen(e.in.Policies, was, seen.Labels)
		return next.Record != was
	})
	return &plan.Kept{Record: r, Rule: rule, Reason: e.in.Keeping(r, seen.Labels), Message: "a policy that selects its labels keeps it"}
}

// unlessOccupied is what is to be done about an object that may be deleted, with regard to what would go along with it:
// delete or release it, or nothing yet (Stay), which out then tells.
func (e *eraser) unlessOccupied(ctx context.Context, r plan.Record, res apply.Resource, out *erased) plan.Verdict {
	kept, wait, err := e.occupied(ctx, r, res)
	switch {
	case err != nil:
		out.fail = apply.Explain(r.ID, err)
		return plan.Stay
	case wait != "":
		out.leaving = leaving{reason: plan.ReasonRemoving, message: wait, others: true}
		return plan.Stay
	case kept != nil && !e.in.Tombstone:
		out.kept = kept
		return plan.Stay
	case kept != nil:
		e.w.log.Info("object stays", "object", r.ID.String(), "because", kept.Message)
		out.says = r.ID.Short() + " (" + kept.Message + ")"
		return plan.Release
	}
	return plan.Delete
}

// request deletes or releases exactly what was seen, then looks whether it is gone.
func (e *eraser) request(ctx context.Context, r plan.Record, res apply.Resource, seen plan.Seen, live *metav1.PartialObjectMetadata, verdict plan.Verdict, ties []tie, says string) (out erased, again bool) {
	out.record = r
	x := act{verb: localpolicy.Delete, id: r.ID}
	if x.id.Namespace = namespaceOf(res, r.ID); verdict == plan.Release {
		x.verb = localpolicy.Release
	}
	err := e.w.write(ctx, x, func(ctx context.Context) error {
		if err := e.w.unlessSuperseded(); err != nil {
			return err
		}
		return e.act(ctx, x, r, res, seen, live, verdict, ties)
	})
	switch {
	case errors.Is(err, errSuperseded), errors.Is(err, errHeld):
		out.leaving = e.unsent(x.id, err)
		return out, false
	case errors.Is(err, errFreed):
		out.leaving = leaving{reason: plan.ReasonRemoving, message: freedText}
		return out, false
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		out.leaving = leaving{reason: plan.ReasonRemoving, message: "it changes all the time; it is looked at again"}
		return out, true
	case err != nil:
		if out.fail = e.w.explain(ctx, res, r.ID, nil, nil, err); isDenied(out.fail.Reason) {
			out.leaving, out.fail = leaving{reason: out.fail.Reason, message: "kept: " + out.fail.Message}, nil
		}
		return out, false
	}
	generation := ordered(e.in.Age)
	if verdict == plan.Release {
		e.w.log.Info("object released", "object", r.ID.String(), "uid", seen.UID, "generation", generation, "left_to", seen.TakenBy(r),
			"because", "it is to be left without our marks")
		e.tellLeft(r, res, seen)
		if says != "" {
			e.w.m.inventory.Leave(e.w.ref, says) // durable with the record's end
		}
		e.w.drop(r)
		out.gone = true
		return out, false
	}
	e.w.log.Info("object deleted", "object", r.ID.String(), "uid", seen.UID, "resourceVersion", live.ResourceVersion, "generation", generation,
		"because", map[bool]string{true: "its module goes", false: "its module does not list it any more"}[e.in.Tombstone])
	e.w.noteGone(types.UID(seen.UID))
	now, _, err := e.w.see(ctx, res, r)
	if err == nil && (!now.Found || now.UID != seen.UID) {
		out.gone, out.lost = true, &vanished{r, res, plan.Gone}
	}
	out.leaving = leaving{reason: plan.ReasonTerminating, message: leavingText(now)}
	return out, false
}

// unsent is said of an object from which a newer word keeps what was to be sent.
func (e *eraser) unsent(id fleet.ObjectID, err error) leaving {
	newer := leaving{reason: plan.ReasonRemoving, message: "not sent: a newer word of the hub comes first"}
	if errors.Is(err, errHeld) {
		return leaving{reason: plan.ReasonHeld, message: cmp.Or(e.w.heldThere(id), newer.message)}
	}
	return newer
}

// act sends what the verdict says about the object that was seen. ties are the owners that it has to be freed of before.
func (e *eraser) act(ctx context.Context, x act, r plan.Record, res apply.Resource, seen plan.Seen, live *metav1.PartialObjectMetadata, verdict plan.Verdict, ties []tie) error {
	namespace := namespaceOf(res, r.ID)
	switch {
	case verdict != plan.Release:
		if err := e.spare(ctx, r.ID, seen.UID); err != nil {
			return err
		}
		return e.w.takeAway(ctx, x, res, live.UID, live.ResourceVersion)
	case len(ties) > 0:
		return e.free(ctx, r, ties)
	case seen.TakenBy(r) != "":
		return e.w.m.client.Yield(ctx, res, namespace, live)
	}
	return e.w.m.client.Release(ctx, res, namespace, r.ID.Name, live.UID, live.ResourceVersion)
}

// forget drops the records of what is lost, once it is proven that the looks were at this cluster: another one, whose API
// server answers at the same address, has none of its objects. It reports whether it could.
func (e *eraser) forget(ctx context.Context) bool {
	lost := e.lost
	e.lost = nil
	if len(lost) == 0 {
		return true
	}
	if err := e.w.m.prove(ctx); err != nil {
		e.doubt = apply.Explain(lost[0].record.ID, err)
		e.w.pruning.failed = e.doubt
		return false
	}
	for _, x := range lost {
		r := x.record
		if x.verdict == plan.Foreign {
			e.w.log.Info("object is not ours any more", "object", r.ID.String(), "uid", r.UID)
		}
		e.w.drop(r)
		e.w.m.watcher.Forget(x.resource, namespaceOf(x.resource, r.ID), r.ID.Name, r.UID)
	}
	return true
}

// another notes that one is in the place of a record's object which is known by its marks only.
func (e *eraser) another(r plan.Record) {
	e.w.log.Warn("object was found by its marks in place of the one that was noted", "object", r.ID.String(), "uid", r.UID)
	e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
		next.State, next.UID, next.ResourceVersion, next.Want, next.Deleting = plan.Intent, "", 0, fleet.Digest{}, fleet.Age{}
		next.Found, next.Asked = true, false
		return true
	})
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
		seen, ours, undecided := e.w.intended(ctx, e.in, kind, r)
		switch {
		case undecided != nil:
			e.checked = append(e.checked, *undecided)
		case !ours:
			e.lost = append(e.lost, vanished{r, kind.Resource, plan.Gone})
		default:
			changed = true
			e.w.m.inventory.Amend(e.w.ref, r.ID, func(next *apply.Record) bool {
				next.State, next.UID, next.Aggregated = plan.Owned, seen.UID, e.w.m.mapper.Aggregated(kind.Resource)
				return true
			})
		}
	}
	forgot := len(e.lost) > 0 && e.forget(ctx)
	return changed || forgot
}

// intended looks whether the object of an intent is there and the module's, or says why that cannot be told.
func (w *worker) intended(ctx context.Context, in plan.PruneInput, kind located, r plan.Record) (seen plan.Seen, ours bool, undecided *plan.Kept) {
	unsettled := func(rule plan.Rule, message string) *plan.Kept {
		return &plan.Kept{Record: r, Rule: rule, Reason: plan.ReasonUnsettled, Message: message}
	}
	switch state, why := w.stateOfKind(kind, r); state {
	case plan.KindGone:
		return seen, false, nil
	case plan.KindUnknown:
		return seen, false, unsettled(plan.RuleUnknownKind, "whether it was written cannot be found out now: "+why)
	}
	seen, _, err := w.see(ctx, kind.Resource, r)
	if err != nil {
		return seen, false, unsettled(plan.RuleIntentIsNotOwned, "cannot be looked at: "+err.Error())
	}
	verdict, _ := plan.Verify(in, r, seen, w.m.claimant(w.ref))
	if verdict == plan.Gone && w.m.late.mayLand(r.ID, time.Now()) {
		return seen, false, unsettled(plan.RuleIntentIsNotOwned, lateText)
	}
	return seen, verdict != plan.Gone && verdict != plan.Foreign, nil
}

// seenLeaving reports that the watch has the object as one that is being deleted.
func (w *worker) seenLeaving(res apply.Resource, r plan.Record) bool {
	f, synced := w.m.watcher.Look(res, namespaceOf(res, r.ID), r.ID.Name)
	return synced && f != nil && f.UID == r.UID && f.Terminating
}

// see reads the live object's metadata from the API server.
func (w *worker) see(ctx context.Context, res apply.Resource, r plan.Record) (plan.Seen, *metav1.PartialObjectMetadata, error) {
	live, err := w.m.client.GetMeta(ctx, res, namespaceOf(res, r.ID), r.ID.Name)
	switch {
	case apply.IsGone(err):
		return plan.Seen{}, nil, nil
	case apierrors.IsNotFound(err):
		w.m.mapper.Reset(res.Group)
		return plan.Seen{}, nil, err
	case err != nil:
		return plan.Seen{}, nil, err
	}
	return w.seenOn(r.ID, live), live, nil
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
		text += ": " + w.hidden(r.ID).scrub(why)
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

// leftText names an object that a removal leaves, and who has it.
func leftText(r plan.Record, seen plan.Seen) string {
	by := seen.TakenBy(r)
	if by == "" {
		return r.ID.Short()
	}
	return r.ID.Short() + " (left to " + by + ")"
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

// ordered says by which generation something goes: none orders what goes because its cluster leaves the fleet.
func ordered(a fleet.Age) string {
	if a.Generation == math.MaxUint64 {
		return "none: the cluster leaves"
	}
	return strconv.FormatUint(a.Generation, 10)
}
