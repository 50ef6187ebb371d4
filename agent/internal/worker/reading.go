package worker

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/agent/internal/kube"
	"towline.dev/towline/agent/internal/watch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// What a module lists with readOnly is somebody else's: it is looked at, and neither written nor recorded. It carries no label of ours,
// so that each such object has a watch of its own, which says that something changed; what changed is then read.

// reading is what the last look said of an object that is only read.
type reading struct {
	uid     string
	version uint64
	print   *watch.Fingerprint
	at      time.Time
	values  // the first field that is not as the manifest says; no field: all are
}

// readAgain is how long an object is left alone after a look at it that changed nothing for good: it changes all the time, or what is known
// of it is newer.
const readAgain = time.Second

// holds reports that what was read still counts. known says that the watch shows whether the object is there.
func (r *reading) holds(f *watch.Fingerprint, known bool) bool {
	switch {
	case r == nil:
		return false
	case f == nil:
		return !known
	case f.Version == 0: // which is no number, of an API server of its own: only what was read itself is known to be that
		return f == r.print
	}
	return f.UID == r.uid && f.Version == r.version // what was read is no older than what the watch shows, but where the store was put back
}

// reads reports that the sync lists an object that is only to be read.
func (w *worker) reads(id fleet.ObjectID) bool {
	it := w.byID[id]
	return it != nil && it.policy.Reads()
}

func (it *item) single() watch.Single {
	return watch.Single{Resource: it.resource, Key: watch.Key{Namespace: it.liveNamespace(), Name: it.entry.ID.Name}}
}

// decideReading says whether an object that is only read is to be looked at.
func (w *worker) decideReading(it *item) plan.Action {
	var f *watch.Fingerprint
	known := false
	if it.resource.Resource != "" {
		f, known = w.m.watcher.SeeOne(it.single())
	}
	facts := plan.Facts{Module: w.ref, Policy: *it.policy, Read: it.reading.holds(f, known), Differs: it.reading != nil && it.reading.field != ""}
	return w.accepted(it, plan.Decide(facts))
}

// readsInTime has an object be looked at when its health changes with time alone.
func (w *worker) readsInTime(it *item, now time.Time) {
	if it.reading == nil {
		return
	}
	if f, _ := w.m.watcher.JudgeOne(it.single(), w.m.rules.forModule(w.ref)); f != nil && !f.Until().IsZero() {
		it.waiting, it.next = true, now.Add(f.Until().Sub(w.m.clock.Now()))
	}
}

// readLive looks at an object that is only read.
func (a *writer) readLive(ctx context.Context, out *outcome) error {
	single := watch.Single{Resource: a.resource, Key: watch.Key{Namespace: a.namespace, Name: a.id.Name}}
	before, _ := a.w.m.watcher.SeeOne(single)
	live, err := a.w.m.client.Get(ctx, a.resource, a.namespace, a.id.Name)
	if kube.IsGone(err) {
		a.w.m.watcher.ForgetOne(single, before)
		return absent(a.liveID())
	}
	if err != nil {
		return err
	}
	f := a.w.m.watcher.ObserveOne(single, live)
	r := &reading{uid: f.UID, version: f.Version, print: f, at: time.Now()}
	if err := a.leaveOf(live, plan.Apply); err != nil {
		return err
	}
	desired, err := a.left.Desired.Object()
	if err != nil {
		return err
	}
	if d := apply.Difference(desired, live); d != nil && !a.exempt.KeepsWhole() {
		r.values = a.w.valuesOf(a.liveID(), a.shows(), apply.Field{Pointer: d.Pointer, Live: d.Live}, d.Want)
	}
	out.reading = r
	return nil
}

// absent is said of an object that is only read, and is not there.
func absent(id fleet.ObjectID) *apply.Failure {
	return &apply.Failure{Reason: apply.ReasonAbsent, Transient: true, Kind: fleet.ErrNotFound,
		Message: id.String() + ": does not exist, and the policy readOnly: true leaves it to somebody else to make it"}
}

// took notes what a look at an object that is only read came to.
func (it *item) took(o outcome) {
	switch {
	case it.action.Verb != plan.Read:
	case o.reading != nil:
		it.reading = o.reading
	case o.fail != nil && o.fail.Reason == apply.ReasonAbsent:
		it.reading = nil
	}
}

// stateOfReading is what is known of an object that is only read.
func (w *worker) stateOfReading(it *item, action plan.Action) (fleet.ObjectState, detail) {
	state := fleet.ObjectState{Sync: fleet.SyncUnknown, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}
	var d detail
	r, blind := it.reading, w.m.watcher.BlindOne(it.single())
	switch {
	case r == nil && it.fail != nil && it.fail.Reason == apply.ReasonAbsent:
		state.Sync, state.Health = fleet.SyncOutOfSync, fleet.HealthMissing
	case r == nil:
	case blind != nil:
		d = detail{reason: "NotWatched", message: it.entry.ID.String() + ": cannot be watched: " + blind.Error()}
	default:
		f, _ := w.m.watcher.JudgeOne(it.single(), w.m.rules.forModule(w.ref))
		if f == nil {
			break // it is gone, and looked at in a moment
		}
		state.Sync, state.Health, state.Drift = fleet.SyncSynced, f.Health, cmp.Or(action.Drift, fleet.DriftInSync)
		d = w.heard(it.liveID(), f.Reason, f.Message)
		judged(it.policy, f.Reason, &state)
		if state.Drift == fleet.DriftDrifted {
			state.Sync = fleet.SyncOutOfSync
			d = detail{fleet.ObjectLeftSo, readText(it), "", r.values}
		}
	}
	if it.fail != nil {
		d = detail{it.fail.Reason, it.fail.Message, it.fail.By, d.values}
		if state.Sync == fleet.SyncSynced { // it is another one than what was read
			state.Sync = fleet.SyncUnknown
		}
	}
	return state, d
}

func readText(it *item) string {
	text, r := it.entry.ID.String()+": "+it.reading.field+" is ", it.reading
	return text + cmp.Or(r.live, "not set") + ", and " + cmp.Or(r.want, "not set") + " in the module; the policy readOnly: true leaves it so"
}

// acquireOne has an object watched that is only read, once for a worker.
func (w *worker) acquireOne(s watch.Single, id fleet.ObjectID) {
	w.mu.Lock()
	before, known := w.singles[id]
	if known && before == s {
		w.mu.Unlock()
		return
	}
	if w.singles == nil {
		w.singles = map[fleet.ObjectID]watch.Single{}
	}
	w.singles[id] = s
	w.mu.Unlock()
	w.m.readers.add(id, w)
	w.m.watcher.AcquireOne(s)
	if known {
		w.m.watcher.ReleaseOne(before)
	}
}

// releaseSingles ends the watches of what the sync does not list to be read any more.
func (w *worker) releaseSingles() {
	ended := map[fleet.ObjectID]watch.Single{}
	w.mu.Lock()
	for id, s := range w.singles {
		if !w.reads(id) {
			ended[id] = s
			delete(w.singles, id)
		}
	}
	w.mu.Unlock()
	for id, s := range ended {
		w.unreadBy(id)
		w.m.watcher.ReleaseOne(s)
	}
}

// readers are the workers that read an object which is somebody else's.
type readers struct {
	mu sync.Mutex
	of map[fleet.ObjectID]map[*worker]bool
}

func (x *readers) add(id fleet.ObjectID, w *worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.of == nil {
		x.of = map[fleet.ObjectID]map[*worker]bool{}
	}
	if x.of[id] == nil {
		x.of[id] = map[*worker]bool{}
	}
	x.of[id][w] = true
}

// refs are the modules that read an object.
func (x *readers) refs(id fleet.ObjectID) (out []fleet.ModuleRef) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for w := range x.of[id] {
		out = append(out, w.ref)
	}
	return out
}

func (x *readers) remove(id fleet.ObjectID, w *worker) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.of[id], w)
	if len(x.of[id]) == 0 {
		delete(x.of, id)
	}
}

// touch has those look again at once that read an object, also where they wait for it to be there.
func (x *readers) touch(id fleet.ObjectID) {
	x.mu.Lock()
	all := slices.Collect(maps.Keys(x.of[id]))
	x.mu.Unlock()
	for _, w := range all {
		w.retry(id)
	}
}
