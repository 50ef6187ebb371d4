package rollout

import (
	"cmp"
	"slices"
)

// stageCount counts the members of a stage; each member is in exactly one of the first seven.
type stageCount struct {
	toApply, inFlight, succeeded, failed, deferred, skipped, gone int

	leaving         int // of those that are members the ones that are to lose the module, and do not get the revision
	leavingFailed   int // of failed
	leavingDeferred int // of deferred
	failedUnseen    int // of failed those of which nothing was seen
	accepted        int // of failed those in spite of which a person went on
	pinned          int // of skipped those of the others that keep what they have through any number of rollouts

	open       int // of toApply those that nothing but a slot holds back
	late       int // of open and inFlight those that catch up
	silent     int // of deferred those that were assigned before they went away
	awayInWait int // of open those that are away, where the policy is to wait for them
	awayFlying int // of inFlight those that are away
}

func (c *stageCount) members() int {
	return c.toApply + c.inFlight + c.succeeded + c.failed + c.deferred + c.skipped
}

// getters are the members that are to have the revision.
func (c *stageCount) getters() int { return c.members() - c.leaving - c.pinned }

// shown is how many have shown whether the revision works.
func (c *stageCount) shown() int { return c.succeeded + c.failed - c.leavingFailed - c.failedUnseen }

// unseen is how many are to have the revision, and are waited for no more, though nobody has seen it there.
func (c *stageCount) unseen() int { return c.deferred - c.leavingDeferred + c.failedUnseen }

// leaveCount counts who is to lose the module, by flags of their records.
type leaveCount struct {
	all        int
	without    int // of all those whose clusters do not have it now
	unanswered int // of all those that have it, and that no person has confirmed
	waiting    int // of unanswered those that are not left out
	planned    int // of waiting those whose turn comes by the plan
	last       int // of waiting those whose clusters would have nothing any more
	left       int // of all those from which this rollout has taken it
}

// edit is the record of a member, to be changed.
func (d *decider) edit(i int) *Record {
	chunk := i / ChunkSize
	if d.own == nil {
		d.own = make([]bool, len(d.s.Chunks))
		d.s.Chunks = slices.Clone(d.s.Chunks)
	}
	for len(d.own) < len(d.s.Chunks) {
		d.own = append(d.own, true)
	}
	if !d.own[chunk] {
		d.own[chunk] = true
		d.s.Chunks[chunk] = slices.Clone(d.s.Chunks[chunk])
	}
	for len(d.dirty) <= i/64 {
		d.dirty = append(d.dirty, make([]uint64, (d.s.Len(d.p)+63)/64-len(d.dirty))...)
	}
	d.dirty[i/64] |= 1 << (i % 64)
	return &d.s.Chunks[chunk][i%ChunkSize]
}

func (d *decider) uncount(i int, r *Record) { d.tally(i, r, -1) }
func (d *decider) recount(i int, r *Record) { d.tally(i, r, 1) }

func (d *decider) tally(i int, r *Record, by int) {
	c := &d.count[r.Stage]
	if r.has(flagLeave) {
		d.tallyLeaver(i, r, by)
	}
	switch r.State {
	case ClusterSucceeded, ClusterRolledBack:
		c.succeeded += by
	case ClusterProgressing, ClusterSoaking:
		c.inFlight += by
		if r.has(flagLate) {
			c.late += by
		}
		if r.has(flagAway) {
			c.awayFlying += by
		}
	case ClusterToApply, ClusterWaiting:
		c.toApply += by
		if r.has(flagBaseline) {
			break
		}
		c.open += by
		if r.has(flagLate) {
			c.late += by
		}
		if d.st.Offline == OfflineWait && !d.observed(i).Connected {
			c.awayInWait += by
		}
	case ClusterFailed, ClusterTimedOut:
		c.failed += by
		if r.failedUnseen() {
			c.failedUnseen += by
		}
		if r.has(flagAccepted) {
			c.accepted += by
		}
	case ClusterDeferred:
		c.deferred += by
		if r.Step != 0 {
			c.silent += by
		}
	case ClusterSkipped:
		c.skipped += by
		if r.Reason == ReasonPinned && !r.has(flagLeave) {
			c.pinned += by
		}
	case ClusterRemoved:
		c.gone += by
	}
}

// tallyLeaver counts a member that is to lose the module, unless it had nothing.
func (d *decider) tallyLeaver(i int, r *Record, by int) {
	if r.State == ClusterRemoved && r.Step == 0 {
		return
	}
	d.leavers.all += by
	d.tallyLeaving(r, by)
	if !d.observed(i).has() {
		d.leavers.without += by
	}
	if !r.unanswered() {
		return
	}
	d.leavers.unanswered += by
	if !r.unconfirmed() {
		return
	}
	d.leavers.waiting += by
	if !r.has(flagLate) {
		d.leavers.planned += by
	}
	if r.has(flagLast) {
		d.leavers.last += by
	}
}

// tallyLeaving counts how far a member is that is to lose the module.
func (d *decider) tallyLeaving(r *Record, by int) {
	c := &d.count[r.Stage]
	switch r.State {
	case ClusterRemoved:
		if r.Reason != ReasonGone {
			d.leavers.left += by
		}
		return
	case ClusterFailed, ClusterTimedOut:
		c.leavingFailed += by
	case ClusterDeferred:
		c.leavingDeferred += by
	}
	c.leaving += by
}

// assign moves a member in this decision's step; that it moves is an event that follows.
func (d *decider) assign(i int, revision int64, leave bool) {
	if !d.assigned {
		d.assigned = true
		d.s.Step++
		d.touch()
	}
	r := d.edit(i)
	d.uncount(i, r)
	if r.Step == 0 {
		r.Previous = d.observed(i).Revision
		if d.observed(i).Lost { // it has one, and nobody knows which
			r.Previous = cmp.Or(r.Previous, d.p.From, d.p.Revision)
		}
	}
	r.Step, r.Revision, r.Generation = d.s.Step, revision, 0
	r.Started, r.ReadySince = d.now, 0
	d.recount(i, r)
	d.out.Assign = append(d.out.Assign, Assign{Member: int32(i), Revision: revision, Leave: leave})
}

// underWay has a member that was assigned something go. The clock of one that is expected back begins when it is heard.
func (d *decider) underWay(i int, e event, reason string) {
	d.turn(i, e, reason, "")
	if d.observed(i).Silent {
		d.standStill(i, ReasonNotHeard)
		return
	}
	d.wake(elapsed(d.now, d.st.ProgressDeadline))
}

// expect makes room for the moves of many members.
func (d *decider) expect(n int) {
	d.out.Assign = slices.Grow(d.out.Assign, n)
	d.out.Moves = slices.Grow(d.out.Moves, n+4)
}
