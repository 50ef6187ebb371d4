package worker

import (
	"sync"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// landing is for how long a write may still be carried out of which nobody heard the answer, as one that a slow webhook holds
// when the machine of the agent loses its power. The API server gives up on each after 34 s.
const landing = 40 * time.Second

// late knows which objects may still come to be though they are not there.
type late struct {
	landing time.Duration

	mu    sync.Mutex
	all   time.Time                    // until when a process before may have left any; zero: none did
	going map[fleet.ObjectID]bool      // what that one was to delete, and so did not make
	until map[fleet.ObjectID]time.Time // of the writes of this process
}

// inherit takes note that a process before this one has written what the inventory has.
func (l *late) inherit(inventory *apply.Inventory, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, ref := range inventory.Modules() {
		l.all = now.Add(l.landing)
		inventory.Each(ref, func(r *apply.Record) {
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
	if l.until == nil {
		l.until = map[fleet.ObjectID]time.Time{}
	}
	for old, until := range l.until {
		if now.After(until) {
			delete(l.until, old)
		}
	}
	l.until[id] = now.Add(l.landing)
}

// mayLand reports that an object may still come to be.
func (l *late) mayLand(id fleet.ObjectID, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.Before(l.until[id]) || now.Before(l.all) && !l.going[id]
}

// lateText is said of an object that may still come to be.
const lateText = "is not there, but a write of it that had no answer may still arrive; it is looked at again"
