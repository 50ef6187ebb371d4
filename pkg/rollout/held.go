package rollout

import (
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// heldUnready reports that a member has the rollout's revision and is held, and has not been seen fine with it, or did badly when that was
// seen last: somebody is looking at it, and no person said that the others need not wait. One that got it by this rollout and is
// deferred never got so far; the others were fine once, or had it before.
func (s *State) heldUnready(p *Plan, r *Record, o *Observed) bool {
	if !r.got(p.Revision, o) || s.letBy(r) || shows(r, o).Why != UnseenHeld {
		return false
	}
	switch r.State {
	case ClusterDeferred:
		return r.given() || !o.Well
	case ClusterSucceeded:
		return !o.Well
	}
	return false
}

// given reports that the member has what its record says by a step of this rollout, or was found fine with it.
func (r *Record) given() bool { return r.Step != 0 || r.Generation != 0 }

// got reports that the member has a revision: the rollout gave it that, or it had it already, as after a rollout to the same one that was
// aborted, or rolled back while the member could not follow.
func (r *Record) got(revision int64, o *Observed) bool {
	if r.has(flagLeave | flagBaseline) {
		return false
	}
	if !r.given() {
		return o.Revision == revision || r.has(flagMayHave)
	}
	return r.Revision == revision
}

// Past is a rollout of the module that was before the one that is planned.
type Past struct {
	Plan  *Plan
	State State
}

// MayStillHave are the clusters in which a revision may be that is about to be rolled out, though another one is assigned. past are the rollouts since
// the newest one to that revision, or to one that is the same but for its number, and that one, which is the last: it gave it to them, whether it took
// it back or not, and none since has given them anything. Where one is held nothing of what was assigned instead is written.
func MayStillHave(past []Past) (clusters []fleet.ClusterName) {
	if len(past) == 0 {
		return nil
	}
	given := map[fleet.ClusterName]bool{}
	for i := range past[:len(past)-1] {
		past[i].State.addGiven(past[i].Plan, given)
	}
	last := &past[len(past)-1]
	for i := range last.State.Len(last.Plan) {
		if c := last.State.Member(last.Plan, i).Cluster; !given[c] && last.State.mayStillHave(last.Plan, last.State.record(i)) {
			clusters = append(clusters, c)
		}
	}
	return clusters
}

// addGiven adds the clusters of which it is known that they got what the rollout gave them. What one was given that is held, away or silent, or that
// was still on its way when the rollout ended, may not have been written.
func (s *State) addGiven(p *Plan, clusters map[fleet.ClusterName]bool) {
	for i := range s.Len(p) {
		r := s.record(i)
		seen := r.State != ClusterDeferred && r.State != ClusterProgressing && !r.failedUnseen()
		if r.State == ClusterRemoved || r.given() && seen {
			clusters[s.Member(p, i).Cluster] = true
		}
	}
}

// mayStillHave reports that the rollout's own revision may be in a member: it has it, or it was taken back there, and nobody has seen it with what
// it was given instead.
func (s *State) mayStillHave(p *Plan, r *Record) bool {
	has := r.given() && r.Revision == p.Revision
	onTheWay := s.Back != nil && r.has(flagBack) && r.Step != 0 && r.Revision == s.Back.To && r.in(whileFlying|whileFailing|whileDeferred)
	return has || onTheWay || r.has(flagMayHave) && !r.given()
}

// letBy reports that a person let its stage, or the next, go on without the member while it was held. A hub of before marked no members:
// there whoever is held in a stage that was promoted is let by.
func (s *State) letBy(r *Record) bool {
	h := &s.Stages[r.Stage]
	return r.has(flagLetBy) || h.Promoted && !h.Marked
}

// lookedAt reports that a stage is not over because some of its members are held and not ready: the next stage would get a revision that
// somebody is looking at. Nobody waits for them where no stage follows, or when a person has let the stage go on.
func (d *decider) lookedAt(n int, in ClusterState) bool {
	return d.waitsForHeld(d.heldIn(n, in))
}

// lookedAtBefore reports that a stage does not begin because members of those before it, which are over, are held and not ready: they
// caught up. Without the hold they would get ready, or their failure would count.
func (d *decider) lookedAtBefore(n int) bool {
	return d.waitsForHeld(d.heldBefore(n))
}

func (d *decider) waitsForHeld(who []int) bool {
	if len(who) == 0 {
		return false
	}
	d.waitFor(ReasonHeldUnready, d.heldFacts(who))
	return true
}

// heldIn are the members of a stage in that state for which the next stage waits, because they are held and not ready.
func (d *decider) heldIn(n int, in ClusterState) []int {
	if d.last(n) || in == ClusterDeferred && d.count[n].deferred == 0 {
		return nil
	}
	return d.heldWhere(func(r *Record) bool { return int(r.Stage) == n && r.State == in })
}

// heldBefore are the members of the stages before one for which that one waits.
func (d *decider) heldBefore(n int) []int {
	late := func(c stageCount) bool { return c.deferred > 0 }
	if n == 0 || d.last(n-1) || !slices.ContainsFunc(d.count[:n], late) {
		return nil
	}
	return d.heldWhere(func(r *Record) bool { return int(r.Stage) < n && r.State == ClusterDeferred })
}

func (d *decider) heldWhere(want func(*Record) bool) []int {
	return d.s.heldWhere(d.p, d.observed, want)
}

func (s *State) heldWhere(p *Plan, observed func(int) *Observed, want func(*Record) bool) (members []int) {
	for i := range s.Len(p) {
		if r := s.record(i); want(r) && s.heldUnready(p, r, observed(i)) {
			members = append(members, i)
		}
	}
	return members
}

// awaitedHeld are the held members for which the present stage waits, or would if nothing else kept it.
func (d *decider) awaitedHeld(n int) []int {
	if d.begun(int16(n)) {
		return append(d.heldIn(n, ClusterDeferred), d.heldIn(n, ClusterSucceeded)...)
	}
	return d.heldBefore(n)
}

// lookLetBy has a stage wait again for one that was let by, if it is held again: who is held no more, or is fine, is none that the person saw.
func (d *decider) lookLetBy(i int, o *Observed) {
	if r := d.s.record(i); r.has(flagLetBy) && shows(r, o).Why != UnseenHeld {
		d.turn(i, memberSeen, "", "")
	}
}

// letBy has no stage wait for these members any more while they are held. Who is held later, or again, is none that the person saw.
func (d *decider) letBy(held []int) {
	for _, i := range held {
		d.turn(i, memberLetBy, "", "")
	}
}

// heldFacts are who is held, and in which stage, if that is one.
func (d *decider) heldFacts(members []int) *Facts {
	var who []fleet.ClusterName
	stage := d.s.record(members[0]).Stage
	elsewhere := func(i int) bool { return d.s.record(i).Stage != stage }
	for _, i := range members {
		who = append(who, d.s.Member(d.p, i).Cluster)
	}
	f := d.waitsFor(int(stage), who)
	if slices.ContainsFunc(members, elsewhere) {
		f.Stage = ""
	}
	return f
}

// heldClusters explains for whom of those that are held a stage waits, and what ends that.
func (e *explainer) heldClusters(n int) (out []Reason) {
	begun := e.s.Stages[n].Started != 0
	who := e.s.heldWhere(e.p, e.in.observed, func(r *Record) bool {
		return begun && int(r.Stage) == n || !begun && int(r.Stage) < n && r.State == ClusterDeferred
	})
	if len(who) == 0 { // its soak is seen by nobody, for all are held
		for i := range e.s.Len(e.p) {
			if r := e.s.record(i); int(r.Stage) == n && r.State == ClusterSucceeded && shows(r, e.in.observed(i)).Why == UnseenHeld {
				who = append(who, i)
			}
		}
	}
	for _, i := range who[:min(len(who), maxCauses)] {
		r, name := e.s.record(i), string(e.s.Member(e.p, i).Cluster)
		c := Reason{Subject: aboutCluster(name), Reason: ReasonHeld, Facts: detail(e.in.observed(i).Message), Since: r.Since.Time(), Blocks: true}
		if r.State == ClusterDeferred {
			c.Actions = []Action{{Method: DoSkip, Cluster: name}}
		}
		out = append(out, c)
	}
	if more := len(who) - len(out); more > 0 {
		out = append(out, Reason{Subject: About{Kind: AboutClusters}, Reason: ReasonNotListed, Facts: &Facts{Count: more}})
	}
	return out
}
