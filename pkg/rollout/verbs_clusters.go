package rollout

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// named finds the members that a verb names.
func (d *decider) named(v *Verb) ([]int, error) {
	index := make(map[fleet.ClusterName]int, d.s.Len(d.p))
	for i := range d.s.Len(d.p) {
		index[d.s.Member(d.p, i).Cluster] = i
	}
	var out []int
	var missing []fleet.ClusterName
	for _, name := range v.Clusters {
		i, ok := index[name]
		switch {
		case !ok:
			missing = append(missing, name)
		case !slices.Contains(out, i):
			out = append(out, i)
		}
	}
	if len(missing) > 0 {
		return nil, refuse("%s is not in %s", names(missing), d.p.ID)
	}
	return out, nil
}

func (d *decider) retryVerb(v *Verb) ([]Note, error) {
	who, err := d.named(v)
	if err != nil {
		return nil, err
	}
	gates, later := 0, []fleet.ClusterName(nil)
	if len(v.Clusters) == 0 {
		who, later = d.retried()
		gates = d.resetGates(0)
	}
	for _, i := range who {
		if err := d.mayRetry(i, len(v.Clusters) > 0); err != nil {
			return nil, err
		}
	}
	switch {
	case len(who) > 0 || gates > 0:
	case len(later) > 0:
		return nil, refuse("%s cannot begin anew while away or cordoned: retry when that has ended, or skip", names(later))
	case d.s.Pause != nil && d.s.Pause.Left > 0:
		return nil, refuse("%s has nothing to retry: %s that failed left since; to go on without: resume", d.p.ID, clusters(d.s.Pause.Left))
	default:
		return nil, refuse("%s has nothing to retry: no cluster and no gate has failed", d.p.ID)
	}
	answered := len(v.Clusters) == 0 // a word on one that was left out is none on those that failed
	for _, i := range who {
		e := memberRetried
		if isFailed(d.s.record(i)) {
			e, answered = memberRetriedFailed, true
		}
		d.turn(i, e, "", "")
		d.joinsBack(i)
	}
	d.unpause(answered)
	return note(NoteAgain, Facts{Count: len(who), Total: gates, Failed: len(later), Clusters: few(later)}), nil
}

// retried are the members that a retry means which names none, and those that failed and cannot begin anew now.
func (d *decider) retried() (who []int, later []fleet.ClusterName) {
	for i := range d.s.Len(d.p) {
		switch r, o := d.s.record(i), d.observed(i); {
		case staysFailed(r, o) != "":
			later = append(later, d.s.Member(d.p, i).Cluster)
		case retriable(r, o):
			who = append(who, i)
		}
	}
	return who, later
}

// mayRetry is nil where a member may begin anew, named by the person or not.
func (d *decider) mayRetry(i int, named bool) error {
	r, o, name := d.s.record(i), d.observed(i), d.s.Member(d.p, i).Cluster
	switch reason := staysFailed(r, o); {
	case reason == ReasonCordoned:
		return refuse("cluster %s is %s, and cordoned: end the cordon first, or skip it", name, r.State)
	case reason != "":
		return refuse("cluster %s is %s, and away (%s): retry it when it is back, or skip it", name, r.State, reason)
	case retriable(r, o), r.State == ClusterSkipped && !r.has(flagPinned) && named:
		return nil
	case r.State == ClusterSkipped && r.has(flagPinned):
		return refuse("cluster %s is pinned; unpin it first", name)
	}
	return refuse("cluster %s is %s; retry is for failed and skipped ones", name, r.State)
}

// retriable reports that a member failed, or lost what it was given, and can begin anew now.
func retriable(r *Record, o *Observed) bool {
	return (isFailed(r) || lost(r, o)) && staysFailed(r, o) == ""
}

// staysFailed is why one that failed cannot be given anything now; empty: it can, or did not fail. A retry would only forget that it
// failed, and the next stage would get what failed there. One that is held is waited for, and forgets nothing.
func staysFailed(r *Record, o *Observed) (reason string) {
	if reason := obstacle(o); isFailed(r) && reason != ReasonHeld {
		return reason
	}
	return ""
}

// lost reports that nobody knows what the member is assigned, and that the rollout may assign it again.
func (d *decider) lost(i int) bool { return lost(d.s.record(i), d.observed(i)) }

func lost(r *Record, o *Observed) bool { return o.Lost && !r.has(flagPinned) }

// giveAgain has the members that are named, or all, get again what the rollout gave them, where that is lost.
func (d *decider) giveAgain(v *Verb) (members int) {
	for i := range d.s.Len(d.p) {
		if named := len(v.Clusters) == 0 || slices.Contains(v.Clusters, d.s.Member(d.p, i).Cluster); !named || !d.lost(i) {
			continue
		}
		d.turn(i, memberGiven, "", "")
		members++
	}
	return members
}

// takeUp has the members that are named, and were skipped, have what the others got, and says who loses the module by that.
func (d *decider) takeUp(v *Verb) (members int, leave []Note) {
	var leavers []fleet.ClusterName
	for i := range d.s.Len(d.p) {
		name := d.s.Member(d.p, i).Cluster
		if !d.s.mayTakeUp(d.s.record(i)) || !slices.Contains(v.Clusters, name) {
			continue
		}
		d.turn(i, memberTakenUp, "", "")
		d.joinsBack(i)
		members++
		if d.s.record(i).has(flagLeave) {
			leavers = append(leavers, name)
		}
	}
	if len(leavers) > 0 {
		leave = note(NoteLose, Facts{Clusters: few(leavers), Count: len(leavers)})
	}
	return members, leave
}

// mayTakeUp reports that the rollout is over and left a member out, which a person may have it take up still.
func (h *Head) mayTakeUp(r *Record) bool {
	return (h.State == Succeeded || h.State == RolledBack) && r.State == ClusterSkipped && !r.has(flagPinned)
}

// retryEnded asks for a new rollout: one that has ended never changes, but for members of which nobody knows what they got.
func (d *decider) retryEnded(v *Verb) ([]Note, error) {
	if d.s.State != Superseded && d.s.State != Failed {
		taken, leave := d.takeUp(v)
		if n := d.giveAgain(v) + taken; n > 0 {
			return append(note(NoteAgain, Facts{Count: n}), leave...), nil
		}
	}
	switch {
	case d.s.State == Superseded:
		return nil, refuse("%s has ended: superseded by %s/%d", d.p.ID, d.p.ID.Module.Display(), d.s.SupersededBy)
	case d.s.State == Succeeded && d.failed() == 0:
		return nil, refuse("%s succeeded; there is nothing to retry", d.p.ID)
	case len(v.Clusters) > 0:
		return nil, refuse("%s has ended: %s; retry without naming clusters starts a new rollout of r%d", d.p.ID, d.s.State, d.p.Revision)
	case d.in.Module.Put != 0:
		return nil, refuse("%s has ended, and %s/%d was put since; see: towline rollout status %s", d.p.ID, d.p.ID.Module.Display(), d.in.Module.Put, d.p.ID.Module.Display())
	}
	d.out.Start = &Start{Revision: d.p.Revision, By: v.By, Why: v.Why}
	return note(NoteNewRollout, Facts{Revision: d.p.Revision}), nil
}

func (d *decider) skipVerb(v *Verb) ([]Note, error) {
	if len(v.Clusters) == 0 {
		return nil, refuse("skip needs clusters; name them with --cluster")
	}
	who, err := d.named(v)
	if err != nil {
		return nil, err
	}
	for _, i := range who {
		switch s := d.s.record(i).State; s {
		case ClusterSucceeded, ClusterSkipped, ClusterRemoved, ClusterRolledBack:
			return nil, refuse("cluster %s is %s; there is nothing to skip", d.s.Member(d.p, i).Cluster, s)
		}
	}
	answered := slices.ContainsFunc(who, func(i int) bool { return d.s.record(i).has(flagLeave) }) // it may be the one that failed and is to leave
	for _, i := range who {
		d.leavesBack(i)
		d.turn(i, memberSkipped, ReasonSkipped, v.Why)
	}
	d.unpause(answered)
	return note(NoteSkipped, Facts{Count: len(who)}), nil
}

func (d *decider) pinVerb(v *Verb) ([]Note, error) {
	if len(v.Clusters) == 0 {
		return nil, refuse("pin needs clusters; name them with --cluster")
	}
	if err := d.weakens(v); err != nil {
		return nil, err
	}
	notes, pins := d.pinsOfOthers(v), slices.Clone(d.s.Pins)
	for _, name := range v.Clusters {
		pins = slices.DeleteFunc(pins, func(p Pin) bool { return p.Cluster == name })
		pins = append(pins, Pin{Cluster: name, By: v.By, Why: v.Why, At: d.at(v), Until: At(v.Until)})
		d.wake(At(v.Until))
	}
	slices.SortFunc(pins, func(a, b Pin) int { return strings.Compare(string(a.Cluster), string(b.Cluster)) })
	d.s.Pins = pins
	for i := range d.s.Len(d.p) {
		if slices.Contains(v.Clusters, d.s.Member(d.p, i).Cluster) {
			d.pinMember(i, v)
		}
	}
	d.unpause(false)
	return notes, nil
}

// weakens refuses a pin that would take the place of one which lasts longer: the cluster would get a revision while somebody counts on it that it does
// not, who may be another person, or job, by the same name.
func (d *decider) weakens(v *Verb) error {
	if v.Until.IsZero() || v.Shorten {
		return nil
	}
	for _, p := range d.s.Pins {
		if !slices.Contains(v.Clusters, p.Cluster) || p.Until != 0 && p.Until <= At(v.Until) {
			continue
		}
		end := "without an end"
		if p.Until != 0 {
			end = "until " + p.Until.Time().UTC().Format(time.RFC3339)
		}
		return refuse("cluster %s is pinned already, by %s, %s, and would be so only until %s; to have that end sooner: --shorten (shorten in the API)",
			p.Cluster, cmp.Or(p.By, "somebody"), end, v.Until.UTC().Format(time.RFC3339))
	}
	return nil
}

// pinMember leaves who is on the way where it is: it has its revision.
func (d *decider) pinMember(i int, v *Verb) {
	d.leavesBack(i)
	if d.s.record(i).in(transitions[memberPinned].from) {
		d.turn(i, memberPinned, ReasonPinned, v.Why)
		return
	}
	d.turn(i, memberPinnedThere, "", "")
}

func (d *decider) unpinVerb(v *Verb) ([]Note, error) {
	if len(v.Clusters) == 0 {
		return nil, refuse("unpin needs clusters; name them with --cluster")
	}
	var free []fleet.ClusterName
	for _, name := range v.Clusters {
		if !d.s.pinned(name) {
			free = append(free, name)
		}
	}
	if len(free) > 0 {
		return nil, refuse("%s is not pinned", names(free))
	}
	notes := d.pinsOfOthers(v)
	var idle []fleet.ClusterName
	for _, name := range v.Clusters {
		d.dropPin(name)
		if i := d.s.IndexOf(d.p, name); i >= 0 && d.unpinMember(i) {
			idle = append(idle, name)
		}
	}
	if len(idle) > 0 {
		notes = append(notes, note(NoteStays, Facts{Count: len(idle), Clusters: few(idle), Revision: d.p.Revision})...)
	}
	return notes, nil
}

// maxPinNotes is of how many pins of other people a word tells that ends them, or takes their place.
const maxPinNotes = 5

// pinsOfOthers tells whose pins somebody ends, or takes the place of, that are not theirs: who put one may count on it.
func (d *decider) pinsOfOthers(v *Verb) (notes []Note) {
	for _, p := range d.s.Pins {
		if p.By != v.By && slices.Contains(v.Clusters, p.Cluster) && len(notes) < maxPinNotes {
			notes = append(notes, note(NotePinOf, Facts{Clusters: []string{string(p.Cluster)}, By: p.By, Detail: p.Why})...)
		}
	}
	return notes
}

// unpinMember reports that its rollout was aborted, and gives it nothing by that.
func (d *decider) unpinMember(i int) (idle bool) {
	switch r := d.s.record(i); {
	case r.State != ClusterSkipped || r.Reason != ReasonPinned:
		d.turn(i, memberUnpinnedThere, "", "")
	case d.s.State == Aborted && d.observed(i).has() && !d.getsAgain(i, r):
		d.turn(i, memberUnpinnedIdle, "", "")
		idle = true
	case r.Step != 0:
		d.turn(i, memberUnpinnedMoved, "", "")
	default:
		d.turn(i, memberUnpinned, "", "")
	}
	d.joinsBack(i)
	return idle
}

// getsAgain reports that what a member would get is what it was given before: its removal, too.
func (d *decider) getsAgain(i int, r *Record) bool {
	want, _ := d.wanted(r.Stage, d.observed(i))
	return r.Step != 0 && (r.has(flagLeave) || r.Revision == want)
}

func (d *decider) rollbackVerb(v *Verb) ([]Note, error) {
	to, goesOn := cmp.Or(v.Revision, d.p.From), d.s.goesOnBack(d.p)
	if goesOn {
		to = cmp.Or(v.Revision, d.s.Back.To)
	}
	scope := ScopeMoved
	switch strings.ToLower(v.Scope) {
	case "", "moved":
	case "failed":
		scope = ScopeFailed
	default:
		return nil, refuse("%q is no scope of a rollback; use moved or failed", v.Scope)
	}
	switch {
	case d.s.State == Superseded || d.s.State == Failed:
		return nil, refuse("%s has ended: %s; there is nothing to roll back", d.p.ID, d.s.State)
	case goesOn && to != d.s.Back.To:
		return nil, refuse("%s was on its way back to r%d when that was aborted, and can go on with that only", d.p.ID, d.s.Back.To)
	case d.s.Back != nil && !goesOn:
		return nil, refuse("%s is rolled back already, to r%d", d.p.ID, d.s.Back.To)
	case to == 0:
		return nil, refuse("module %s has no earlier revision that succeeded; say which with --to-revision", d.p.ID.Module.Display())
	case to == d.p.Revision:
		return nil, refuse("%s moves to r%d itself; choose an older revision", d.p.ID, to)
	}
	if err := d.in.Module.UnknownRevision(d.p.ID.Module, to); err != nil {
		return nil, err
	}
	d.become(RollingBack, ReasonRolledBackByUser, byWhom(v))
	d.startRollback(Back{To: to, Scope: scope, Reason: ReasonRolledBackByUser, By: v.By, Facts: byWhom(v)})
	notes := note(NoteGoBack, Facts{Count: d.s.Back.returns() - d.wentBefore(), Revision: to})
	if n := d.s.Back.Brought; n > 0 {
		notes = append(notes, note(NoteLoseAfter, Facts{Count: n, Revision: to})...)
	}
	return notes, nil
}

// wentBefore is how many a rollback that goes on need not move, for they were moved back before it was aborted.
func (d *decider) wentBefore() (n int) {
	for i := range d.s.Len(d.p) {
		if d.s.Back.brings(d.s.record(i)) {
			n++
		}
	}
	return n
}
