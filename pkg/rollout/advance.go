package rollout

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// advance goes through the stages as far as it can.
func (d *decider) advance() {
	if !d.mayStart() {
		return
	}
	busy := -1
	for d.s.Stage < len(d.p.Stages) {
		if !d.stage(d.s.Stage) {
			busy = d.s.Stage
			break
		}
	}
	if d.s.Pause != nil || d.s.Back != nil || d.s.State.Ended() {
		return // it failed: nothing moves
	}
	d.moves()
	if busy < 0 {
		d.finish()
	} else if d.wait.reason == "" {
		d.whyBusy(busy)
	}
}

// mayStart holds the rollout before its first move.
func (d *decider) mayStart() bool {
	if d.s.Step != 0 || d.s.Stage != 0 || d.begun0() {
		return true
	}
	if empty := d.emptyOverrides(); len(empty) > 0 {
		d.waitFor(ReasonEmptyOverride, &Facts{Names: empty})
		return false
	}
	if d.p.ConfirmLeave && d.leavers.waiting > 0 {
		d.waitFor(ReasonConfirm, &Facts{Count: d.leavers.waiting, Total: d.p.Assigned})
		return false
	}
	return true
}

// emptyOverrides are the overrides that hold the first move: those that match no cluster, until somebody says that this is right.
func (d *decider) emptyOverrides() []string {
	if d.s.OverridesPromoted {
		return nil
	}
	matched := func(name string) bool { return slices.Contains(d.in.Matched, name) }
	return slices.DeleteFunc(slices.Clone(d.p.EmptyOverrides), matched)
}

func (d *decider) begun0() bool { return len(d.s.Stages) > 0 && d.s.Stages[0].Started != 0 }

func (d *decider) waitFor(reason string, facts *Facts) { d.wait = waitFor{reason, facts} }

// stage moves one stage on; true if it is over.
func (d *decider) stage(n int) bool {
	h := &d.s.Stages[n]
	if h.Started == 0 {
		if !d.enter(n) {
			return false
		}
		d.openStage(n)
	} else {
		d.adopt(n)
	}
	if d.breached() { // by who is away, and now in a stage that has begun
		d.fail(ReasonFailures, d.failures())
		return false
	}
	if !d.quiet(n) {
		return false
	}
	if !d.soaked(n) || !d.gates(n, After) || d.lookedAt(n, ClusterSucceeded) { // the gates first: what one refuses is not to wait for the end of a hold
		return false
	}
	h.Ended = d.now
	d.s.Stage++
	d.stageMove(n, StageProgressing, StageSucceeded)
	d.touch()
	return true
}

func (d *decider) stageMove(n int, from, to StageState) {
	d.out.Moves = append(d.out.Moves, Transition{Kind: OfStage, Stage: int16(n), From: string(from), To: string(to)})
}

// enter reports whether the stage may begin.
func (d *decider) enter(n int) bool {
	d.adopt(n)
	if d.isEmpty(n) {
		return false
	}
	return d.gates(n, Before) && !d.lookedAtBefore(n)
}

// isEmpty has a stage wait that nobody is in who could show that the revision works.
func (d *decider) isEmpty(n int) bool {
	if !d.showsNothing(n) {
		return false
	}
	facts := Facts{Stage: d.p.Stages[n].Name}
	if others := d.count[n].leaving + d.count[n].pinned + d.count[n].gone; others > 0 {
		facts.Count, facts.Revision = others, d.p.Revision
	}
	d.waitFor(ReasonEmptyStage, &facts)
	return true
}

// showsNothing reports that a stage with a selector has no cluster that is to have the revision, or none any more, and that nobody said
// it may be so. One whose clusters lose the module, are pinned, or were removed from the hub is none to wait for if nobody after it gets
// the revision; nor is one that has shown what it is there for.
func (d *decider) showsNothing(n int) bool {
	s, h, c := &d.p.Stages[n], &d.s.Stages[n], &d.count[n]
	if s.Selector == nil || s.AllowEmpty || h.Promoted || c.getters() > 0 || h.Quiet != 0 && (h.Soaked || s.Soak == 0) {
		return false
	}
	if c.members()+c.gone == 0 {
		return h.Started == 0
	}
	return d.getsLater(n)
}

// adopt gives an empty stage the clusters of later stages that were relabelled for it: the way out of a misspelt label.
func (d *decider) adopt(n int) {
	if !d.showsNothing(n) {
		return
	}
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if int(d.observed(i).Stage) != n+1 || int(r.Stage) <= n || r.State != ClusterToApply || r.Step != 0 || r.has(flagLeave) {
			continue
		}
		r = d.edit(i)
		d.uncount(i, r)
		r.Stage = int16(n)
		d.recount(i, r)
		if d.begun(r.Stage) {
			d.look(i)
		}
	}
}

// openStage begins a stage and looks at its members, which nobody has looked at while it had not begun.
func (d *decider) openStage(n int) {
	h := &d.s.Stages[n]
	h.Started = d.now
	if h.Total == 0 {
		h.Total = d.count[n].members()
	}
	d.stageMove(n, StagePending, StageProgressing)
	d.touch()
	if d.count[n].toApply+d.count[n].inFlight == 0 {
		return
	}
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if int(r.Stage) == n && (r.State == ClusterToApply || r.has(flagBaseline)) {
			d.look(i)
		}
	}
}

// quiet reports whether nothing of the stage is moving or about to.
func (d *decider) quiet(n int) bool {
	h, c := &d.s.Stages[n], &d.count[n]
	busy := d.moving(n)
	if h.Quiet != 0 && c.late > 0 && d.proven(n) && len(d.heldIn(n, ClusterDeferred)) == 0 {
		busy -= c.late // who catches up does not start the soak again, unless that begins anew anyway
	}
	if busy > 0 {
		d.unquiet(h)
		return false
	}
	if d.isEmpty(n) {
		return false
	}
	if d.unproven(n) {
		who, failed := d.whoIsDeferred(n)
		facts := d.waitsFor(n, who)
		facts.Failed = failed
		d.waitFor(ReasonAllDeferred, facts)
		return false
	}
	if d.lookedAt(n, ClusterDeferred) {
		d.unquiet(h) // when they are held no more the stage waits for them again, and soaks after that
		return false
	}
	if h.Quiet == 0 {
		h.Quiet = d.now
		d.touch()
	}
	return true
}

// waitsFor is for whom a stage waits.
func (d *decider) waitsFor(n int, who []fleet.ClusterName) *Facts {
	return &Facts{Stage: d.p.Stages[n].Name, Revision: d.p.Revision, Clusters: few(who), Count: len(who)}
}

// unquiet has a stage begin its soak anew. A hub of before took a promote for one that had not begun: that does not count.
func (d *decider) unquiet(h *StageHead) {
	if h.Quiet != 0 || h.Soaked {
		h.Quiet, h.Soaked = 0, false
		d.touch()
	}
}

// unproven: every cluster that could have shown something is deferred, or has failed by being away. The next stage is not to get what
// nobody has seen work, whether there was one cluster to see it in or many, dead before or silent since; nor is the rollout over in which
// nothing has run at all.
func (d *decider) unproven(n int) bool {
	c := &d.count[n]
	if d.proven(n) || c.inFlight > 0 {
		return false
	}
	return c.unseen() > 0 && d.getsLater(n) || c.deferred > 1 || c.silent > 0 || d.last(n)
}

// getsLater reports that a stage after this one has clusters that are to have the revision.
func (d *decider) getsLater(n int) bool {
	return slices.ContainsFunc(d.count[n+1:], func(c stageCount) bool { return c.getters() > 0 })
}

// proven reports that the stage has shown something, or has nothing to show: a person said so, or it is the last one, of a rollout that
// has shown something, or has nobody to wait for, or empty since that was planned after a stage of which a person said so.
func (d *decider) proven(n int) bool {
	h, c := &d.s.Stages[n], &d.count[n]
	if h.Promoted || c.shown() > 0 {
		return true
	}
	return d.last(n) && (h.Total == 0 && c.members() == 0 && d.promoted() || d.ran() || !d.awaitsDeferred())
}

// promoted reports that a person let some stage be over.
func (d *decider) promoted() bool {
	return slices.ContainsFunc(d.s.Stages, func(h StageHead) bool { return h.Promoted })
}

// last reports that no stage with members follows.
func (d *decider) last(n int) bool {
	for i := n + 1; i < len(d.count); i++ {
		if d.count[i].members() > 0 {
			return false
		}
	}
	return true
}

// ran reports that the revision ran somewhere. That the module has left a cluster, or a cluster the hub, does not show that.
func (d *decider) ran() bool {
	return slices.ContainsFunc(d.count, func(c stageCount) bool { return c.shown() > 0 })
}

// awaitsDeferred reports that the rollout has somebody to wait for who is deferred. Where nobody gets the revision, it is over when the
// module has left one cluster.
func (d *decider) awaitsDeferred() bool {
	getters, leavers := d.deferred()
	return getters > 0 || leavers > 0 && d.leavers.left == 0
}

// deferred counts who is waited for no more, and unseen: of those that are to have the revision, and of those that are to lose the module.
func (d *decider) deferred() (getters, leavers int) {
	for i := range d.count {
		c := &d.count[i]
		getters += c.unseen()
		leavers += c.leavingDeferred
	}
	return getters, leavers
}

// whoIsDeferred are the members for which the stage waits: its own, or, where it has none, those before it; those that are to have the
// revision, if there are such. failed of them have failed: their return alone ends nothing.
func (d *decider) whoIsDeferred(n int) (who []fleet.ClusterName, failed int) {
	getters, _ := d.deferred()
	own := d.count[n].unseen()
	if getters == 0 {
		own += d.count[n].leavingDeferred
	}
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if (r.State == ClusterDeferred || r.failedUnseen()) && (int(r.Stage) == n || own == 0) && !(getters > 0 && r.has(flagLeave)) {
			who = append(who, d.s.Member(d.p, i).Cluster)
			if r.failedUnseen() {
				failed++
			}
		}
	}
	return who, failed
}

func (d *decider) whyBusy(n int) {
	c, away := &d.count[n], 0
	for i := range d.count {
		away += d.count[i].awayFlying
	}
	if d.inFlight() > away {
		return
	}
	if w := &d.windows[n]; w.seen && !w.open {
		d.waitFor(ReasonWindow, w.facts)
		return
	}
	if len(d.sets) > 0 {
		d.waitFor(ReasonAwaitingDependency, (&Awaits{Sets: d.sets}).facts())
		return
	}
	if d.in.Unplaced && d.leavers.all > 0 {
		d.waitFor(ReasonUnplaced, &Facts{Revision: d.p.Revision})
		return
	}
	if n := d.unsure(n); n > 0 {
		d.waitFor(ReasonAwaitingSource, &Facts{Count: n})
		return
	}
	if waits := c.awayInWait + c.awayFlying; waits > 0 {
		d.waitFor(ReasonOffline, &Facts{Stage: d.p.Stages[n].Name, Count: waits})
	}
}

// moving is how many members of a stage are on their way, or about to be. Who waits for a person's confirm is not.
func (d *decider) moving(n int) int {
	return d.count[n].open + d.count[n].inFlight - d.unconfirmed(n)
}

// unconfirmed is how many of a stage's open members wait for a person's confirm.
func (d *decider) unconfirmed(n int) int {
	if !d.leaveHeld() {
		return 0
	}
	held := 0
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if int(r.Stage) == n && r.State == ClusterToApply && r.has(flagLeave) && !r.has(flagConfirmed) {
			held++
		}
	}
	return held
}

func (d *decider) soaked(n int) bool {
	h := &d.s.Stages[n]
	soak := d.p.Stages[n].Soak
	if h.Soaked || soak == 0 || d.count[n].members() == 0 {
		return true
	}
	if until := elapsed(d.since(h.Quiet), soak); until > d.now {
		d.wake(until)
		d.waitFor(ReasonSoak, &Facts{Stage: d.p.Stages[n].Name, Until: until})
		return false
	}
	if reason, facts := d.unwatched(n); reason != "" {
		d.waitFor(reason, facts)
		return false
	}
	h.Soaked = true
	d.touch()
	return true
}

// catchUp is how long an agent has, once its session is live, to say what changed while it had none.
const catchUp = 5 * time.Second

// unwatched is why a soak whose time is over has not shown anything yet: it is there for watching those that got the
// revision, and of them none is seen now, though a stage follows, or some are about to say how they stand.
func (d *decider) unwatched(n int) (reason string, facts *Facts) {
	seen, away, unheard := 0, 0, 0
	var held []int
	for i := range d.s.Len(d.p) {
		r, o := d.s.record(i), d.observed(i)
		if int(r.Stage) != n || r.State != ClusterSucceeded {
			continue
		}
		back := d.session(o)
		switch shown, heard := shows(r, o), elapsed(back, catchUp); {
		case shown.Why == UnseenHeld: // of one that is held nobody says how it does
			held = append(held, i)
		case shown.Why == UnseenAway:
			away++
		case shown.Why == UnseenSilent:
			unheard++
		case back != 0 && back > d.s.Stages[n].Quiet && heard > d.now:
			d.wake(heard)
			unheard++
		case shown.Verdict == Unwatched:
			away++
		default:
			seen++
		}
	}
	name := d.p.Stages[n].Name
	switch {
	case unheard > 0:
		return ReasonNotYetHeard, &Facts{Stage: name, Count: unheard}
	case seen > 0 || n == len(d.p.Stages)-1:
	case away > 0:
		return ReasonAllAway, &Facts{Stage: name, Revision: d.p.Revision, Count: away + len(held)}
	case len(held) > 0:
		return ReasonHeldUnready, d.heldFacts(held)
	}
	return "", nil
}

// finish ends a rollout whose stages are over, when nobody is moving any more.
func (d *decider) finish() {
	open := 0
	for i := range d.count {
		open += d.moving(i)
	}
	if open > 0 {
		for i := range d.count {
			d.whyBusy(i)
		}
		return
	}
	if d.leaveHeld() && d.leavers.waiting > 0 {
		d.waitFor(ReasonConfirm, &Facts{Count: d.leavers.waiting})
		return
	}
	d.end(Succeeded, "", d.leftOut())
}

// leftOut are the facts of success: who has no part in it. Nil: all have.
func (d *decider) leftOut() *Facts {
	var f Facts
	for i := range d.count {
		f.Deferred += d.count[i].deferred
		f.Skipped += d.count[i].skipped
		f.Failed += d.count[i].failed
	}
	if f.Deferred+f.Skipped+f.Failed == 0 {
		return nil
	}
	return &f
}

// limit is how many clusters of a stage may be moving at once.
func (d *decider) limit(stage int16) int {
	total := d.s.Stages[stage].Total
	if total == 0 {
		total = d.count[stage].members()
	}
	if !d.p.Stages[stage].MaxConcurrency.Set {
		return max(total, d.count[stage].members())
	}
	return d.p.Stages[stage].MaxConcurrency.limit(total)
}

// moves assigns in all stages that have begun: in the present one, and to those who joined earlier ones, came back or
// were retried.
func (d *decider) moves() {
	for n := range d.p.Stages {
		if d.begun(int16(n)) {
			d.move(int16(n))
			continue
		}
		d.moveBaseline(int16(n))
	}
}

// move assigns the target to members of a stage, as many as there are slots.
func (d *decider) move(stage int16) {
	c := &d.count[stage]
	if c.open == 0 || !d.windowOpen(stage) {
		return
	}
	d.noteHeld(stage)
	slots := d.limit(stage) - c.inFlight
	if slots <= 0 {
		return
	}
	d.expect(min(slots, max(c.open-c.awayInWait, 0)))
	d.each(stage, func(i int, r *Record) bool {
		if r.State != ClusterToApply || r.has(flagBaseline) || d.leaveBlocked(i, r) {
			return true
		}
		if o := d.observed(i); obstacle(o) != "" || !r.has(flagLeave) && d.awaits(o, d.p.Revision) {
			return true
		}
		d.moveOne(i, r)
		return d.inFlightOf(stage) < d.limit(stage)
	})
}

func (d *decider) inFlightOf(stage int16) int { return d.count[stage].inFlight }

func (d *decider) moveOne(i int, r *Record) {
	if r.has(flagLeave) {
		d.assign(i, 0, true)
		d.underWay(i, memberMoved, ReasonLeaving)
		return
	}
	d.assign(i, d.p.Revision, false)
	d.underWay(i, memberMoved, "")
}

// moveBaseline gives joiners of a stage that has not begun the last succeeded revision, if that one places them, too. Others
// wait for their stage.
func (d *decider) moveBaseline(stage int16) {
	if len(d.s.Joined) == 0 || d.p.From == 0 || !d.windowOpen(stage) {
		return
	}
	for i := len(d.p.Members); i < d.s.Len(d.p); i++ {
		r, o := d.s.record(i), d.observed(i)
		if r.Stage != stage || r.State != ClusterToApply || !r.has(flagBaseline) || r.Step != 0 || o.Revision != 0 {
			continue
		}
		if to, _ := d.wanted(stage, o); to == 0 {
			continue
		}
		if reason := obstacle(o); reason != "" {
			continue
		}
		if d.awaits(o, d.p.From) {
			continue
		}
		if d.inFlightOf(stage) >= d.limit(stage) {
			return
		}
		d.assign(i, d.p.From, false)
		d.underWay(i, memberMoved, "")
	}
}

// each calls f for the members of a stage, in order, until it returns false.
func (d *decider) each(stage int16, f func(int, *Record) bool) {
	for i := range d.s.Len(d.p) {
		if r := d.s.record(i); r.Stage == stage && !f(i, r) {
			return
		}
	}
}

// names lists some names for a sentence.
func names(list []fleet.ClusterName) string {
	const most = 3
	var parts []string
	for i, n := range list {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(list)-most))
			break
		}
		parts = append(parts, string(n))
	}
	return strings.Join(parts, ", ")
}
