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
	ordinal  int
	entry    fleet.BundleEntry
	want     fleet.Digest
	policy   *fleet.Policy  // shared by many
	resource apply.Resource // zero until it is known

	look    bool // decide about it in the next pass
	rejudge bool // the rules of its health changed: read it once more
	renewed bool // a new revision lists it: what a policy left deleted is made again
	waiting bool // next is to be waited for
	next    time.Time
	tries   int
	fail    *apply.Failure
	twin    bool // another item is the same object
	scaled  bool // a program set other replicas than the module says
	use     *use // a Namespace that is used, and in which nothing is ours
	action  plan.Action

	state  fleet.ObjectState
	detail *detail // nil: nothing to say
	since  time.Time
	rare   *rare // nil: there was nothing
}

// rare is kept of the few objects that somebody changed, or that do not get ready.
type rare struct {
	flaps flaps

	change *watch.Change // what values are of
	values values

	pods   detail // why the pods are not ready
	podsAt time.Time

	scaling *scaling // nil: nobody scaled it
}

// makeRare makes room for it.
func (it *item) makeRare() *rare {
	if it.rare == nil {
		it.rare = &rare{}
	}
	return it.rare
}

// flaps are the corrections so far; nil: none.
func (it *item) flaps() *flaps {
	if it.rare == nil {
		return nil
	}
	return &it.rare.flaps
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
	facts := plan.Facts{Module: w.ref, Want: it.want, Policy: *it.policy, Hold: w.held() != ""}
	_, facts.Yields = w.yields[it.ordinal]
	facts.Renewed = it.renewed
	rec := w.m.inventory.Get(it.entry.ID)
	f, synced := w.print(it)
	if it.use.holds(w.ref, rec, f, synced) {
		return plan.Action{Verb: plan.Skip, Drift: fleet.DriftInSync}
	}
	it.use = nil
	if rec != nil {
		facts.Record = &rec.Record
		facts.Live = plan.Live{Known: synced || f != nil, Exists: f != nil}
		if f == nil {
			facts.Live.Confirmed = w.m.watcher.Gone(it.resource, it.liveNamespace(), it.entry.ID.Name)
		} else {
			facts.Live.UID, facts.Live.Terminating, facts.Live.Match = f.UID, f.Terminating, f.Match(rec, it.autoscaled(f))
			facts.Live.Made = f.Made && w.marks(f, rec.Record)
			w.noteEnd(rec, f)
		}
	}
	return plan.Decide(facts)
}

// held says why nothing may be written for the module; empty: it may.
func (w *worker) held() string {
	if w.cur.hold {
		return heldText
	}
	return w.m.forbidden()
}

// jobs decides about every item that asks for it, and lists those to act on now.
func (w *worker) jobs(now time.Time) []*item {
	var out []*item
	for _, it := range w.items {
		ripe := it.waiting && !now.Before(it.next)
		if !it.look && !ripe {
			continue
		}
		it.look = false
		w.situateKnown(it)
		w.watchOwned(it, now)
		it.action = w.decide(it)
		if it.rejudge && it.action.Verb == plan.Skip {
			it.action.Verb = plan.Look
		}
		it.rejudge = false
		if it.rare != nil && it.action.Drift == fleet.DriftInSync {
			it.rare.flaps.open = false
		}
		if !it.action.Verb.Acts() && it.action.Verb != plan.Conflict {
			if it.fail != nil && it.action.Verb == plan.Skip {
				it.clear()
			}
			it.waiting = false
			if it.action.Verb == plan.Leave && w.unwatched(it) {
				w.recheck(it, ripe, now)
			}
			if it.action.Verb != plan.Look {
				continue
			}
		}
		if it.fail != nil && !ripe && now.Before(it.next) {
			it.waiting = true
			continue
		}
		if repeated(it.action.Verb) {
			if at := it.flaps().ready(now); now.Before(at) {
				it.waiting, it.next = true, at
				continue
			}
		}
		it.waiting = false
		out = append(out, it)
	}
	return out
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

// recheck has an object that is left as it is looked at now, if it is time to, or else later.
func (w *worker) recheck(it *item, ripe bool, now time.Time) {
	if ripe {
		it.action.Verb = plan.Look
		return
	}
	it.waiting, it.next = true, now.Add(w.m.o.Recheck)
}

func (it *item) clear() { it.fail, it.tries, it.next, it.waiting = nil, 0, time.Time{}, false }

// Back-off per object.
const (
	firstRetry       = 200 * time.Millisecond
	maxRetry         = 30 * time.Second
	firstRetrySteady = 5 * time.Second
	maxRetrySteady   = 5 * time.Minute
	maxRetryDenied   = 20 * time.Second
	retryDeniedEach  = 10 * time.Millisecond
)

// maxDenied is how long to wait at most before what the API server forbade is tried again: nothing tells of a right that is
// given, and whoever gave it waits. A request that is forbidden costs the API server little, but each stands in its audit
// log, so that a module of very many objects takes longer.
func (w *worker) maxDenied() time.Duration {
	return min(max(maxRetryDenied, time.Duration(len(w.items))*retryDeniedEach), maxRetrySteady)
}

// failed notes a failure and when to try again.
func (w *worker) failed(it *item, f *apply.Failure, now time.Time) {
	first, most := firstRetry, maxRetry
	if !f.Transient {
		first, most = firstRetrySteady, maxRetrySteady
	}
	if f.Reason == apply.ReasonForbidden {
		most = w.maxDenied()
	}
	wait := min(first<<min(it.tries, 16), most)
	it.tries++
	it.fails(f, now)
	it.next = now.Add(wait - wait/4 + rand.N(wait/2))
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

// Flap detection: the same change by the same manager again and again is a second writer that means it, and so is whoever
// changes what is ours very often, each time to another value.
const (
	flapWindow     = 10 * time.Minute
	flapFree       = 12 // corrections without delay
	flapLimit      = 20
	flapWriter     = 60 // corrections of whatever one manager changes
	flapRetry      = 5 * time.Minute
	flapBase       = 50 * time.Millisecond
	flapAnyLimit   = 200 // corrections of any kind in a minute
	flapAnyWindow  = time.Minute
	maxFlapChanges = 16
)

// flaps remembers the corrections of one object.
type flaps struct {
	ever    int  // changes that were corrected, or tried to
	open    bool // the newest of them is not corrected yet
	seen    []flap
	writers []flap // without a hash: whatever a manager changes
	total   int
	from    time.Time
	last    *flap // the newest of seen, and of writers
	writer  *flap
}

// flap is one kind of change that came back.
type flap struct {
	by    string
	hash  apply.Hash
	count int
	first time.Time
	at    time.Time
}

// observe counts a write that is about to be made to put something back; drift says that somebody had changed it.
func (f *flaps) observe(by string, hash apply.Hash, drift bool, now time.Time) {
	if drift && !f.open {
		f.ever++
	}
	f.open = drift
	if now.Sub(f.from) > flapAnyWindow {
		f.from, f.total = now, 0
	}
	f.total++
	f.seen, f.last = again(f.seen, flap{by: by, hash: hash}, now)
	f.writers, f.writer = again(f.writers, flap{by: by}, now)
}

// again counts a change among those that were seen lately.
func again(seen []flap, x flap, now time.Time) ([]flap, *flap) {
	seen = slices.DeleteFunc(seen, func(old flap) bool { return now.Sub(old.first) > flapWindow })
	at := slices.IndexFunc(seen, func(old flap) bool { return old.by == x.by && old.hash == x.hash })
	if at < 0 {
		if len(seen) >= maxFlapChanges {
			seen = seen[1:]
		}
		x.first = now
		seen = append(seen, x)
		at = len(seen) - 1
	}
	seen[at].count++
	seen[at].at = now
	last := seen[at]
	return seen, &last
}

// changes is how many changes there were, with one that is there now.
func (f *flaps) changes() int {
	if f == nil {
		return 1
	}
	if f.open {
		return f.ever
	}
	return f.ever + 1
}

// ready is when the next correction may be made.
func (f *flaps) ready(now time.Time) time.Time {
	if f == nil {
		return time.Time{}
	}
	if f.fighting() {
		at := f.from
		if f.last != nil {
			at = f.last.at
		}
		return at.Add(flapRetry)
	}
	if f.last == nil || f.last.count < flapFree || now.Sub(f.last.first) > flapWindow {
		return time.Time{}
	}
	return f.last.at.Add(flapBase << min(f.last.count-flapFree, 8))
}

// fighting reports that correcting has stopped.
func (f *flaps) fighting() bool {
	return f != nil && (f.last != nil && f.last.count >= flapLimit || f.writer != nil && f.writer.count >= flapWriter || f.total >= flapAnyLimit)
}
