package rollout

import (
	"fmt"
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
	if len(d.p.EmptyOverrides) > 0 && !d.s.OverridesPromoted {
		d.waitFor(ReasonEmptyOverride, "no cluster is matched by "+strings.Join(d.p.EmptyOverrides, ", ")+
			"; correct the selector, or promote")
		return false
	}
	if d.p.ConfirmLeave && d.leavers.waiting > 0 {
		d.waitFor(ReasonConfirm, fmt.Sprintf("%d of %s would lose the module; a person must confirm that",
			d.leavers.waiting, clusters(d.p.Assigned)))
		return false
	}
	return true
}

func (d *decider) begun0() bool { return len(d.s.Stages) > 0 && d.s.Stages[0].Started != 0 }

func (d *decider) waitFor(reason, message string) { d.wait = waitFor{reason, message} }

// stage moves one stage on; true if it is over.
func (d *decider) stage(n int) bool {
	h := &d.s.Stages[n]
	if h.Started == 0 {
		if !d.enter(n) {
			return false
		}
		d.openStage(n)
		if d.breached() {
			d.fail(ReasonFailures, d.failureMessage())
			return false
		}
	}
	if !d.quiet(n) {
		return false
	}
	if !d.soaked(n) || !d.gates(n, After) {
		return false
	}
	h.Ended = d.now
	d.s.Stage++
	d.stageMove(n, string(StageProgressing), string(StageSucceeded), "")
	d.touch()
	return true
}

func (d *decider) stageMove(n int, from, to, whyText string) {
	d.out.Moves = append(d.out.Moves, Transition{Kind: OfStage, Stage: int16(n), From: from, To: to, Why: whyText})
}

// enter reports whether the stage may begin.
func (d *decider) enter(n int) bool {
	if d.count[n].members() > 0 {
		return d.gates(n, Before)
	}
	s := &d.p.Stages[n]
	if s.Selector != nil && !s.AllowEmpty && !d.s.Stages[n].Promoted && d.count[n].gone == 0 {
		d.adopt(n)
		if d.count[n].members() > 0 {
			return d.gates(n, Before)
		}
		d.waitFor(ReasonEmptyStage, fmt.Sprintf("stage %s matches no cluster; label one, or promote, or set allowEmpty", s.Name))
		return false
	}
	return true
}

// adopt gives an empty stage the clusters of later stages that were relabelled for it: the way out of a misspelt label.
func (d *decider) adopt(n int) {
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if int(d.observed(i).Stage) != n+1 || int(r.Stage) <= n || r.State != ClusterToApply || r.Step != 0 {
			continue
		}
		r = d.edit(i)
		d.uncount(i, r)
		r.Stage = int16(n)
		d.recount(i, r)
	}
}

// openStage begins a stage and looks at its members, which nobody has looked at while it had not begun.
func (d *decider) openStage(n int) {
	h := &d.s.Stages[n]
	h.Started = d.now
	if h.Total == 0 {
		h.Total = d.count[n].members()
	}
	d.stageMove(n, string(StagePending), string(StageProgressing), "")
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
	busy := c.open + c.inFlight - d.unconfirmed(n)
	if h.Quiet != 0 && d.proven(n) {
		busy -= c.late // who catches up does not start the soak again
	}
	if busy > 0 {
		if h.Quiet != 0 {
			h.Quiet, h.Soaked = 0, false
			d.touch()
		}
		return false
	}
	if d.unproven(n) {
		d.waitFor(ReasonAllDeferred, fmt.Sprintf("no cluster of stage %s has shown that r%d works: %s deferred; "+
			"wait for one, or promote", d.p.Stages[n].Name, d.p.Revision, names(d.whoIsDeferred(n))))
		return false
	}
	if h.Quiet == 0 {
		h.Quiet = d.now
		d.touch()
	}
	return true
}

// unproven: every cluster that could have shown something is deferred. One cluster that was dead before does not hold
// a rollout; one that fell silent with the new revision does, and so does the last stage of a rollout in which nothing
// has run at all.
func (d *decider) unproven(n int) bool {
	c := &d.count[n]
	if d.proven(n) || c.inFlight > 0 {
		return false
	}
	return c.deferred > 1 || c.silent > 0 || d.last(n)
}

// proven reports that the stage has shown something, or has nothing to show: a person said so, or it is the last one of a
// rollout that has shown something, or has nobody to wait for.
func (d *decider) proven(n int) bool {
	c := &d.count[n]
	if d.s.Stages[n].Promoted || c.succeeded+c.failed > 0 {
		return true
	}
	return d.last(n) && (c.members() == 0 || d.ran() || d.deferred() == 0)
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

// ran reports that somewhere the rollout did what it is for.
func (d *decider) ran() bool {
	for i := range d.count {
		if c := &d.count[i]; c.succeeded+c.failed+c.gone > 0 {
			return true
		}
	}
	return false
}

// whoIsDeferred are the members for which the stage waits: its own, or, where it has none, those before it.
func (d *decider) whoIsDeferred(n int) []fleet.ClusterName {
	var out []fleet.ClusterName
	for i := range d.s.Len(d.p) {
		r := d.s.record(i)
		if r.State == ClusterDeferred && (int(r.Stage) == n || d.count[n].deferred == 0) {
			out = append(out, d.s.Member(d.p, i).Cluster)
		}
	}
	return out
}

func (d *decider) deferred() int {
	n := 0
	for i := range d.count {
		n += d.count[i].deferred
	}
	return n
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
		d.waitFor(ReasonWindow, w.message)
		return
	}
	if d.in.Unplaced && d.leavers.all > 0 {
		d.waitFor(ReasonUnplaced, fmt.Sprintf("the placement of r%d cannot be read, and clusters wait to leave by it; put the module again", d.p.Revision))
		return
	}
	if n := d.unsure(n); n > 0 {
		d.waitFor(ReasonAwaitingSource, fmt.Sprintf("%s would be left with nothing, unless a module comes there whose source is being fetched", clusters(n)))
		return
	}
	if waits := c.awayInWait + c.awayFlying; waits > 0 {
		d.waitFor(ReasonOffline, fmt.Sprintf("stage %s waits for %s away", d.p.Stages[n].Name, clustersThatAre(waits)))
	}
}

func clustersThatAre(n int) string {
	if n == 1 {
		return "1 cluster that is"
	}
	return clusters(n) + " that are"
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
	if until := elapsed(h.Quiet, soak); until > d.now {
		d.wake(until)
		d.waitFor(ReasonSoak, fmt.Sprintf("stage %s soaks until %s", d.p.Stages[n].Name, clock(until)))
		return false
	}
	if reason, message := d.unwatched(n); reason != "" {
		d.waitFor(reason, message)
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
func (d *decider) unwatched(n int) (reason, message string) {
	seen, away, unheard := 0, 0, 0
	for i := range d.s.Len(d.p) {
		r, o := d.s.record(i), d.observed(i)
		if int(r.Stage) != n || r.State != ClusterSucceeded {
			continue
		}
		back := At(o.Session)
		switch heard := elapsed(back, catchUp); {
		case !o.Connected:
			away++
		case o.Silent:
			unheard++
		case !o.Session.IsZero() && back > d.s.Stages[n].Quiet && heard > d.now:
			d.wake(heard)
			unheard++
		case o.Unheard:
			away++
		default:
			seen++
		}
	}
	name := d.p.Stages[n].Name
	switch {
	case unheard > 0:
		return ReasonSoak, fmt.Sprintf("stage %s has soaked; how %s now is still to be heard", name, clustersThatStand(unheard))
	case away > 0 && seen == 0 && n < len(d.p.Stages)-1:
		return ReasonAllDeferred, fmt.Sprintf("nobody sees what r%d does in stage %s: %s; wait for one, or promote", d.p.Revision, name, awayNow(away))
	}
	return "", ""
}

func clustersThatStand(n int) string {
	if n == 1 {
		return "1 cluster stands"
	}
	return clusters(n) + " stand"
}

func awayNow(n int) string {
	if n == 1 {
		return "its 1 cluster is away"
	}
	return fmt.Sprintf("its %s are away", clusters(n))
}

// finish ends a rollout whose stages are over, when nobody is moving any more.
func (d *decider) finish() {
	open := 0
	for i := range d.count {
		open += d.count[i].open + d.count[i].inFlight - d.unconfirmed(i)
	}
	if open > 0 {
		for i := range d.count {
			d.whyBusy(i)
		}
		return
	}
	if d.leaveHeld() && d.leavers.waiting > 0 {
		d.waitFor(ReasonConfirm, wouldLose(d.leavers.waiting))
		return
	}
	d.end(Succeeded, "", d.successMessage())
}

// wouldLose asks for a confirm.
func wouldLose(n int) string {
	return clusters(n) + " would lose the module; a person must confirm that"
}

func (d *decider) successMessage() string {
	var deferred, skipped, failed int
	for i := range d.count {
		deferred += d.count[i].deferred
		skipped += d.count[i].skipped
		failed += d.count[i].failed
	}
	var parts []string
	for _, x := range []struct {
		n    int
		what string
	}{{deferred, "deferred"}, {skipped, "skipped"}, {failed, "failed"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	return strings.Join(parts, ", ")
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
	slots := d.limit(stage) - c.inFlight
	if slots <= 0 {
		return
	}
	d.expect(min(slots, max(c.open-c.awayInWait, 0)))
	d.each(stage, func(i int, r *Record) bool {
		if r.State != ClusterToApply || r.has(flagBaseline) || d.leaveBlocked(i, r) {
			return true
		}
		if reason, _ := obstacle(d.observed(i)); reason != "" {
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
		d.underWay(i, memberMoved, ReasonLeaving, "")
		return
	}
	d.assign(i, d.p.Revision, false)
	d.underWay(i, memberMoved, "", "")
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
		if reason, _ := obstacle(o); reason != "" {
			continue
		}
		if d.inFlightOf(stage) >= d.limit(stage) {
			return
		}
		d.assign(i, d.p.From, false)
		d.underWay(i, memberMoved, "", "")
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

func clock(t Instant) string { return t.Time().Format("15:04:05 MST") }

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
