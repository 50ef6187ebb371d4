package plan

import (
	"slices"
	"time"
)

// Flap detection: the same change by the same manager again and again is a second writer that means it, and so is whoever
// changes what is ours very often, each time to another value.
const (
	// FlapLimit is after how many corrections of one change, within 10 minutes, correcting stops.
	FlapLimit = 20
	// FlapWriter is the same of whatever one manager changes.
	FlapWriter = 60
	// FightRetry is how often a correction is made when correcting has stopped.
	FightRetry = 5 * time.Minute

	flapWindow     = 10 * time.Minute
	flapFree       = 12 // corrections without delay
	flapBase       = 50 * time.Millisecond
	flapAnyLimit   = 200 // corrections of any kind in a minute
	flapAnyWindow  = time.Minute
	maxFlapChanges = 16
)

// History remembers the corrections of one object. The zero History and nil are of one that was never corrected.
type History struct {
	ever    int       // changes that were corrected, or tried to
	open    bool      // the newest of them is not corrected yet
	first   time.Time // of them
	latest  time.Time
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
	hash  [16]byte
	count int
	first time.Time
	at    time.Time
}

// Observe counts a write that is about to be made to put something back; drift says that somebody had changed it.
func (h *History) Observe(by string, hash [16]byte, drift bool, now time.Time) {
	if drift && !h.open {
		if h.ever++; h.ever == 1 {
			h.first = now
		}
		h.latest = now
	}
	h.open = drift
	if now.Sub(h.from) > flapAnyWindow {
		h.from, h.total = now, 0
	}
	h.total++
	h.seen, h.last = again(h.seen, flap{by: by, hash: hash}, now)
	h.writers, h.writer = again(h.writers, flap{by: by}, now)
}

// Corrected says that the newest change is put back, or is not there any more.
func (h *History) Corrected() { h.open = false }

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

// Changes is how many changes there were, with one that is there now.
func (h *History) Changes() int {
	if h == nil {
		return 1
	}
	if h.open {
		return h.ever
	}
	return h.ever + 1
}

// Span is when the object was changed first and last, as far as changes were put back; of one that is there now and was not, since
// when it is.
func (h *History) Span(since time.Time) (first, last time.Time) {
	if h == nil || h.ever == 0 {
		return since, since
	}
	if h.open || since.Before(h.latest) {
		return h.first, h.latest
	}
	return h.first, since
}

// NotBefore is when the next correction may be made.
func (h *History) NotBefore(now time.Time) time.Time {
	if h == nil {
		return time.Time{}
	}
	if h.Fights() {
		at := h.from
		if h.last != nil {
			at = h.last.at
		}
		return at.Add(FightRetry)
	}
	if h.last == nil || h.last.count < flapFree || now.Sub(h.last.first) > flapWindow {
		return time.Time{}
	}
	return h.last.at.Add(flapBase << min(h.last.count-flapFree, 8))
}

// Fights reports that correcting has stopped.
func (h *History) Fights() bool {
	return h != nil && (h.last != nil && h.last.count >= FlapLimit || h.writer != nil && h.writer.count >= FlapWriter || h.total >= flapAnyLimit)
}

// Repeats reports that the verb writes what was written before, so that a second writer can make it do so for ever.
func (v Verb) Repeats() bool { return v == Correct || v == Restore || v == Repeat }
