package rollout

import "towline.dev/towline/pkg/fleet"

// heldUnready are the members of a stage that have the rollout's revision and are held, and have not been seen fine with it, or did badly
// when that was seen last: somebody is looking at them. Those of deferred never got so far; the others had succeeded before.
func (s *State) heldUnready(p *Plan, observed func(int) *Observed, stage int, deferred bool) (members []int) {
	want := ClusterSucceeded
	if deferred {
		want = ClusterDeferred
	}
	for i := range s.Len(p) {
		r := s.record(i)
		if r.State != want || int(r.Stage) != stage || !r.got(p.Revision) {
			continue
		}
		if o := observed(i); shows(r, o).Why == UnseenHeld && (deferred || !o.Well) {
			members = append(members, i)
		}
	}
	return members
}

// got reports that the member has a revision by the rollout: it was given it, or was found with it.
func (r *Record) got(revision int64) bool {
	return r.Revision == revision && (r.Step != 0 || r.Generation != 0) && r.flags&(flagLeave|flagBaseline) == 0
}

// lookedAt reports that a stage is not over because some of its members are held and not ready: the next stage would get a revision that
// somebody is looking at. Nobody waits for them where no stage follows, or when a person has let the stage go on.
func (d *decider) lookedAt(n int, deferred bool) bool {
	who := d.whoIsHeld(n, deferred)
	if len(who) == 0 {
		return false
	}
	d.waitFor(ReasonHeldUnready, d.heldFacts(n, who))
	return true
}

func (d *decider) whoIsHeld(n int, deferred bool) []int {
	if d.s.Stages[n].Promoted || d.last(n) || deferred && d.count[n].deferred == 0 {
		return nil
	}
	return d.s.heldUnready(d.p, d.observed, n, deferred)
}

func (d *decider) heldFacts(n int, members []int) *Facts {
	var who []fleet.ClusterName
	for _, i := range members {
		who = append(who, d.s.Member(d.p, i).Cluster)
	}
	return d.waitsFor(n, who)
}

// heldClusters explains for whom of those that are held a stage waits, and what ends that.
func (e *explainer) heldClusters(n int) (out []Reason) {
	who := append(e.s.heldUnready(e.p, e.in.observed, n, true), e.s.heldUnready(e.p, e.in.observed, n, false)...)
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
