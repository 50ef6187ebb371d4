package worker

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/localpolicy"
	"towline.dev/towline/pkg/plan"
)

// landing is for how long a write may still be carried out of which nobody heard the answer, as one that a slow webhook holds
// when the machine of the agent loses its power. The API server gives up on each after 34 s.
const landing = 40 * time.Second

// late knows which objects may still come to be though they are not there, and which may still go though they are to stay.
type late struct {
	landing time.Duration

	mu    sync.Mutex
	all   time.Time                     // until when a process before may have left any; zero: none did
	going map[fleet.ObjectID]bool       // what that one was to delete, and was not about to make
	until map[fleet.ObjectID]time.Time  // of the writes of this process
	taken map[fleet.ObjectID]sentDelete // DELETEs that may still arrive, of whichever process
	began time.Time                     // when this process did
}

// sentDelete is a DELETE of which nobody heard the answer.
type sentDelete struct {
	sent  time.Time // zero: a process before may have sent it, and noted that it would
	until time.Time // it may arrive
}

// inherit takes note that a process before this one has written what the inventory has.
func (l *late) inherit(inventory *apply.Inventory, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.began = now
	for _, ref := range inventory.Modules() {
		l.all = now.Add(l.landing)
		inventory.Each(ref, func(r *apply.Record) {
			if r.Goes() || r.State == plan.Owned && r.Want.IsZero() { // which is how one is noted that was to go and is listed again
				l.take(r.ID, sentDelete{until: now.Add(l.landing)}, now)
			}
			if !r.Goes() {
				return
			}
			if r.Unheard {
				return
			}
			if l.going == nil {
				l.going = map[fleet.ObjectID]bool{}
			}
			l.going[r.ID] = true
		})
	}
}

// unanswered takes note that a write of an object had no answer.
func (l *late) unanswered(id fleet.ObjectID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = l.note(l.until, id, now)
}

// takes takes note that a DELETE of an object had no answer.
func (l *late) takes(id fleet.ObjectID, sent, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.take(id, sentDelete{sent, now.Add(l.landing)}, now)
}

// take adds a DELETE that may still arrive, and forgets those whose time is over. l.mu is held.
func (l *late) take(id fleet.ObjectID, t sentDelete, now time.Time) {
	if l.taken == nil {
		l.taken = map[fleet.ObjectID]sentDelete{}
	}
	maps.DeleteFunc(l.taken, func(_ fleet.ObjectID, t sentDelete) bool { return now.After(t.until) })
	l.taken[id] = t
}

// note adds an object of which a request that was sent by now may still be carried out, and forgets those whose time is over. l.mu is held.
func (l *late) note(times map[fleet.ObjectID]time.Time, id fleet.ObjectID, now time.Time) map[fleet.ObjectID]time.Time {
	if times == nil {
		times = map[fleet.ObjectID]time.Time{}
	}
	maps.DeleteFunc(times, func(_ fleet.ObjectID, until time.Time) bool { return now.After(until) })
	times[id] = now.Add(l.landing)
	return times
}

// mayTake reports that a DELETE of the object that is there may still arrive.
func (l *late) mayTake(id fleet.ObjectID, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.taken[id].until)
}

// mayTakeAny reports that any DELETE may still arrive.
func (l *late) mayTakeAny(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.taken {
		if now.Before(t.until) {
			return true
		}
	}
	return false
}

// said says of a DELETE that may still arrive what is known of it, and until when that is to be said.
func (l *late) said(id fleet.ObjectID, now time.Time) (text string, until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.taken[id]
	if !now.Before(t.until) {
		return "", time.Time{}
	}
	at := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	text = "a DELETE may have been sent before the agent started at " + at(l.began) + ", and before the hold"
	if !t.sent.IsZero() {
		text = "a DELETE was sent at " + at(t.sent) + ", before the hold"
	}
	return text + ", and its answer is not known: it may still go until " + at(t.until), t.until
}

// outrun takes note that what may arrive does not meet the object that is there.
func (l *late) outrun(id fleet.ObjectID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.taken, id)
}

// mayLand reports that an object may still come to be.
func (l *late) mayLand(id fleet.ObjectID, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until[id]) || now.Before(l.all) && !l.going[id]
}

// unheard reports that an object which is to go may still come to be. One that is there was made by what a process before this one sent, if by
// anything of it.
func (l *late) unheard(id fleet.ObjectID, there bool, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until[id]) || now.Before(l.all) && !l.going[id] && !there
}

// outrun makes another version of an object that is listed again while a DELETE of it may still arrive: that names the version which it was to
// take, and an apply of the same content makes none. The answer has nothing of that any more.
func (a *writer) outrun(ctx context.Context, live map[string]any) (map[string]any, error) {
	late, u := &a.w.m.late, &unstructured.Unstructured{Object: live}
	if !late.mayTake(a.liveID(), time.Now()) {
		return live, nil
	}
	g := apply.Guard{UID: string(u.GetUID())}
	if a.record != nil && a.record.UID == g.UID {
		a.again = u.GetResourceVersion()
		_, err := a.put(ctx, g, apply.ApplyOptions{Strict: true})
		if a.again = ""; err != nil {
			return nil, err
		}
		if live, err = a.put(ctx, g, apply.ApplyOptions{Strict: true}); err != nil {
			return nil, err
		}
	}
	late.outrun(a.liveID())
	return live, nil
}

// outrunKept makes another version of an object that was to go and is to stay after all, while a DELETE of it may still arrive. It reports whether
// none meets it any more.
func (e *eraser) outrunKept(ctx context.Context, r plan.Record) bool {
	res, id := e.kinds[kindOf(r)].Resource, r.ID
	if id.Namespace = namespaceOf(res, r.ID); !e.w.m.late.mayTake(id, time.Now()) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, objectTime)
	defer cancel()
	seen, live, err := e.w.see(ctx, res, r)
	if err == nil && (!seen.Found || seen.UID != r.UID || seen.Terminating) {
		return true
	}
	if err == nil && e.w.annotation(live) == "" {
		err = e.w.write(ctx, act{verb: localpolicy.Update, id: id}, func(ctx context.Context) error {
			if err := e.w.unlessSuperseded(); err != nil {
				return err
			}
			return e.w.m.client.Again(ctx, res, id.Namespace, id.Name, live.UID, live.ResourceVersion)
		})
		if err == nil {
			e.w.m.late.outrun(id)
			return true
		}
	}
	e.soon = true
	return false
}

// sentBefore says of an object that a hold keeps that a DELETE which the hold cannot recall may still take it; empty: none may. What has got
// an annotation since is another version than a DELETE names.
func (w *worker) sentBefore(rec *apply.Record, live fleet.ObjectID) string {
	if rec == nil || rec.Module != w.ref || !rec.Taking || w.heldThere(rec.ID) != "" {
		return ""
	}
	text, until := w.m.late.said(live, time.Now())
	w.status.doubt = earliest(w.status.doubt, until)
	return text
}

// sentBeforeAny is sentBefore of what a module has that is held as a whole.
func (w *worker) sentBeforeAny() string {
	if !w.m.late.mayTakeAny(time.Now()) {
		return ""
	}
	var first *apply.Record
	text := ""
	for _, r := range w.m.inventory.Module(w.ref) {
		if said := w.sentBefore(r, w.recordedLive(r.ID)); said != "" && (first == nil || r.ID.Compare(first.ID) < 0) {
			first, text = r, r.ID.String()+": "+said
		}
	}
	return text
}

// recordedLive is the identity in the cluster of what the inventory has: of a kind without namespaces none counts.
func (w *worker) recordedLive(id fleet.ObjectID) fleet.ObjectID {
	if it := w.byID[id]; it != nil {
		return it.liveID()
	}
	if live := (fleet.ObjectID{Group: id.Group, Kind: id.Kind, Name: id.Name}); !w.m.late.mayTake(id, time.Now()) && w.m.late.mayTake(live, time.Now()) {
		return live
	}
	return id
}

// goneText says of an object that is not there who deleted it.
func goneText(rec *apply.Record, held bool) string {
	switch {
	case !rec.Taking:
		return rec.ID.String() + ": was deleted by somebody else"
	case held:
		return rec.ID.String() + ": is gone, as the agent was to delete it, and is made again when the hold ends"
	}
	return rec.ID.String() + ": is gone, as the agent was to delete it, and is made again"
}

// lateText is said of an object that may still come to be.
const lateText = "is not there, but a write of it that had no answer may still arrive; it is looked at again"
