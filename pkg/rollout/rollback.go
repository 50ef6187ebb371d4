package rollout

import "slices"

// startRollback marks what goes back: exactly the members that this rollout moved, and those that failed with the revision and had it before; or
// only those that failed, and those that are on their way out: what takes the module from them is the placement that is being taken back.
func (d *decider) startRollback(b Back) {
	b.Started = d.now
	before := d.s.Back // it was aborted
	if before == nil {
		d.noteFailed(&b)
	} else {
		b.Failed, b.Failures = before.Failed, before.Failures
	}
	d.s.Back, d.s.Pause, d.s.Ended = &b, nil, 0
	d.touch()
	var brought []int32
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if before != nil && before.brings(r) {
			d.s.Back.Total++
			continue
		}
		if !d.goesBack(r, b) {
			continue
		}
		d.turn(i, memberToGoBack, "", "")
		d.s.Back.Total++
		if r := d.s.record(i); d.brought(i, r) {
			brought = append(brought, int32(i))
		}
	}
	d.noteBrought(brought)
	ofBack := func(g GateHead) bool { return g.Position == BeforeRollback }
	d.s.Gates = slices.DeleteFunc(d.s.Gates, ofBack) // those of a way back that was aborted: this one asks its own, or none
	if !b.Gates {
		return
	}
	for i := range d.p.Stages {
		d.s.Gates = append(d.s.Gates, gateHeads(i, BeforeRollback, d.p.Stages[i].Before)...)
	}
}

// maxFailed is how many that had failed a rollback remembers.
const maxFailed = 5

// noteFailed has a rollback remember what had failed.
func (d *decider) noteFailed(b *Back) {
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if !isFailed(r) {
			continue
		}
		if b.Failures++; len(b.Failed) < maxFailed {
			b.Failed = append(b.Failed, Failure{Cluster: d.s.Member(d.p, i).Cluster, Reason: r.Reason, Message: r.Message, Since: r.Since})
		}
	}
}

// brings reports that the rollback gave a member the older revision.
func (b *Back) brings(r *Record) bool {
	return r.Revision == b.To && (r.has(flagBack) || r.State == ClusterRolledBack)
}

// mayGoBack reports that a person may roll the rollout back without saying to which revision.
func (s *State) mayGoBack(p *Plan, m *Module) bool {
	to := p.From
	if s.Back != nil {
		if to = s.Back.To; !s.goesOnBack(p) {
			return false
		}
	}
	return to != 0 && to != p.Revision && m.UnknownRevision(p.ID.Module, to) == nil
}

// goesOnBack reports that the rollback was aborted before all had gone back that were to.
func (s *State) goesOnBack(p *Plan) bool {
	if s.Back == nil || s.State != Aborted {
		return false
	}
	for i := range s.Len(p) {
		if p.goesBack(s.record(i), *s.Back) {
			return true
		}
	}
	return false
}

func (d *decider) goesBack(r *Record, b Back) bool { return d.p.goesBack(r, b) }

func (p *Plan) goesBack(r *Record, b Back) bool {
	moved := r.Step != 0 || r.Generation != 0 && isFailed(r) // who was found with the revision, and failed with it, is why others go back
	if !moved || r.has(flagPinned) || r.has(flagBaseline) && r.Revision == b.To {
		return false
	}
	left := r.has(flagLeave) && r.Revision == 0
	if !left && r.Revision != p.Revision {
		return false
	}
	if r.Reason == ReasonGone {
		return false
	}
	return b.Scope != ScopeFailed || isFailed(r) || left && r.InFlight()
}

// joinsBack has a member go back that was left out of it, or pinned, and is no longer: one that the older revision has a place for.
func (d *decider) joinsBack(i int) {
	if b := d.s.Back; b != nil && b.Scope != ScopeFailed && d.placement(d.observed(i)) == selected {
		d.followsBack(i)
	}
}

// followsBack has a member go back with the others, or after them: then only one that the older revision has a place for, as nobody is asked
// any more. Nobody goes back where that was aborted.
func (d *decider) followsBack(i int) {
	b, r, over := d.s.Back, d.s.record(i), d.s.State.Ended()
	switch {
	case b == nil, d.s.State == Aborted, r.has(flagBack), !d.goesBack(r, *b):
		return
	case over && d.placement(d.observed(i)) != selected:
		return
	}
	d.sendBack(i)
	if over {
		d.turn(i, memberToGoBackLate, "", "")
	}
}

// leavesBack is told of a member that does not go back any more, before it forgets that it was to.
func (d *decider) leavesBack(i int) {
	if d.s.Back == nil || !d.s.record(i).has(flagBack) {
		return
	}
	b := *d.s.Back
	b.Out++
	d.s.Back = &b
	d.touch()
}

// sendBack adds a member to those that go back, or takes one up again that was out of it.
func (d *decider) sendBack(i int) {
	d.turn(i, memberToGoBack, "", "")
	b := *d.s.Back
	if b.Out > 0 {
		b.Out--
	} else {
		b.Total++
	}
	d.s.Back = &b
	d.touch()
}

// rollBack moves members back, the newest move first, as many at once as the rollback's own budget allows.
func (d *decider) rollBack() {
	if d.backBreached() {
		d.pause(ReasonRollbackFailed, d.backFailures(d.s.backFailed(d.p)), "", "")
		return
	}
	w := d.wayBack()
	d.noteBrought(w.brought)
	chosen, ok := d.chooseBack(w.pending, d.st.Rollback.MaxConcurrency.limit(d.s.Back.Total)-w.flying)
	if !ok && d.s.Pause != nil {
		return
	}
	d.expect(len(chosen))
	for _, i := range chosen {
		d.moveBack(i, d.observed(i))
	}
	moving := d.inFlight() - d.flying(w.brought)
	if !ok || len(chosen) > 0 && moving > 0 {
		return
	}
	if moving == 0 {
		d.catchUpFrom(0)
		d.end(RolledBack, d.s.Back.Reason, d.wentBack())
	}
}

// backFailures are the facts of too many failures on the way back, with those of clusters that left, which nobody has answered.
func (d *decider) backFailures(failed int) *Facts {
	f := Facts{Count: failed, Total: d.s.Back.returns(), Revision: d.s.Back.To}
	if d.s.Pause != nil {
		f.Removed = d.s.Pause.Left
		f.Count, f.Total = f.Count+f.Removed, f.Total+f.Removed
	}
	return &f
}

// chooseBack takes the next members to go back, as many as there are slots; those that are away take none. It is not ok
// when a gate holds the rest, or nobody knows where they belong.
func (d *decider) chooseBack(pending []int32, slots int) (chosen []int, ok bool) {
	for _, p := range pending {
		if slots <= 0 {
			break
		}
		i := int(p)
		o, r := d.observed(i), d.s.record(i)
		if o.Cordoned {
			if r.State != ClusterDeferred || r.Reason != ReasonCordoned {
				d.turn(i, memberStopped, obstacle(o), "")
			}
			continue
		}
		if d.s.Back.Gates && !d.gates(int(r.Stage), BeforeRollback) {
			return chosen, false
		}
		if r.Previous != d.s.Back.To && !d.placed() {
			d.waitFor(ReasonUnplaced, &Facts{Revision: d.s.Back.To})
			return chosen, false
		}
		chosen = append(chosen, i)
		if standstill(o) == "" {
			slots--
		}
	}
	return chosen, true
}

// wentBack are the facts of a rollback that is over; those of a person who asked for it among them. Who failed on the way back, and was
// tolerated, has the older revision, and is not fine with it. To go is who may still have what the others went back from.
func (d *decider) wentBack() *Facts {
	f := Facts{Count: d.s.Back.returns(), Revision: d.s.Back.To, By: d.s.Back.By, Failed: d.s.backFailed(d.p)}
	for i := range d.count {
		f.Deferred += d.count[i].deferred
		f.Skipped += d.count[i].skipped
	}
	if f.Deferred > 0 {
		for i := range d.s.Len(d.p) {
			if r := d.s.record(i); r.State == ClusterDeferred && r.has(flagBack) {
				f.ToGo++
			}
		}
	}
	if d.s.Back.Scope == ScopeFailed {
		f.Code = ScopeFailed
	}
	return &f
}

// moveBack assigns the old revision. A member that is away finds it when it is back.
func (d *decider) moveBack(i int, o *Observed) {
	d.assign(i, d.s.Back.To, false)
	if reason := standstill(o); reason != "" {
		d.turn(i, memberBackStuck, reason, "")
		return
	}
	d.underWay(i, memberMovedBack, string(RollingBack))
}

// noteBrought counts who is not given the older revision, and whether some of them had the module before the rollout.
func (d *decider) noteBrought(brought []int32) {
	b := *d.s.Back
	b.Brought = len(brought)
	for _, i := range brought {
		b.Asks = b.Asks || d.s.record(int(i)).Previous != 0
	}
	if b.Brought == d.s.Back.Brought && b.Asks == d.s.Back.Asks {
		return
	}
	d.s.Back = &b
	d.touch()
}

// wayBack is who stands where on the way back.
type wayBack struct {
	pending []int32 // still to go back, newest move first
	brought []int32 // see brought
	flying  int
}

func (d *decider) wayBack() (w wayBack) {
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if !r.has(flagBack) || r.State == ClusterRemoved && r.Reason == ReasonGone {
			continue
		}
		back := r.Revision == d.s.Back.To
		switch {
		case d.brought(i, r):
			w.brought = append(w.brought, int32(i))
		case !back || r.has(flagRetry):
			w.pending = append(w.pending, int32(i))
		case r.InFlight():
			w.flying++
		}
	}
	w.pending = d.newestFirst(w.pending)
	return w
}

// brought reports that a member did not have the older revision before, and that its placement does not have it: it is not given
// that, but leaves when the rollback is over.
func (d *decider) brought(i int, r *Record) bool {
	return (r.Revision != d.s.Back.To || r.has(flagRetry)) && r.Previous != d.s.Back.To && d.placement(d.observed(i)) == unselected
}

// flying counts which of some members are on their way.
func (d *decider) flying(members []int32) (n int) {
	for _, i := range members {
		if d.s.record(int(i)).InFlight() {
			n++
		}
	}
	return n
}

// newestFirst sorts members by the step that moved them, the newest first, and within a step the last first. The list
// comes in the order of members.
func (d *decider) newestFirst(list []int32) []int32 {
	starts := make([]int32, d.s.Step+2) // by step: how many were moved later
	for _, i := range list {
		starts[d.s.record(int(i)).Step]++
	}
	var n int32
	for step := len(starts) - 1; step >= 0; step-- {
		starts[step], n = n, n+starts[step]
	}
	out := make([]int32, len(list))
	for k := len(list) - 1; k >= 0; k-- {
		step := d.s.record(int(list[k])).Step
		out[starts[step]] = list[k]
		starts[step]++
	}
	return out
}

// backBreached reports that more failed on the way back than is tolerated.
func (d *decider) backBreached() bool {
	return d.s.backFailed(d.p) > d.p.backTolerates(d.s.backAccepted(d.p))
}

// backTolerates is how many may fail on the way back: more than otherwise if a person has accepted more.
func (p *Plan) backTolerates(accepted int) (failures int) { return max(p.Tolerated(), accepted) }

// failedBack reports that a member failed on the way back.
func (h *Head) failedBack(r *Record) bool {
	return r.has(flagBack) && r.Revision == h.Back.To && isFailed(r)
}

// backFailed counts who failed on the way back.
func (s *State) backFailed(p *Plan) int {
	n := 0
	for i := range s.Len(p) {
		if s.failedBack(s.record(i)) {
			n++
		}
	}
	return n
}

// backAccepted is how many of those a person accepted.
func (s *State) backAccepted(p *Plan) (n int) {
	if s.Back == nil {
		return 0
	}
	for i := range s.Len(p) {
		if r := s.record(i); r.has(flagAccepted) && s.failedBack(r) {
			n++
		}
	}
	return n
}
