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
	all   time.Time                    // until when a process before may have left any; zero: none did
	going map[fleet.ObjectID]bool      // what that one was to delete, and so did not make
	until map[fleet.ObjectID]time.Time // of the writes of this process
	taken map[fleet.ObjectID]time.Time // until when a DELETE may still arrive, of whichever process
}

// inherit takes note that a process before this one has written what the inventory has.
func (l *late) inherit(inventory *apply.Inventory, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ref := range inventory.Modules() {
		l.all = now.Add(l.landing)
		inventory.Each(ref, func(r *apply.Record) {
			if r.Goes() || r.State == plan.Owned && r.Want.IsZero() { // which is how one is noted that was to go and is listed again
				l.taken = l.note(l.taken, r.ID, now)
			}
			if !r.Goes() {
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
func (l *late) takes(id fleet.ObjectID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken = l.note(l.taken, id, now)
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
	return now.Before(l.taken[id])
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

// lateText is said of an object that may still come to be.
const lateText = "is not there, but a write of it that had no answer may still arrive; it is looked at again"
