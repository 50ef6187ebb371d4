package rollout

import (
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// standing is what a placement says of a cluster.
type standing uint8

const (
	unknownStanding standing = iota // nobody knows: then the module neither leaves the cluster nor comes there
	selected
	unselected
)

// placement says what is known of a cluster by the placement that is in force now.
func (d *decider) placement(o *Observed) standing { return d.s.placement(d.in, o) }

func (h *Head) placement(in *Input, o *Observed) standing {
	out := o.Unselected
	switch to := h.PlacedBy(); {
	case !h.placed(in):
		return unknownStanding
	case to != 0:
		out = o.UnselectedOlder
	}
	if out {
		return unselected
	}
	return selected
}

// placed reports that it is known where the placement in force has the module.
func (d *decider) placed() bool { return d.s.placed(d.in) }

func (h *Head) placed(in *Input) bool {
	to := h.PlacedBy()
	return to == 0 && !in.Unplaced || to != 0 && to == in.Older
}

// membership follows clusters that leave, come back or are forgotten; true if the record is done with.
func (d *decider) membership(i int, o *Observed) bool {
	r := d.s.record(i)
	if o.Gone {
		if r.State != ClusterRemoved || r.Reason != ReasonGone {
			d.failureLeaves(r)
			d.leavesBack(i)
			d.pinEnds(i)
			d.turn(i, memberGone, ReasonGone, "")
		}
		return true
	}
	if r.State == ClusterRemoved && r.Reason == ReasonGone || o.Anew && r.Generation != 0 {
		d.registered(i)
		r = d.s.record(i)
	}
	defer d.taken(i, o)
	if d.s.Back != nil && !d.s.State.Ended() {
		return false // who goes back does so whatever the placement of the new revision says
	}
	switch now, leaving, keeps := d.placement(o), r.has(flagLeave), d.keepsNew(r, o); {
	case now == unselected && !leaving && !r.has(flagPinned) && !keeps && !d.cameBack(i, r):
		d.leave(i, o)
	case leaving && (now == selected || keeps && !d.in.Unplaced):
		d.failureLeaves(r)
		d.restart(i, memberStays)
	}
	if o.Last && d.s.record(i).unconfirmed() {
		d.turn(i, memberLast, "", "")
	}
	return d.s.record(i).State == ClusterRemoved
}

// taken has a person be asked of the cluster that has the name of a leaver, if it is another one than was asked about.
func (d *decider) taken(i int, o *Observed) {
	if r := d.s.record(i); !r.has(flagLeave) || r.State == ClusterRemoved || r.Taken == o.Taken {
		return
	}
	d.turn(i, memberTaken, "", "")
	d.edit(i).Taken = o.Taken
}

// keepsNew reports that a member is not one of those that go back, has something newer than they go back to, and is placed by the
// rollout's own revision. It stays there and keeps what it has, whether the older placement has it or not.
func (d *decider) keepsNew(r *Record, o *Observed) bool {
	b := d.s.Back
	return b != nil && !r.has(flagBack) && !o.Unselected && standsAt(r, o) > b.To
}

// cameBack reports that the rollout was to take the module from a member by its plan, and gave it back when it went back, which was aborted
// since: by the plan nobody leaves any more, and who went back stays so.
func (d *decider) cameBack(i int, r *Record) bool {
	b := d.s.Back
	return b != nil && d.s.State == Aborted && d.s.Member(d.p, i).Leave && r.Step != 0 && r.Revision == b.To
}

// mayKeepNew reports that nobody knows whether a member keeps what it has by that rule.
func (d *decider) mayKeepNew(r *Record, o *Observed) bool {
	b := d.s.Back
	return b != nil && !r.has(flagBack) && d.in.Unplaced && standsAt(r, o) > b.To
}

// standsAt is what a member has, or was given last by the rollout; 0: nothing.
func standsAt(r *Record, o *Observed) int64 {
	if r.Step != 0 {
		return r.Revision
	}
	return o.Revision
}

// registered lets a cluster that is one of the fleet again begin as if it had never been moved: what it was assigned before was
// forgotten with it.
func (d *decider) registered(i int) {
	d.failureLeaves(d.s.record(i))
	if d.s.record(i).Reason != ReasonGone { // else that was said when it left
		d.leavesBack(i)
		d.pinEnds(i)
	}
	r := d.edit(i)
	d.uncount(i, r)
	r.Step, r.Revision, r.Previous, r.Generation = 0, 0, 0, 0
	d.recount(i, r)
	d.restart(i, memberRegistered)
}

// failureLeaves has the pause for failures end by a person's word only, when labels, or the list of clusters, take away one that failed:
// the others are not to get by that what failed there, unless a person had them get it in spite of that. On the way back it is those that failed there whose failure stops it.
func (d *decider) failureLeaves(r *Record) {
	p := d.s.Pause
	if p == nil || p.Reason == ReasonGateFailed || !isFailed(r) || r.has(flagAccepted) || d.s.Back != nil && !d.s.failedBack(r) {
		return
	}
	left := *p
	left.Left++
	d.s.Pause = &left
	d.touch()
}

// leave makes losing the module the member's move.
func (d *decider) leave(i int, o *Observed) {
	r := d.s.record(i)
	d.failureLeaves(r)
	switch {
	case o.Revision == 0 && (r.Step == 0 || r.State == ClusterRemoved):
		d.turn(i, memberHadNothing, ReasonLeaving, "")
	case d.begun(r.Stage) || d.s.State.Ended():
		d.restart(i, memberLeavesLate)
	default:
		d.restart(i, memberLeaves)
	}
}

// restart lets a member begin from where it stands.
func (d *decider) restart(i int, e event) {
	d.turn(i, e, "", "")
	if d.s.record(i).ReadySince != 0 {
		d.edit(i).ReadySince = 0
	}
}

// relabelled lets a member follow its labels to another stage once the rollout is over. It reports whether it did.
func (d *decider) relabelled(i int, o *Observed) bool {
	r := d.s.record(i)
	stage := o.Stage - 1
	if stage < 0 || int(stage) >= len(d.p.Stages) || stage == r.Stage || r.InFlight() || r.State == ClusterSkipped || r.State == ClusterRemoved {
		return false
	}
	want, known := d.wanted(stage, o)
	if !known {
		return false
	}
	if d.keepsNew(r, o) {
		want = standsAt(r, o)
	}
	e := d.edit(i)
	d.uncount(i, e)
	e.Stage = stage
	d.recount(i, e)
	if want != 0 && !e.has(flagLeave) && o.Revision != want {
		d.restart(i, memberRestaged)
	}
	return true
}

// wanted is the revision that the last plan wants for a member of a stage; 0: leave it alone. It is not known where that is an
// older one whose placement nobody has read.
func (d *decider) wanted(stage int16, o *Observed) (revision int64, known bool) {
	older, begun := d.s.catchesUp(d.p, stage)
	if begun {
		return d.p.Revision, true
	}
	if older != 0 && older == d.in.Older && !o.UnselectedOlder {
		return older, true
	}
	return 0, older == 0 || older == d.in.Older
}

// catchesUp is the older revision that clusters of a stage catch up with when the rollout has ended, if they have not gone on to its own; 0: none.
func (h *Head) catchesUp(p *Plan, stage int16) (older int64, begun bool) {
	switch {
	case h.Back != nil:
		return h.Back.To, false
	case h.Stages[stage].Started != 0:
		return 0, true
	}
	return p.From, false
}

// admit takes newcomers in, by the strategy.
func (d *decider) admit() {
	if d.s.State == Failed || d.s.State == Superseded {
		return
	}
	ended := d.s.State.Ended()
	if d.st.LateJoiners == LateIgnore && !ended {
		return
	}
	var list []Newcomer
	for i := range d.in.Newcomers {
		if n := &d.in.Newcomers[i]; d.placement(&n.Observed) == selected {
			list = append(list, *n)
		}
	}
	if len(list) == 0 {
		return
	}
	slices.SortFunc(list, func(a, b Newcomer) int { return strings.Compare(string(a.Cluster.Name), string(b.Cluster.Name)) })
	known := make(map[fleet.ClusterName]bool, d.s.Len(d.p))
	for i := range d.s.Len(d.p) {
		known[d.s.Member(d.p, i).Cluster] = true
	}
	for i := range list {
		if name := list[i].Cluster.Name; !known[name] {
			known[name] = true
			d.join(&list[i])
		}
	}
}

func (d *decider) join(n *Newcomer) {
	stage := d.p.JoinsIn(n.Cluster.Labels)
	if stage < 0 {
		return
	}
	r := Record{Stage: int16(stage), Since: d.now}
	switch {
	case d.begun(r.Stage) || d.s.State.Ended():
		r.flags = flagLate
	case d.st.LateJoiners == LateFollow && d.p.From != 0 && d.s.Back == nil:
		r.flags = flagBaseline
	}
	if d.s.pinned(n.Cluster.Name) {
		r.flags |= flagPinned
	}
	i := d.s.Len(d.p)
	if d.joined == nil {
		d.joined = map[int]*Observed{}
	}
	d.joined[i] = &n.Observed
	d.s.Joined = append(slices.Clip(d.s.Joined), Member{Cluster: n.Cluster.Name, Stage: r.Stage})
	d.grow()
	last := len(d.s.Chunks) - 1
	d.s.Chunks[last] = append(d.s.Chunks[last], r)
	d.recount(i, d.edit(i))
	d.out.Moves = append(d.out.Moves, Transition{Kind: OfCluster, Member: int32(i), Stage: r.Stage, To: ClusterToApply.String(), Reason: ReasonJoined, Facts: &Facts{Stage: d.p.Stages[stage].Name}})
	d.touch()
	d.lookToApply(i, d.observed(i))
}

// catchUpFrom has members from an index on that have nothing of the module, and whose turn had not come, or who missed it by being away, get what
// clusters get that join when the rollout has ended.
func (d *decider) catchUpFrom(first int) {
	for i := first; i < d.s.Len(d.p); i++ {
		r, o := d.s.record(i), d.observed(i)
		if r.given() || r.flags&(flagLeave|flagPinned) != 0 || o.Revision != 0 || o.Lost {
			continue
		}
		switch {
		case isFailed(r):
			d.turn(i, memberMissedAll, "", "")
		case r.in(whileToApply|whileDeferred) && !r.has(flagLate):
			d.turn(i, memberCatchesUp, "", "")
		}
	}
}

// grow makes room for one more record at the end, in chunks that are this decision's own.
func (d *decider) grow() {
	if d.own == nil {
		d.own = make([]bool, len(d.s.Chunks))
		d.s.Chunks = slices.Clone(d.s.Chunks)
	}
	last := len(d.s.Chunks) - 1
	if last < 0 || len(d.s.Chunks[last]) == ChunkSize {
		d.s.Chunks = append(d.s.Chunks, nil)
		d.own = append(d.own, true)
		return
	}
	if !d.own[last] {
		d.own[last] = true
		d.s.Chunks[last] = slices.Clone(d.s.Chunks[last])
	}
}

// leaveHeld reports that leavers wait for a person: this change takes the module from too many, or everything from a cluster, or a
// rollback takes it from where it was before the rollout. Once they wait, those of them that are still to leave do, though they are fewer: somebody may be correcting a mistake, one by one.
func (d *decider) leaveHeld() bool {
	if d.unasked() == 0 {
		return false
	}
	return d.s.HoldSince != 0 || d.p.ConfirmLeave || d.s.Back != nil && d.s.Back.Asks || d.leavers.last > 0 || tooMany(d.leavers.all, d.had())
}

// had is how many clusters have the module, or had it until this rollout was to take it from them. It rests on what is observed, and
// not on what this decision is about to do, so that the next one counts the same.
func (d *decider) had() int {
	if d.having < 0 {
		d.having = 0
		for i := range d.s.Len(d.p) {
			if d.observed(i).has() {
				d.having++
			}
		}
	}
	return d.having + d.leavers.without
}

// has reports that the cluster has the module now.
func (o *Observed) has() bool { return o.Revision != 0 && !o.Gone && !o.Without }

// unasked is how many leave, or wait, without a person's confirm. See Head.awaitsConfirm.
func (d *decider) unasked() int {
	if d.s.State.Ended() {
		return d.leavers.waiting - d.leavers.planned
	}
	return d.leavers.waiting
}

func (d *decider) leaveBlocked(i int, r *Record) bool {
	return r.has(flagLeave) && (!d.placed() || !r.has(flagConfirmed) && (d.leaveHeld() || d.observed(i).MayBeLast))
}

// unsure is how many of a stage's members wait to leave until it is known whether a person is to be asked.
func (d *decider) unsure(n int) (count int) {
	if d.leavers.waiting == 0 {
		return 0
	}
	for i := range d.s.Len(d.p) {
		if r := d.s.record(i); int(r.Stage) == n && d.s.unsure(r, d.observed(i)) {
			count++
		}
	}
	return count
}

// unsure reports that a member is to leave, and it is not known yet whether a person is to be asked.
func (h *Head) unsure(r *Record, o *Observed) bool {
	return o.MayBeLast && r.State == ClusterToApply && h.awaitsConfirm(r)
}

// confirmLeavers lets leavers go if a person confirmed exactly them.
func (d *decider) confirmLeavers() {
	if len(d.in.Confirmed) == 0 || !d.leaveHeld() || !slices.Contains(d.in.Confirmed, leaveDigest(d.p, &d.s)) {
		return
	}
	for i := range d.s.Len(d.p) {
		if d.s.awaitsConfirm(d.s.record(i)) {
			d.turn(i, memberConfirmed, "", "")
		}
	}
}

// showHold tells who waits for a confirm, and since when. Where nobody is asked now, whoever is still to leave afterwards is asked then, however
// few they are: after a way back, a pin or a skip, and by the next rollout.
func (d *decider) showHold() {
	switch {
	case d.s.asksNobody():
		return
	case !d.leaveHeld():
		if d.leavers.unanswered == 0 {
			d.dropHold()
		}
		return
	case d.s.HoldSince == 0:
		d.s.HoldSince = d.now
		d.touch()
	}
	items := leaving(d.p, &d.s)
	digest := leaveDigest(d.p, &d.s)
	d.out.Holds = []Hold{{ID: holdID(digest), Items: items, Digest: digest,
		Since: d.s.HoldSince.Time()}}
}

func (d *decider) dropHold() {
	if d.s.HoldSince != 0 {
		d.s.HoldSince = 0
		d.touch()
	}
}

// unanswered reports that it is to leave, is not leaving already, and no person has confirmed that.
func (r *Record) unanswered() bool {
	leaves := r.Revision == 0 && (r.InFlight() || isFailed(r))
	return r.has(flagLeave) && !r.has(flagConfirmed) && !leaves && r.State != ClusterRemoved
}

// unconfirmed reports that it is to leave as soon as a person confirms that. One that is pinned or skipped stays, so nobody is asked
// for it until that ends.
func (r *Record) unconfirmed() bool { return r.unanswered() && r.State != ClusterSkipped }

// awaitsConfirm reports that a member leaves as soon as a person lets it, if one has to. After the end of a rollout nobody leaves
// any more whose turn by the plan had not come.
func (h *Head) awaitsConfirm(r *Record) bool {
	return r.unconfirmed() && (r.has(flagLate) || !h.State.Ended())
}

// asksAbout reports that a person is asked whether the member may lose the module.
func (h *Head) asksAbout(in Input, r *Record) bool {
	return h.HoldSince != 0 && !h.asksNobody() && in.Module.Successor == 0 && h.awaitsConfirm(r)
}

// leaving lists the leavers that no person has confirmed, sorted.
func leaving(p *Plan, s *State) []string {
	var items []string
	for i := range s.Len(p) {
		if s.awaitsConfirm(s.record(i)) {
			items = append(items, string(s.Member(p, i).Cluster))
		}
	}
	slices.Sort(items)
	return items
}

// leaveDigest is what a person confirms: the exact list in this rollout, with the step that gave each cluster what it would lose, and which
// cluster has the name. Clusters that came back and are to leave again are another list.
func leaveDigest(p *Plan, s *State) fleet.Digest {
	var lines []string
	for i := range s.Len(p) {
		if r := s.record(i); s.awaitsConfirm(r) {
			line := fmt.Sprintf("%s %d", s.Member(p, i).Cluster, r.Step)
			if r.Taken != 0 {
				line += fmt.Sprintf(" %d", r.Taken)
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return fleet.DigestOf(fmt.Appendf(nil, "leave\n%s\n%s\n", p.ID, strings.Join(lines, "\n")))
}

func holdID(d fleet.Digest) string { return "leave-" + d.Short() }

// expirePins lets pins go whose time is over.
func (d *decider) expirePins() {
	var over []Pin
	for _, p := range d.s.Pins {
		if p.Until.reached(d.now) {
			over = append(over, p)
		} else {
			d.wake(p.Until)
		}
	}
	for _, p := range over {
		d.unpinned = true
		d.dropPin(p.Cluster)
		if i := d.s.IndexOf(d.p, p.Cluster); i >= 0 {
			d.unpinMember(i)
		}
	}
}

// pinEnds lets the pin of a cluster go that was forgotten, as its holds go: what has its name later is another one, which would get nothing.
func (d *decider) pinEnds(i int) {
	name := d.s.Member(d.p, i).Cluster
	if !d.s.pinned(name) {
		return
	}
	d.dropPin(name)
	d.turn(i, memberUnpinnedThere, "", "")
}

func (d *decider) dropPin(name fleet.ClusterName) {
	d.s.Pins = slices.DeleteFunc(slices.Clone(d.s.Pins), func(p Pin) bool { return p.Cluster == name })
	d.touch()
}

// settle keeps the last plan in force after the end: who joined, came back or was relabelled gets the target of its
// stage if that has begun, else the last succeeded revision if that one places it, too; who left loses the module. Failures reopen nothing.
func (d *decider) settle() {
	defer d.tell()
	if !d.placed() {
		return
	}
	for n := range d.p.Stages {
		if d.count[n].open > 0 {
			d.settleStage(int16(n))
		}
	}
}

// tell keeps the closing facts true.
func (d *decider) tell() {
	switch d.s.State {
	case Succeeded:
		d.become(Succeeded, d.s.Reason, d.leftOut())
	case RolledBack:
		d.become(RolledBack, d.s.Reason, d.wentBack())
	}
}

func (d *decider) settleStage(stage int16) {
	d.each(stage, func(i int, r *Record) bool {
		if r.State != ClusterToApply || !r.has(flagLate) || r.has(flagPinned) || d.leaveBlocked(i, r) {
			return true
		}
		o := d.observed(i)
		if d.showsCordoned(r, o) {
			d.take(i, o)
			return true
		}
		if reason := obstacle(o); reason != "" {
			d.postpone(i, reason)
			return true
		}
		if d.settlesLater(r, o) || d.inFlightOf(stage) >= d.limit(stage) || !d.windowOpen(stage) {
			return true
		}
		d.settleOne(i, r, o)
		return true
	})
}

func (d *decider) settleOne(i int, r *Record, o *Observed) {
	if r.has(flagLeave) {
		if !d.mayKeepNew(r, o) {
			d.assign(i, 0, true)
			d.underWay(i, memberLeavesAtEnd, ReasonLeaving)
		}
		return
	}
	want, _ := d.wanted(r.Stage, o)
	keeps := d.keepsNew(r, o)
	if keeps {
		want = standsAt(r, o)
	}
	if want == 0 {
		return
	}
	if d.s.Back != nil && r.Step == 0 && o.Revision == want {
		d.turn(i, memberSettled, "", "")
		return
	}
	if d.s.Back != nil && !keeps {
		d.turn(i, memberCaughtBack, "", "")
		r = d.s.record(i)
	}
	if want == o.Revision && o.Ready && o.Generation != 0 && !r.has(flagRetry) {
		d.take(i, o)
		return
	}
	d.assign(i, want, false)
	d.underWay(i, memberMoved, "")
}
