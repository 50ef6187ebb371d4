package watch

import (
	"slices"
	"time"
)

// How long a watch stays that nobody uses any more. What comes back soon after its watch ended, as with a module that is put and
// taken again and again, would have been served by it, and costs a list each time: the next time its watch stays longer.
const (
	firstLinger = 2 * time.Second
	// maxDoublings of the first make 512 s. It is also in units of the longest that calm is counted.
	maxDoublings = 8
)

// linger is how long the watch of something stays without a user, and why: what became of it when it ended before.
type linger struct {
	first     time.Duration
	doublings int
	since     time.Time // when doublings became what they are
	ended     time.Time // when the watch ended last; zero: it did not, or something used it since
}

func (l *linger) longest() time.Duration { return l.first << maxDoublings }

// calm takes a doubling back for each longest span in which no watch ended too early.
func (l *linger) calm(now time.Time) {
	for l.doublings > 0 && now.Sub(l.since) >= l.longest() {
		l.doublings--
		l.since = l.since.Add(l.longest())
	}
}

// span is for how long a watch stays that is unused from now on.
func (l *linger) span(now time.Time) time.Duration {
	l.calm(now)
	return l.first << l.doublings
}

// again says that something needs a new watch. One that ended less than the longest span ago has ended too early.
func (l *linger) again(now time.Time) {
	l.calm(now)
	if !l.ended.IsZero() && now.Sub(l.ended) < l.longest() && l.doublings < maxDoublings {
		l.doublings, l.since = l.doublings+1, now
	}
	l.ended = time.Time{}
}

// forgettable reports that it says no more than a new one would.
func (l *linger) forgettable(now time.Time) bool {
	l.calm(now)
	return l.doublings == 0 && !l.ended.IsZero() && now.Sub(l.ended) >= l.longest()
}

// lingerOf is that of a kind, or of an object that is watched by itself.
func (w *Watcher) lingerOf(k *kind) *linger {
	at := k.single()
	if w.lingers[at] == nil {
		w.lingers[at] = &linger{first: w.o.Linger}
	}
	return w.lingers[at]
}

// single names what is watched; a kind as a whole has no key.
func (k *kind) single() Single {
	if k.only != nil {
		return Single{k.resource, *k.only}
	}
	return Single{Resource: k.resource}
}

// used counts a user of a kind, and has it watched. w.mu is held.
func (w *Watcher) used(k *kind) {
	switch k.users++; {
	case k.leave != nil:
		k.leave.Stop()
		k.leave = nil
	case k.users == 1:
		w.lingerOf(k).again(time.Now())
		w.start(k)
	}
}

// unused takes a user of a kind away. Without any its watch ends, at once if it is not open: there is nothing to keep. w.mu is held.
func (w *Watcher) unused(k *kind) {
	if k == nil {
		return
	}
	if k.users--; k.users > 0 {
		return
	}
	if w.ctx == nil || k.dark() {
		w.drop(k)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(w.lingerOf(k).span(time.Now()), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if k.leave == timer {
			w.drop(k)
		}
	})
	k.leave = timer
}

// dropUnused ends the watch of a kind, unless something uses it. It reports whether nothing does.
func (w *Watcher) dropUnused(k *kind) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if k.users == 0 {
		w.drop(k)
	}
	return k.users == 0
}

// drop ends the watch of a kind that nobody uses. w.mu is held.
func (w *Watcher) drop(k *kind) {
	now, at := time.Now(), k.single()
	if k.leave != nil {
		k.leave.Stop()
		k.leave = nil
	}
	switch {
	case w.singles[at] == k:
		delete(w.singles, at)
	case w.kinds[k.resource] == k:
		delete(w.kinds, k.resource)
	default:
		return // it was dropped before
	}
	k.end()
	if k.stop != nil {
		k.stop()
	}
	w.lingerOf(k).ended = now
	for s, l := range w.lingers {
		if l.forgettable(now) {
			delete(w.lingers, s)
		}
	}
}

// inUse are the kinds and single objects that something uses.
func (w *Watcher) inUse() []*kind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(w.every(), func(k *kind) bool { return k.users == 0 })
}
