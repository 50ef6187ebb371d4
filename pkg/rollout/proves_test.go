package rollout_test

import (
	"testing"

	"towline.dev/towline/pkg/rollout"
)

// proves: a stage ends, and the rollout succeeds, by what has been seen in clusters that are to have the revision, or on a person's word.
func (c *chaos) proves(in rollout.Input, d rollout.Decision) {
	s, promoted := &d.State, false
	members := make([]struct{ getters, adopted, shown, deferred, held int }, len(c.plan.Stages))
	for i := range in.State.Len(c.plan) { // not those that join when it is over
		r := s.Record(i)
		if pinned := r.State == rollout.ClusterSkipped && r.Reason == rollout.ReasonPinned; pinned || r.Leaving() || r.State == rollout.ClusterRemoved {
			continue
		}
		m := &members[in.State.Record(i).Stage] // when it is over, one may follow its labels to another
		m.getters++
		if was := in.State.Record(i).Stage; r.Stage != was { // or an empty one has taken it
			members[r.Stage].adopted++
		}
		switch r.State {
		case rollout.ClusterSucceeded, rollout.ClusterFailed, rollout.ClusterTimedOut:
			m.shown++
		case rollout.ClusterDeferred:
			if m.deferred++; c.looked(in, d, i) {
				m.held++
			}
		}
	}
	after, shown, deferred := 0, 0, 0
	for n := len(c.plan.Stages) - 1; n >= 0; n-- {
		st, was, is := &c.plan.Stages[n], &in.State.Stages[n], &s.Stages[n]
		had := st.Total > 0 || is.Total > 0
		if was.Ended == 0 && is.Ended != 0 && was.Quiet == 0 && had && st.Selector != nil && !st.AllowEmpty && !is.Promoted && members[n].getters+members[n].adopted == 0 && after > 0 && s.Back == nil {
			c.rt.Fatalf("stage %s is over, nobody in it gets the revision, and %d do after it", st.Name, after)
		}
		if was.Ended == 0 && is.Ended != 0 && members[n].held > 0 && after > 0 && !s.State.Ended() {
			c.rt.Fatalf("stage %s is over, %d of it are held and not ready with the revision, and %d get it after it", st.Name, members[n].held, after)
		}
		for before := range n {
			if was.Started == 0 && is.Started != 0 && members[before].held > 0 && members[n].getters+after > 0 && !s.State.Ended() {
				c.rt.Fatalf("stage %s begins, and %d of stage %d are held and not ready with the revision", st.Name, members[before].held, before)
			}
		}
		after, shown, deferred = after+members[n].getters, shown+members[n].shown, deferred+members[n].deferred
		promoted = promoted || is.Promoted
	}
	inLast := in.State.Stage < len(c.plan.Stages) // else it had shown something when that was over
	if inLast && s.State == rollout.Succeeded && s.Reason == "" && shown == 0 && deferred > 0 && !promoted {
		c.rt.Fatalf("it succeeded, and its revision ran nowhere: %d are deferred", deferred)
	}
}

// forgets: no failure becomes a deferral but by a hold, which keeps the next stage: being away or cordoned ends none, whatever a person says.
func (c *chaos) forgets(in rollout.Input, d rollout.Decision) {
	if in.State.State.Ended() || d.State.State.Ended() || d.State.Back != nil {
		return
	}
	for i := range in.State.Len(c.plan) {
		was, r, o := in.State.Record(i), d.State.Record(i), &in.Observed[i]
		failed := was.State == rollout.ClusterFailed || was.State == rollout.ClusterTimedOut
		if failed && r.State == rollout.ClusterDeferred && r.Reason != rollout.ReasonHeld && !r.Leaving() && !was.Leaving() && !o.Anew {
			c.rt.Fatalf("%s was %s, and is deferred (%s)", d.State.Member(c.plan, i).Cluster, was.State, r.Reason)
		}
	}
}

// cordons: nobody who has the revision, and is ready with it, is left out for a cordon, which keeps it from being given what it has.
func (c *chaos) cordons(in rollout.Input, d rollout.Decision) {
	if in.Stands || d.State.Back != nil {
		return
	}
	for i := range in.State.Len(c.plan) {
		r, o := d.State.Record(i), &in.Observed[i]
		has := d.State.Stages[r.Stage].Started != 0 && o.Connected && !o.Held && o.Ready && o.Revision == c.plan.Revision && o.Generation != 0
		if has && r.State == rollout.ClusterDeferred && r.Reason == rollout.ReasonCordoned && !r.Moved() && !r.Retried() && !r.Leaving() {
			c.rt.Fatalf("%s has the revision, is ready, and is deferred (%s)", d.State.Member(c.plan, i).Cluster, r.Reason)
		}
	}
}

// pausedStill: no pause for failures ends because one that failed leaves, or is removed from the hub, where nobody said a word.
func (c *chaos) pausedStill(in rollout.Input, d rollout.Decision) {
	p := in.State.Pause
	if p == nil || p.Reason != rollout.ReasonFailures && p.Reason != rollout.ReasonNoEarlierRevision || d.State.Pause != nil || d.State.State.Ended() || len(d.Outcomes) > 0 {
		return
	}
	for i := range in.State.Len(c.plan) {
		was, r := in.State.Record(i), d.State.Record(i)
		failed := (was.State == rollout.ClusterFailed || was.State == rollout.ClusterTimedOut) && !was.Accepted()
		if gone := r.State == rollout.ClusterRemoved && r.Reason == rollout.ReasonGone; failed && (gone || r.Leaving() != was.Leaving()) {
			c.rt.Fatalf("the pause (%s) ends, and %s, which had failed, is %s (%s)", p.Reason, d.State.Member(c.plan, i).Cluster, r.State, r.Reason)
		}
	}
}

// looked reports that somebody holds a deferred member that has the revision and is not fine with it, and that no person has let it by.
func (c *chaos) looked(in rollout.Input, d rollout.Decision, i int) bool {
	r, was, o := d.State.Record(i), in.State.Record(i), &in.Observed[i]
	switch {
	case !o.Held || r.LetBy() || r.Stage != was.Stage:
		return false
	case r.Moved():
		return r.Revision == c.plan.Revision && !o.Well
	}
	return (o.Revision == c.plan.Revision || r.MayHave()) && !o.Well
}

// TestPromotedByAHubOfBefore: a stage that a hub of before let go on has no members marked, and goes on without those that are held.
func TestPromotedByAHubOfBefore(t *testing.T) {
	w := newWorld(t)
	for _, line := range []string{"fleet c1..c2 at=r1 ring=canary", "fleet d1 at=r1", "stage canary sel=ring:canary", "stage rest",
		"start r2 from=r1", "ready c1", "hold c2"} {
		w.command(line)
	}
	if w.state.Reason != rollout.ReasonHeldUnready {
		t.Fatalf("it is %s %s", w.state.State, w.state.Reason)
	}
	w.state.Stages[0].Promoted = true
	w.command("decide")
	if o := w.clusters["d1"].o; o.Revision != 2 {
		t.Errorf("it is %s %s, and d1 has r%d", w.state.State, w.state.Reason, o.Revision)
	}
}

// TestSoakThatAHubOfBeforeTookAway: a promote behind a failure, which a hub of before took, does not end the soak of who is retried.
func TestSoakThatAHubOfBeforeTookAway(t *testing.T) {
	w := newWorld(t)
	for _, line := range []string{"fleet c1 at=r1 ring=canary", "fleet d1 at=r1", "stage canary sel=ring:canary soak=1h", "stage rest",
		"start r2 from=r1", "fail c1 CrashLoop"} {
		w.command(line)
	}
	w.state.Stages[0].Soaked = true
	w.command("retry by=ana")
	w.command("ready c1")
	if o := w.clusters["d1"].o; o.Revision != 1 || w.state.Reason != rollout.ReasonSoak {
		t.Errorf("it is %s %s, and d1 has r%d", w.state.State, w.state.Reason, o.Revision)
	}
}
