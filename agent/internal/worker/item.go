package worker

import (
	"math/rand/v2"
	"slices"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// item is one desired object of the module.
type item struct {
	ordinal int
	entry   fleet.BundleEntry
	want    fleet.Digest
	*treatment
	resource apply.Resource // zero until it is known

	look    bool // decide about it in the next pass
	renewed bool // a new revision lists it, and it is not known yet whether it is there
	waiting bool // next is to be waited for
	twin    bool // another item is the same object
	scaled  bool // somebody else set other replicas than the module says
	denied  bool // by the cluster's policy
	// uncounted: its health does not count for whether the module, or its wave, is ready.
	uncounted bool
	old       int16 // pods of an older template that the object has (watch.Fingerprint.Old)
	// unseen: nothing is known of the object now; differs: somebody changed what its pods are made by (plan.User). turnedBack: and it is left
	// so, before it was ever seen ready as the module has it.
	unseen, differs, turnedBack bool
	next                        time.Time
	tries                       int
	fail                        *apply.Failure
	use                         *use     // a Namespace that is used, and in which nothing is ours
	reading                     *reading // of an object that is only read; nil: it was not, or is not there
	action                      plan.Action
	opinion                     *opinion // nil: the policy was not asked what it says of the content

	late *lateUse // of bindings that the agent evaluates; nil: the object refers to none, as nearly all

	state  fleet.ObjectState
	detail *detail // nil: nothing to say
	since  time.Time
	rare   *rare // nil: there was nothing
}

// rare is kept of the few objects that somebody changed, or that do not get ready.
type rare struct {
	history plan.History

	change *watch.Change // what values are of
	values values

	pods   detail // why the pods are not ready
	podsAt time.Time

	scaling  *scaling  // nil: nobody scaled it
	rereadAt time.Time // when it was read last because its health was judged by other rules, or nothing had come of reading it
	unbound  unbound
}

// makeRare makes room for it.
func (it *item) makeRare() *rare {
	if it.rare == nil {
		it.rare = &rare{}
	}
	return it.rare
}

// history is that of its corrections so far; nil: there were none.
func (it *item) history() *plan.History {
	if it.rare == nil {
		return nil
	}
	return &it.rare.history
}

// detail says why a state is not fine.
type detail struct {
	reason, message, by string
	values
}

// say notes why the item is not fine. Most are, so that nothing is kept for them.
func (it *item) say(d detail) {
	switch {
	case d == detail{}:
		it.detail = nil
	default:
		if it.detail == nil {
			it.detail = new(detail)
		}
		*it.detail = d
	}
}

// said is what was noted last.
func (it *item) said() detail {
	if it.detail == nil {
		return detail{}
	}
	return *it.detail
}

// print is the newest fingerprint of the object.
func (w *worker) print(it *item) (f *watch.Fingerprint, synced bool) {
	if it.resource.Resource == "" {
		return nil, false
	}
	return w.m.watcher.See(it.resource, it.liveNamespace(), it.entry.ID.Name)
}

// sees reports that the watch shows an object under the item's name.
func (w *worker) sees(it *item) bool {
	f, _ := w.print(it)
	return f != nil
}

func (it *item) liveNamespace() string {
	if it.resource.Resource != "" && !it.resource.Namespaced {
		return ""
	}
	return it.entry.ID.Namespace
}

// liveID is the identity that the object has in the cluster.
func (it *item) liveID() fleet.ObjectID {
	id := it.entry.ID
	id.Namespace = it.liveNamespace()
	return id
}

// decide says what to do about an item now.
func (w *worker) decide(it *item) plan.Action {
	if it.twin {
		it.fail = twice(it.entry.ID)
		return plan.Action{Verb: plan.Wait, Drift: fleet.DriftInSync}
	}
	if why := w.protected[it.ordinal]; why != "" {
		it.fail = protected(it.entry.ID, why)
		return plan.Action{Verb: plan.Wait, Drift: fleet.DriftInSync}
	}
	if it.policy.Reads() {
		return w.decideReading(it)
	}
	facts := plan.Facts{Module: w.ref, Want: it.want, Policy: *it.policy, Exempt: it.exempt, Hold: w.writesNothing(it.entry.ID)}
	_, facts.Yields = w.yields[it.ordinal]
	rec := w.m.inventory.Get(it.entry.ID)
	it.renewed = it.renewed && rec != nil && rec.Module == w.ref && rec.Written()
	f, synced := w.print(it)
	if it.use.holds(w.ref, rec, f, synced, facts.Hold) {
		return plan.Action{Verb: plan.Skip, Drift: fleet.DriftInSync}
	}
	if it.use.changed(w.ref, rec, f) {
		return w.accepted(it, plan.Action{Verb: plan.Use, Drift: fleet.DriftInSync})
	}
	it.use = nil
	if rec != nil {
		facts.Record = &rec.Record
		facts.Live = plan.Live{Known: synced || f != nil, Exists: f != nil}
		if f == nil {
			facts.Live.Confirmed = w.m.watcher.Gone(it.resource, it.liveNamespace(), it.entry.ID.Name)
		} else {
			w.noteScaled(it, f, rec)
			facts.Live.UID, facts.Live.Terminating, facts.Live.Match = f.UID, f.Terminating, f.Match(rec, it.autoscaled(f, rec))
			facts.Live.Made = f.Made && w.marks(f, rec.Record)
			w.noteEnd(rec, f)
			facts.Record = w.marked(rec, f, facts.Live.Match)
		}
		w.renew(it, rec, &facts)
		facts.Alike = w.wasAlike(it, &facts)
	}
	action := w.accepted(it, plan.Decide(facts))
	if (action.Verb == plan.Skip || action.Verb == plan.Leave) && w.misjudged(rec, f) {
		action.Verb = plan.Look
	}
	return action
}

// renew has an object that is gone, or goes, when a revision first lists it be made by that, though a policy leaves it deleted: its record is of nothing then.
func (w *worker) renew(it *item, rec *apply.Record, facts *plan.Facts) {
	live := facts.Live
	if !it.renewed || !live.Known || !live.Exists && !live.Confirmed {
		return
	}
	it.renewed = false
	if !facts.Gone() && !live.Terminating || rec.MayHaveRun() {
		return
	}
	w.m.inventory.Amend(w.ref, rec.ID, func(r *apply.Record) bool {
		r.Want, r.Content = fleet.Digest{}, fleet.Digest{}
		return true
	})
	facts.Record = &w.m.inventory.Get(rec.ID).Record
}

// marked is the record of an object, as one that is to be written again where the object carries the label of another hub by our own last
// write: no watch shows what becomes of it.
func (w *worker) marked(rec *apply.Record, f *watch.Fingerprint, match plan.Match) *plan.Record {
	if !f.Unwatched || f.UID != rec.UID || match != plan.MatchYes || rec.State != plan.Owned || rec.Module != w.ref || rec.Want.IsZero() {
		return &rec.Record
	}
	w.m.inventory.Amend(w.ref, rec.ID, func(r *apply.Record) bool {
		r.Want = fleet.Digest{}
		return true
	})
	return &w.m.inventory.Get(rec.ID).Record
}

// held says why nothing may be written for the module; empty: it may.
func (w *worker) held() string {
	if w.cur.hold {
		return heldText
	}
	if why := w.m.forbidden(); why != "" || w.cur.kind != targetTombstone {
		return why
	}
	return w.removalHeld()
}

// holds reports that an object is held by itself.
func (w *worker) holds(id fleet.ObjectID) bool { return w.holdText(id) != "" }

// writesNothing reports that nothing may be written to an object: it is held, or all is.
func (w *worker) writesNothing(id fleet.ObjectID) bool { return w.held() != "" || w.holds(id) }

// jobs decides about every item that asks for it, and lists those to act on now.
func (w *worker) jobs(now time.Time) []*item {
	var out []*item
	together := w.ripeNamespaces(now)
	for _, it := range w.items {
		ripe := it.waiting && (!now.Before(it.next) || it.lacksNamespace() && together[it.entry.ID.Namespace])
		if !it.look && !ripe {
			continue
		}
		it.look = false
		w.situateKnown(it)
		w.watchOwned(it, now)
		was := it.action.Verb
		it.decided(w.decide(it), it.fail == nil || w.sees(it))
		if it.rare != nil && it.action.Drift == fleet.DriftInSync {
			it.rare.history.Corrected()
		}
		if !it.action.Verb.Acts() && it.action.Verb != plan.Conflict && it.action.Verb != plan.Share {
			if it.fail != nil && (it.action.Verb == plan.Skip || it.action.Drift == fleet.DriftHeld && (w.taking(it) || it.fail.Transient)) {
				it.clear() // of what is held nothing is tried any more: it is said how it is
			}
			it.waiting = false
			w.readsInTime(it, now)
			if it.action.Verb == plan.Leave && w.unwatched(it) || it.action.Verb == plan.Wait && w.goesUnwatched(it) {
				w.recheck(it, ripe, now)
			}
			if it.action.Verb != plan.Look {
				continue
			}
		}
		if it.action.Verb == plan.Share || it.action.Verb == plan.Conflict && !it.ofAnother() {
			it.clear() // it was in conflict, or waited, until the other one shared it; or failed before another one had it
		}
		if it.fail != nil && !ripe && now.Before(it.next) {
			it.waiting = true
			continue
		}
		if at := w.notBefore(it, was, now); now.Before(at) {
			it.waiting, it.next = true, at
			continue
		}
		it.waiting = false
		out = append(out, it)
	}
	if !slices.ContainsFunc(w.items, w.unlooked) {
		w.m.inventory.Listed(w.ref, w.listing())
	}
	return out
}

// ripeNamespaces are those that were not there, and for which something is to be tried again now: all that lacked one is tried with it, in order. Each for
// itself would come up to half a minute apart, and a workload before what it uses.
func (w *worker) ripeNamespaces(now time.Time) map[string]bool {
	var out map[string]bool
	for _, it := range w.items {
		if !it.waiting || now.Before(it.next) || !it.lacksNamespace() {
			continue
		}
		if out == nil {
			out = map[string]bool{}
		}
		out[it.entry.ID.Namespace] = true
	}
	return out
}

func (it *item) lacksNamespace() bool {
	return it.fail != nil && it.fail.Reason == apply.ReasonNoNamespace
}

// unlooked reports that nobody knows yet whether an object is there that a new revision lists. Of what the module does not write, and of a kind
// that nobody watches, nobody would ever: it may not keep the others from being noted as looked at.
func (w *worker) unlooked(it *item) bool {
	return it.renewed && !it.twin && w.protected[it.ordinal] == "" && w.m.watcher.Blind(it.resource) == nil
}

// taking reports that the object was to be deleted to be made again, and was not yet.
func (w *worker) taking(it *item) bool {
	rec := w.m.inventory.Get(it.entry.ID)
	return rec != nil && rec.Module == w.ref && rec.Taking
}

// notBefore is when the item's action, which follows another one, may be carried out at the earliest.
func (w *worker) notBefore(it *item, was plan.Verb, now time.Time) time.Time {
	switch {
	case it.action.Verb.Repeats():
		return it.history().NotBefore(now)
	case it.action.Verb == plan.Look:
		return w.reread(it, was == plan.Look, now)
	case it.action.Verb == plan.Read && it.reading != nil:
		return it.reading.at.Add(readAgain)
	case it.action.Verb == plan.Use && it.use != nil:
		return it.use.at.Add(readAgain)
	}
	return now
}

// unwatched reports that no watch tells what happens to the object: it lacks our label, or is gone, and another one in its place
// would lack it.
func (w *worker) unwatched(it *item) bool {
	f, synced := w.print(it)
	if f != nil {
		return f.Unwatched
	}
	rec := w.m.inventory.Get(it.entry.ID)
	return synced && rec != nil && rec.Module == w.ref && rec.Written()
}

// goesUnwatched reports that the object is being deleted, and that no watch tells when it is gone: it has lost our label.
func (w *worker) goesUnwatched(it *item) bool {
	f, _ := w.print(it)
	return f != nil && f.Unwatched && f.Terminating
}

// recheck has an object that is left as it is looked at now, if it is time to, or else later.
func (w *worker) recheck(it *item, ripe bool, now time.Time) {
	if ripe {
		it.action.Verb = plan.Look
		return
	}
	it.waiting, it.next = true, now.Add(w.m.o.Recheck)
}

// decided takes what is to be done. What failed at an object that has gone since, by the watch, says nothing of the one that is to be made in its
// place: the person who deleted it, as the message of an immutable field says to, waits for that.
func (it *item) decided(next plan.Action, seen bool) {
	was, goes := it.action.Verb, next.Verb.Makes() || next.Verb == plan.Look && !seen
	if it.fail != nil && goes && was.Writes() && !was.Makes() {
		it.clear()
	}
	it.action = next
}

func (it *item) clear() { it.fail, it.tries, it.next, it.waiting = nil, 0, time.Time{}, false }

// failed notes a failure and when to try again.
func (w *worker) failed(it *item, f *apply.Failure, now time.Time) {
	it.fails(f, now)
	retry := plan.Retry{Transient: f.Transient, Denied: f.Denied, Taken: f.Taken(), Objects: len(w.items), Tries: it.tries}
	if it.mayBeDeclared(now) {
		retry.Transient, retry.Tries = true, 0
	} else {
		it.tries++
	}
	it.next = now.Add(retry.Wait(rand.Float64()))
	it.waiting = true
}

// fails notes a failure, and since when it has been of this reason.
func (it *item) fails(f *apply.Failure, now time.Time) {
	own := *f // it may be that of many items
	own.Since = now
	if it.fail != nil && it.fail.Reason == f.Reason && !it.fail.Since.IsZero() {
		own.Since = it.fail.Since
	}
	it.fail = &own
}
