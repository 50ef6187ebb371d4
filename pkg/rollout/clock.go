package rollout

import (
	"slices"
	"time"
)

// Clock remembers from one decision about a rollout to the next what befell the clock by which it notes its times: it is set, forward and back,
// and another hub may have another one. The zero Clock knows of nothing. It is of one process, and is not stored.
type Clock struct {
	behind Instant // since when times that the rollout noted are still to come; 0: none is
	back   time.Duration
	steps  []step
	last   Instant       // the decision before
	ran    time.Duration // how long the process had run then, by the clock that nobody sets
}

// step is by how much the clock was put forward: what was noted before at began later by so much.
type step struct {
	at Instant
	by time.Duration
}

const (
	// setBy is from when on a clock was set; less is how long it takes to read two.
	setBy = 10 * time.Second
	// maxSteps is how many are remembered.
	maxSteps = 8
)

// At is the Clock for a decision at now, when the process has run for so long.
func (c Clock) At(now time.Time, ran time.Duration) Clock {
	at := At(now)
	if c.last == 0 {
		c.last, c.ran = at, ran
		return c
	}
	forward := time.Duration(at-c.last) - (ran - c.ran)
	switch {
	case forward <= -setBy:
		c.back, c.behind = c.back-forward, 0 // what is to come begins anew
	case forward >= setBy:
		again := min(forward, c.back) // it is put right
		if c.back, forward = c.back-again, forward-again; forward >= setBy {
			c.steps = append(slices.Clone(c.steps[max(0, len(c.steps)-maxSteps+1):]), step{at, forward})
		}
	}
	c.last, c.ran = at, ran
	return c
}

// Decided is the Clock after a decision that was made with it.
func (c Clock) Decided(d *Decision) Clock {
	switch {
	case !d.Behind:
		c.behind = 0
	case c.behind == 0:
		c.behind = c.last
	}
	return c
}

// since is from when on it counts what began at a time that was noted. One that is still to come was noted by a clock that was ahead, that of
// another hub or one that was put back since: it counts from when that was seen, else what lasts would last for longer by as much. The note stays,
// for it may be this clock that is wrong, and is put right. What began before the clock was put forward has not lasted for longer by that.
func (in *Input) since(noted Instant) Instant {
	now := At(in.Now)
	if noted > now {
		if seen := in.Clock.behind; seen != 0 {
			return min(seen, now)
		}
		return now
	}
	for _, s := range in.Clock.steps {
		if noted != 0 && noted < s.at {
			noted = noted.add(s.by)
		}
	}
	return min(noted, now)
}

// since is as that of the input, and says that a time is still to come.
func (d *decider) since(noted Instant) Instant {
	d.out.Behind = d.out.Behind || noted > d.now
	return d.in.since(noted)
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
