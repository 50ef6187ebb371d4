package rollout

import (
	"slices"
	"time"
)

// Clock remembers from one decision about a rollout to the next what befell the clock by which it notes its times: it is set, forward and back,
// and another hub may have another one. The zero Clock knows of nothing. It is of one process, and is not stored.
type Clock struct {
	behind Instant // since when times that nobody knows to have been noted here are still to come; 0: none is
	spans  []span  // in which the clock was not set, the newest last, of one process
}

// span is from the first decision between two times at which the clock was set to the last, and on to the second of those.
type span struct {
	from, to Instant
	ran      time.Duration // how long the process had run then, by the clock that nobody sets
}

const (
	// setBy is from when on a clock was set; less is how long it takes to read two.
	setBy = 10 * time.Second
	// maxSpans is how many are remembered.
	maxSpans = 32
)

// At is the Clock for a decision at now, when the process has run for so long.
func (c Clock) At(now time.Time, ran time.Duration) Clock {
	at := At(now)
	next := span{from: at, to: at, ran: ran}
	c.spans = slices.Clone(c.spans)
	if n := len(c.spans); n > 0 {
		last := &c.spans[n-1]
		set := time.Duration(at-last.to) - (ran - last.ran)
		if set.Abs() < setBy {
			last.to, last.ran = at, ran
			return c
		}
		if c.behind != 0 {
			c.behind = c.behind.add(set)
		}
		gap := ran - last.ran // it was set somewhere in it: the one may have come as far, and the other have begun as early
		last.to, last.ran = last.to.add(gap), ran
		next.from = at.add(-gap)
		c.spans = c.spans[max(0, n+1-maxSpans):]
	}
	c.spans = append(c.spans, next)
	return c
}

// Decided is the Clock after a decision that was made with it.
func (c Clock) Decided(d *Decision) Clock {
	switch {
	case !d.Behind:
		c.behind = 0
	case c.behind == 0 && len(c.spans) > 0:
		c.behind = c.spans[len(c.spans)-1].to
	}
	return c
}

// since is a time that was noted by the clock as it stands now. Of two spans that have it, it is of the one by which it began later: what lasts may
// last for longer, and ends no sooner. What was noted before the first, by another process, is as if it were of that one. found is false for what
// is of none.
func (c Clock) since(noted Instant) (began Instant, found bool) {
	if len(c.spans) == 0 {
		return noted, false
	}
	here := c.spans[len(c.spans)-1]
	for i, s := range c.spans {
		if noted > s.to || noted < s.from && i > 0 {
			continue
		}
		by := noted.add(time.Duration(here.to-s.to) - (here.ran - s.ran))
		if !found || by > began {
			began, found = by, true
		}
	}
	if !found {
		began = noted
	}
	return began, found
}

// since is from when on it counts what began at a time that was noted. What began before the clock was set has lasted neither for longer nor less
// by that. A time that is still to come, and was not noted here, is by a clock that was ahead, as that of another hub: it counts from when that was
// seen, else what lasts would last for longer by as much. The note stays, for it may be this clock that is wrong, and is put right.
func (in *Input) since(noted Instant) Instant {
	began, _ := in.reckon(noted)
	return began
}

// reckon is since, and says whether the time is still to come and was not noted here.
func (in *Input) reckon(noted Instant) (began Instant, behind bool) {
	now := At(in.Now)
	if noted == 0 {
		return 0, false
	}
	began, found := in.Clock.since(noted)
	behind = !found && noted > now
	if seen := in.Clock.behind; behind && seen != 0 {
		began = seen
	}
	return min(began, now), behind
}

// since is as that of the input, and says that a time is still to come.
func (d *decider) since(noted Instant) Instant {
	began, behind := d.in.reckon(noted)
	d.out.Behind = d.out.Behind || behind
	return began
}

// clocksDiffer is by how much the clocks of two hubs may, so that what one notes is not without meaning for the other.
const clocksDiffer = time.Minute

// session is since when the agent's session is live; 0: it has none, or nobody knows, as where the clock of the hub that has it is ahead.
func (d *decider) session(o *Observed) Instant {
	if o.Session > d.now.add(clocksDiffer) {
		return 0
	}
	return o.Session
}
