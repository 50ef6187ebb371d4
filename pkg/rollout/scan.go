package rollout

import "towline.dev/towline/pkg/fleet"

// scan counts the members, and lets every one's record follow what is observed of it. Some of that asks for the members of other stages: all
// are counted before.
func (d *decider) scan() {
	d.eachRecord(func(i int, r *Record) {
		d.recount(i, r)
	})
	d.acceptUnmarked()
	d.eachRecord(func(i int, r *Record) {
		if !d.settled(r, d.observed(i)) {
			d.look(i)
		}
	})
}

// acceptUnmarked marks the failures that a person accepted where a hub of before only counted them.
func (d *decider) acceptUnmarked() {
	back := d.s.Back
	switch marked := d.accepted(); {
	case back == nil && d.s.Accepted > marked && d.failed() <= d.s.Accepted:
		d.acceptFailures(isFailed)
	case back != nil && back.Accepted > d.s.backAccepted(d.p) && d.s.backFailed(d.p) <= back.Accepted:
		d.acceptFailures(d.s.failedBack)
	}
}

func (d *decider) eachRecord(f func(int, *Record)) {
	i := 0
	for c := range d.s.Chunks {
		for k := range len(d.s.Chunks[c]) {
			f(i, &d.s.Chunks[c][k])
			i++
		}
	}
}

// settled is the quick way past the many members that have nothing to tell.
func (d *decider) settled(r *Record, o *Observed) bool {
	if o.Gone || o.Anew || o.Unselected || o.UnselectedOlder || o.Stage != 0 || r.flags != 0 {
		return false
	}
	switch r.State {
	case ClusterSucceeded:
		return d.s.State.Ended() || !shows(r, o).ill()
	case ClusterSkipped, ClusterRolledBack:
		return true
	case ClusterToApply:
		return d.s.Stages[r.Stage].Started == 0
	}
	return false
}

// look lets one record follow what is observed of its member.
func (d *decider) look(i int) {
	o := d.observed(i)
	if d.membership(i, o) {
		return
	}
	r := d.s.record(i)
	if d.s.awaitsBack(r) && !d.s.State.Ended() {
		return // it waits for its turn to go back
	}
	d.lookLetBy(i, o)
	d.lookAs(i, o)
	if d.s.State.Ended() && d.relabelled(i, o) {
		d.lookAs(i, o) // by the rules of its new stage
	}
}

// lookAs looks at a member by the state that it is in.
func (d *decider) lookAs(i int, o *Observed) {
	r := d.s.record(i)
	switch r.State {
	case ClusterToApply, ClusterWaiting:
		d.lookToApply(i, o)
	case ClusterProgressing, ClusterSoaking:
		d.lookInFlight(i, o)
	case ClusterSucceeded:
		d.lookSucceeded(i, o)
	case ClusterFailed, ClusterTimedOut:
		d.lookRecovering(i, o)
	case ClusterDeferred:
		d.lookDeferred(i, o)
	}
}

// awaitsBack reports that the member is to go back and has not been moved back yet.
func (h *Head) awaitsBack(r *Record) bool {
	return r.has(flagBack) && h.Back != nil && r.Revision != h.Back.To
}

func (d *decider) begun(stage int16) bool { return d.s.Stages[stage].Started != 0 }

func (d *decider) lookToApply(i int, o *Observed) {
	r := d.s.record(i)
	if r.has(flagPinned) {
		d.turn(i, memberKept, ReasonPinned, "")
		return
	}
	if d.begun(r.Stage) && r.has(flagBaseline) {
		d.turn(i, memberStageBegan, "", "")
	}
	if !d.begun(r.Stage) || d.s.State.Ended() || d.s.Back != nil || d.in.Stands {
		return
	}
	r = d.s.record(i)
	switch {
	case d.showsCordoned(r, o):
		d.take(i, o)
	case obstacle(o) != "":
		d.holdBack(i, o)
	case o.Ready && d.has(r, o):
		d.take(i, o)
	}
}

// showsCordoned reports that a cordoned member has the target, so that it is given nothing, and shows what that does. Nobody who is not ready
// is to be seen where no stage follows, or after the end.
func (d *decider) showsCordoned(r *Record, o *Observed) bool {
	looks := d.begun(r.Stage) && d.s.Back == nil && !d.in.Stands
	return looks && obstacle(o) == ReasonCordoned && standstill(o) == "" && d.has(r, o) && (o.Ready || !d.last(int(r.Stage)) && !d.s.State.Ended())
}

// lookCordoned takes up who was deferred for a cordon and shows what the target does. It looks when it is known who has come since: whether a stage
// follows depends on that.
func (d *decider) lookCordoned() {
	d.eachRecord(func(i int, r *Record) {
		if r.State != ClusterDeferred || r.Reason != ReasonCordoned || r.given() {
			return
		}
		if o := d.observed(i); d.showsCordoned(r, o) {
			d.turn(i, memberBack, "", "")
			d.take(i, o)
		}
	})
}

// has reports that the member has the target already, and not by this rollout: there is nothing to assign.
func (d *decider) has(r *Record, o *Observed) bool {
	return r.Step == 0 && o.Revision == d.p.Revision && o.Generation != 0 && r.flags&(flagRetry|flagLeave) == 0
}

// take follows a member that has what it should without a step of this rollout.
func (d *decider) take(i int, o *Observed) {
	r := d.edit(i)
	r.Revision, r.Generation, r.Previous, r.Started = o.Revision, o.Generation, o.Revision, d.now
	d.turn(i, memberFound, "", "")
	d.lookInFlight(i, o)
}

// holdBack defers or fails a member of a stage that has begun if it cannot be moved now.
func (d *decider) holdBack(i int, o *Observed) {
	reason := obstacle(o)
	switch {
	case reason == "":
	case reason != ReasonHeld && d.s.record(i).has(flagAnew):
		d.stillFailed(i, o, reason)
	case isAway(reason) && d.st.Offline == OfflineWait:
	case isAway(reason) && d.st.Offline == OfflineFail:
		d.turn(i, memberMissed, reason, "")
	default:
		d.postpone(i, reason)
	}
}

// stillFailed has the failure of one that was to begin anew count again, as it cannot: nothing has shown that it is over.
func (d *decider) stillFailed(i int, o *Observed, reason string) {
	d.turn(i, memberStillFailed, reason, "")
	d.lookRecovering(i, o)
}

// postpone defers a member that is still to be assigned something: what it was assigned, or had, before does not count
// any more.
func (d *decider) postpone(i int, reason string) {
	r, e := d.s.record(i), memberPostponed
	switch {
	case r.Step != 0:
		e = memberAgain
	case r.Generation != 0:
		taken := d.edit(i)
		taken.Revision, taken.Previous, taken.Generation = 0, 0, 0
	}
	d.turn(i, e, reason, "")
}

func (d *decider) lookInFlight(i int, o *Observed) {
	r := d.s.record(i)
	if r.has(flagBaseline) && d.begun(r.Stage) {
		d.turn(i, memberOvertaken, "", "")
		d.lookAs(i, o) // one that is pinned does not wait for its turn
		return
	}
	shown := shows(r, o)
	if d.in.Stands && shown.Verdict != Fine {
		d.standStill(i, ReasonRestored)
		return
	}
	if shown.heard() && r.has(flagAway) {
		d.turn(i, memberHeard, d.s.errand(r), "")
		d.edit(i).Started = d.now
	}
	switch {
	case shown.Verdict == Fine:
		d.lookReady(i, o)
	case shown.Verdict == Failing:
		d.lookFailed(i, memberFailed, o.Reason, o.Message)
	case shown.Reason != "":
		d.lookStuck(i, shown.Reason)
	case shown.Why == UnseenSilent:
		d.standStill(i, ReasonNotHeard)
	default:
		d.lookUnready(i, o, shown)
	}
}

func (d *decider) lookStuck(i int, reason string) {
	r := d.s.record(i)
	policy := d.st.Offline
	if reason == ReasonHeld || r.has(flagBack|flagBaseline) || d.s.State.Ended() {
		policy = OfflineDefer
	}
	switch policy {
	case OfflineWait:
		d.standStill(i, reason)
	case OfflineFail:
		d.turn(i, memberMissed, reason, "")
	default:
		d.turn(i, memberStuck, reason, "")
	}
}

// standStill stops the clocks of a member on its way: they begin anew when it is heard.
func (d *decider) standStill(i int, reason string) {
	switch r := d.s.record(i); {
	case !r.has(flagAway):
		d.edit(i).ReadySince = 0
	case r.Reason == reason:
		return
	}
	d.turn(i, memberStill, reason, "")
}

// errand says what a member is on its way to, if that is anything but the rollout's revision.
func (h *Head) errand(r *Record) (reason string) {
	switch {
	case r.has(flagLeave) && r.Revision == 0:
		return ReasonLeaving
	case r.has(flagBack) && h.Back != nil && r.Revision == h.Back.To:
		return string(RollingBack)
	}
	return ""
}

// lookReady counts the time for which a member has been ready, to its success.
func (d *decider) lookReady(i int, o *Observed) {
	if d.watched(i, o) {
		if d.s.record(i).State != ClusterSoaking {
			d.turn(i, memberReady, "", "")
		}
		return
	}
	d.done(i)
}

// readySince is since when a member is known to be ready. It counts from the session in which its agent says so: how it did while there was none
// nobody knows, whether that was seen or not.
func (d *decider) readySince(i int, o *Observed) Instant {
	since, now := d.s.record(i).ReadySince, d.now
	if since != 0 {
		now = max(since, min(d.session(o), d.now))
	}
	if now != since {
		d.edit(i).ReadySince = now
	}
	return now
}

// watched reports that a member has to stay ready for longer before it counts.
func (d *decider) watched(i int, o *Observed) bool {
	until := elapsed(d.since(d.readySince(i, o)), d.st.MinReadyTime)
	if until <= d.now || d.s.record(i).has(flagLeave) {
		return false
	}
	d.wake(until)
	return true
}

// lookRecovering sees a failed member get ready. It counts as failed until it has been ready for as long as any other
// must be: what lets a paused rollout go on has to last.
func (d *decider) lookRecovering(i int, o *Observed) {
	r, shown := d.s.record(i), shows(d.s.record(i), o)
	if r.has(flagUnseen) && shown.ill() {
		d.lookUnseen(i, o, shown)
	}
	switch ready := shown.Verdict == Fine; {
	case !ready && r.ReadySince != 0:
		d.edit(i).ReadySince = 0
		return
	case !ready:
		return
	}
	if !d.watched(i, o) {
		d.turn(i, memberRecovered, "", "")
		d.done(i)
	}
}

// lookUnseen takes one that has timed out, and that nobody had seen with the revision, for one that has shown what that does there: it says that
// it fails, or has been heard for as long as a move may take and is not ready.
func (d *decider) lookUnseen(i int, o *Observed, shown Shown) {
	if until := elapsed(d.since(o.Session), d.st.ProgressDeadline); shown.Verdict == NotYet && until > d.now {
		d.wake(until)
		return
	}
	d.turn(i, memberShown, "", "")
}

// done is a move that came to its end.
func (d *decider) done(i int) {
	r := d.s.record(i)
	switch {
	case r.has(flagLeave) && r.Revision == 0:
		d.turn(i, memberLeft, ReasonLeaving, "")
	case r.has(flagBack):
		d.turn(i, memberRolledBack, "", "")
	case r.has(flagBaseline) || r.Revision != d.p.Revision:
		d.turn(i, memberBehind, "", "")
	default:
		d.turn(i, memberSucceeded, "", "")
	}
}

func (d *decider) lookFailed(i int, e event, reason, message string) {
	if d.s.record(i).has(flagBaseline) {
		d.turn(i, memberNoProof, reason, message)
		return
	}
	d.turn(i, e, reason, message)
	d.followsBack(i)
}

func (d *decider) lookUnready(i int, o *Observed, shown Shown) {
	r := d.s.record(i)
	if r.State == ClusterSoaking {
		rr := d.edit(i)
		if rr.ReadySince = 0; shown.Why == UnseenUnheard || o.Reason == fleet.TrackerSending { // nothing takes it long that has not answered yet
			rr.Started = d.now
		}
		d.turn(i, memberRegressed, ReasonRegressed, o.Message)
		r = d.s.record(i)
	}
	deadline := elapsed(d.since(r.Started), d.st.ProgressDeadline)
	if deadline > d.now {
		d.wake(deadline)
		return
	}
	e := memberTimedOut
	if shown.Verdict == Unwatched {
		e = memberTimedOutUnseen
	}
	d.lookFailed(i, e, ReasonTimedOut, o.Message)
}

// lookSucceeded sees a member fail after its success: at any time while the rollout runs; and sees it become unready
// while its stage is not over, since the soak is there to see that.
func (d *decider) lookSucceeded(i int, o *Observed) {
	r := d.s.record(i)
	if d.s.State.Ended() || d.in.Stands {
		return
	}
	switch shown := shows(r, o); {
	case !shown.ill():
	case shown.Verdict == Failing:
		d.lookFailed(i, memberFailed, o.Reason, o.Message)
	case d.s.Stages[r.Stage].Ended == 0:
		d.turn(i, memberRegressed, ReasonRegressed, o.Message)
		rr := d.edit(i)
		rr.Started, rr.ReadySince = d.now, 0
		d.wake(elapsed(d.now, d.st.ProgressDeadline))
	}
}

// lookDeferred takes a member up again that came back.
func (d *decider) lookDeferred(i int, o *Observed) {
	r := d.s.record(i)
	var reason string
	assigned := (r.Step != 0 || r.Generation != 0) && !r.has(flagRetry) // by a step, or taken as it was
	assigned = assigned && (!d.s.awaitsBack(r) || d.brought(i, r))      // one that was brought is given nothing on the way back
	if assigned {
		reason = shows(r, o).Reason
	} else {
		reason = obstacle(o)
	}
	if reason != "" {
		switch {
		case reason == r.Reason:
		case reason != ReasonHeld && r.has(flagAnew):
			d.stillFailed(i, o, reason)
		default:
			d.turn(i, memberStuck, reason, "")
		}
		return
	}
	if !assigned {
		e := memberBack
		if d.s.State == Aborted && !r.has(flagBaseline) { // which leaves every cluster as it is, as those whose turn had not come
			e = memberBackIdle
		}
		d.turn(i, e, "", "")
		d.lookAs(i, o) // it may have the target by now
		return
	}
	d.turn(i, memberOn, d.s.errand(r), "")
	rr := d.edit(i)
	rr.Started, rr.ReadySince = d.now, 0
	d.lookInFlight(i, o)
}
