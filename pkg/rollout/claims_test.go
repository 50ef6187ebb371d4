package rollout_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/rollout"
)

// TestWhatIsSaidComesTrue: over random runs, whatever is said to move a cluster, or to end what a rollout waits for, does when it happens;
// what is said to come at a time comes then; and until a decision is due time alone changes nothing of what is said.
func TestWhatIsSaidComesTrue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := newChaos(rt)
		c.newest = rapid.SampledFrom([]int64{2, 2, 4}).Draw(rt, "newest")
		c.strategies()
		c.randomFleet()
		from := c.newest - 1
		c.begin(rapid.SampledFrom([]int64{0, from, from, from}).Draw(rt, "from"))
		for range rapid.IntRange(1, 12).Draw(rt, "acts") {
			c.hear()
			c.decide()
			if rapid.IntRange(0, 2).Draw(rt, "asked") == 0 {
				c.claims()
			}
		}
		if rapid.Bool().Draw(rt, "overtaken") {
			c.module.Successor = c.plan.ID.Number + 1
			c.decide()
		}
		c.claims()
	})
}

// future is what would follow if nothing else happened than what a test has happen.
type future struct {
	*chaos
	in rollout.Input
	d  rollout.Decision
}

// foresee is the future from now on. The deliveries that are under way arrive first.
func (c *chaos) foresee() *future {
	c.deliver()
	f := &future{chaos: c, in: c.input()}
	f.in.Observed, f.in.Verbs, f.in.Results, f.in.Confirmed = slices.Clone(f.in.Observed), slices.Clip(f.in.Verbs), slices.Clip(f.in.Results), slices.Clip(f.in.Confirmed)
	f.decide()
	return f
}

// another is a second future from the same moment.
func (f *future) another() *future {
	g := *f
	g.in.Observed, g.in.State.Chunks = slices.Clone(f.in.Observed), nil
	for _, chunk := range f.in.State.Chunks {
		g.in.State.Chunks = append(g.in.State.Chunks, slices.Clone(chunk))
	}
	return &g
}

func (f *future) decide() {
	for range 100 {
		d := rollout.Decide(f.in)
		for i := f.in.State.Len(f.plan); i < d.State.Len(f.plan); i++ {
			name := d.State.Member(f.plan, i).Cluster
			n := slices.IndexFunc(f.in.Newcomers, func(n rollout.Newcomer) bool { return n.Cluster.Name == name })
			f.in.Observed = append(f.in.Observed, f.in.Newcomers[n].Observed)
			f.in.Newcomers = slices.Delete(slices.Clone(f.in.Newcomers), n, n+1)
		}
		generation := uint64(1 << 40)
		for i := range f.in.Observed {
			generation = max(generation, f.in.Observed[i].Generation+1)
		}
		d.State.Stamp(d.Assign, generation)
		f.in.State, f.d = d.State, d
		for _, a := range d.Assign {
			o := &f.in.Observed[a.Member]
			o.Revision, o.Generation, o.Ready, o.Failed, o.Removed, o.Well, o.Anew = a.Revision, generation, false, false, false, false, false
		}
		f.in.Older = f.in.State.MayNeed(f.plan, f.in.Verbs)
		if f.blind {
			f.in.Older = 0
		}
		if len(d.Assign) == 0 {
			return
		}
	}
	f.rt.Fatal("it assigns without end")
}

// wait has time pass, with a look whenever one is due.
func (f *future) wait(until time.Time) {
	for range 1000 {
		if at := f.d.WakeAt; !at.IsZero() && !at.After(until) {
			f.in.Now = at
			f.decide()
			continue
		}
		if until.After(f.in.Now) {
			f.in.Now = until
			f.decide()
		}
		return
	}
	f.rt.Fatal("it looks without end")
}

// says is all that is said.
func (f *future) says() string {
	out := fmt.Sprintf("%s %s %s\n", f.in.State.State, f.in.State.Reason, f.in.State.Facts)
	for _, r := range rollout.Explain(f.in) {
		out += saying(r, "  ")
	}
	for i := range f.in.State.Len(f.plan) {
		s := rollout.ClusterOf(f.in, i)
		out += fmt.Sprintf("%s %s %s %s r%d until %s\n", s.Cluster, s.State, s.Reason, s.Facts, s.Revision, s.Deadline)
	}
	sum := rollout.Summarize(f.in)
	for i := range sum.Stages {
		g := &sum.Stages[i]
		out += fmt.Sprintf("%s %s %s %s soaks %s %+v\n", g.Name, g.State, g.Reason, g.Facts, g.SoakUntil, g.Counts)
		for _, x := range g.Gates {
			out += fmt.Sprintf("  %s %s %s %s %v\n", x.Name, x.State, x.Facts, x.NextLook, x.ApprovedBy)
		}
	}
	return out
}

func saying(r rollout.Reason, indent string) string {
	out := fmt.Sprintf("%s%s %s %s since %s until %s %v %t\n", indent, r.Subject, r.Reason, r.Facts, r.Since, r.Until, r.Actions, r.Blocks)
	for _, cause := range r.Causes {
		out += saying(cause, indent+"  ")
	}
	return out
}

// good has the member be there, take what it is given, and be well with it.
func good(o *rollout.Observed) {
	o.Connected, o.NotSeen, o.Locked, o.Unheard, o.Silent, o.Untold, o.Session = true, false, false, false, false, 0, 0
	o.Cordoned, o.Held, o.Failed, o.MayBeLast = false, false, false, false
	o.Ready, o.Well, o.Removed = o.Revision != 0, o.Revision != 0, o.Revision == 0 && o.Generation != 0
}

// allGood has everything be good that no person decides, until nothing more follows.
func (f *future) allGood() {
	f.in.Unplaced, f.in.Stands, f.in.Awaits = false, false, nil
	f.blind = false
	for range 60 {
		for i := range f.in.Observed {
			good(&f.in.Observed[i])
		}
		for i := range f.in.Newcomers {
			good(&f.in.Newcomers[i].Observed)
		}
		for _, k := range f.d.Checks {
			f.in.Results = append(f.in.Results, rollout.GateResult{Stage: k.Stage, Position: k.Position, Gate: k.Gate, Number: k.Number, At: f.in.Now, Outcome: rollout.GateSuccessful})
		}
		f.in.Older = f.in.State.MayNeed(f.plan, f.in.Verbs)
		f.decide()
		f.wait(f.in.Now.Add(15 * time.Second))
		if f.d.WakeAt.IsZero() && f.d.Awaited == 0 && len(f.d.Checks) == 0 {
			return
		}
	}
}

func (c *chaos) claims() {
	f := c.foresee()
	f.timeAlone()
	f.timed()
	f.moved()
	f.oneMore()
}

// timeAlone: until a look is due, time changes nothing of what is said.
func (f *future) timeAlone() {
	g := f.another()
	said, far := f.says(), 100*time.Hour
	if !f.d.WakeAt.IsZero() {
		far = f.d.WakeAt.Sub(f.in.Now) - time.Second
	}
	if far <= 0 {
		return
	}
	g.in.Now = g.in.Now.Add(time.Duration(rapid.Int64Range(1, int64(far)).Draw(f.rt, "meanwhile")))
	g.decide()
	if now := g.says(); now != said {
		f.rt.Fatalf("at %s, the next look is at %s:\n%sat %s:\n%s", f.in.Now, f.d.WakeAt, said, g.in.Now, now)
	}
}

// timed: what is said to come at a time comes then, and not before.
func (f *future) timed() {
	for i := range f.in.State.Len(f.plan) {
		was := rollout.ClusterOf(f.in, i)
		at := was.Deadline
		if at.IsZero() && was.Facts != nil && slices.Contains([]rollout.ClusterState{rollout.ClusterSoaking, rollout.ClusterFailed, rollout.ClusterTimedOut}, was.State) {
			at = was.Facts.Until.Time()
		}
		if at.IsZero() {
			continue
		}
		g := f.another()
		g.wait(at)
		is := rollout.ClusterOf(g.in, i)
		if is.State == was.State && is.Reason == was.Reason && is.Deadline.Equal(was.Deadline) && is.Facts.String() == was.Facts.String() {
			f.rt.Fatalf("%s: %s %s %s until %s, and is that still at %s\n%s", was.Cluster, was.State, was.Reason, was.Facts, was.Deadline, at, g.says())
		}
	}
	for n, was := range rollout.Summarize(f.in).Stages {
		if was.SoakUntil.IsZero() || was.State != rollout.StageSoaking {
			continue
		}
		g := f.another()
		g.wait(was.SoakUntil)
		if is := rollout.Summarize(g.in).Stages[n]; is.State == rollout.StageSoaking && is.SoakUntil.Equal(was.SoakUntil) {
			f.rt.Fatalf("stage %s soaks until %s, and does so still: %s", was.Name, was.SoakUntil, g.says())
		}
	}
}

// moved: who is said to move when something is over does when all of that is; who is said not to move by itself does not.
func (f *future) moved() {
	g := f.another()
	before := make([]rollout.ClusterStatus, f.in.State.Len(f.plan))
	for i := range before {
		before[i] = rollout.ClusterOf(f.in, i)
	}
	g.allGood()
	s := &g.in.State
	offers := false
	for _, r := range rollout.Explain(g.in) {
		offers = offers || r.Blocks && len(r.Actions) > 0
		for _, cause := range r.Causes {
			offers = offers || r.Blocks && cause.Blocks && len(cause.Actions) > 0
		}
	}
	if !s.State.Ended() && !offers {
		f.rt.Fatalf("all is good, and it stands still, and nobody is asked for anything:\n%sbefore:\n%s", g.says(), f.says())
	}
	for i, was := range before {
		r := s.Record(i)
		is := rollout.ClusterOf(g.in, i)
		switch {
		case r.State == rollout.ClusterDeferred && (is.Facts == nil || is.Facts.Code != rollout.PassedBy && is.Facts.Code != rollout.Overtaken) && (s.State.Ended()):
			f.rt.Fatalf("all is good, and %s is %s: %s %s:\n%sbefore %s %s:\n%s", is.Cluster, is.State, is.Reason, is.Facts, g.says(), was.Reason, was.Facts, f.says())
		case was.State == rollout.ClusterDeferred && was.Facts != nil && was.Facts.Code == rollout.PassedBy && is.Revision != was.Revision:
			f.rt.Fatalf("%s was passed by, and is %s %s %s now:\n%sbefore:\n%s", was.Cluster, is.State, is.Reason, is.Facts, g.says(), f.says())
		case was.State == rollout.ClusterSkipped && is.State != was.State && was.Reason == rollout.ReasonSkipped:
			f.rt.Fatalf("%s was %s %s %s, and is %s %s %s now:\n%sbefore:\n%s", was.Cluster, was.State, was.Reason, was.Facts, is.State, is.Reason, is.Facts, g.says(), f.says())
		case r.InFlight() && is.Reason == rollout.ReasonAwaitingRollback && !s.State.Ended(): // the way back waits for a person, who is asked
		case r.InFlight() && (is.Facts == nil || is.Facts.Code != rollout.Overtaken):
			f.rt.Fatalf("all is good, and %s is %s: %s %s:\n%sbefore %s %s:\n%s", is.Cluster, is.State, is.Reason, is.Facts, g.says(), was.Reason, was.Facts, f.says())
		}
	}
	for _, r := range rollout.Explain(f.in) {
		failures := slices.Contains([]string{rollout.ReasonFailures, rollout.ReasonNoEarlierRevision, rollout.ReasonRollbackFailed}, r.Reason)
		switch {
		case r.Subject.Kind != rollout.AboutRollout || !r.Blocks || !failures || f.in.Stands: // what a restore has stand still is looked at when that is settled
		case r.Facts != nil && (r.Facts.Removed > 0 || r.Facts.Code == rollout.NotByItself):
			if s.Pause == nil {
				f.rt.Fatalf("said not to go on by itself, and does: %s\nbefore:\n%s", g.says(), f.says())
			}
		case r.Facts == nil || r.Facts.Gate == "":
			if s.Pause != nil && s.Pause.At == f.in.State.Pause.At {
				f.rt.Fatalf("said to go on by itself, and does not: %s\nbefore:\n%s", g.says(), f.says())
			}
		}
	}
}

// oneMore: one failure more does what is said of it.
func (f *future) oneMore() {
	why := rollout.Explain(f.in)
	n := slices.IndexFunc(why, func(r rollout.Reason) bool { return r.Subject.Kind == rollout.AboutBudget })
	if n < 0 || f.in.State.Pause != nil || f.in.Stands {
		return
	}
	said := why[n].Facts
	for i := range f.in.State.Len(f.plan) {
		r, o := f.in.State.Record(i), f.in.Observed[i]
		back := f.in.State.Back != nil
		if r.State != rollout.ClusterProgressing || !o.Connected || o.Held || o.Gone || o.Silent || r.Generation == 0 || o.Generation < r.Generation || o.Revision != r.Revision || r.Leaving() {
			continue
		}
		if back && (!r.GoesBack() || r.Revision != f.in.State.Back.To) || !back && r.Revision != f.plan.Revision {
			continue
		}
		if said.Stage != "" && f.plan.Stages[r.Stage].Name != said.Stage {
			continue
		}
		g := f.another()
		g.in.Observed[i].Ready, g.in.Observed[i].Failed, g.in.Observed[i].Unheard = false, true, false
		g.decide()
		stops := said.Failed+1 > said.Tolerated
		s := &g.in.State
		stopped := s.State == rollout.Paused || s.State == rollout.Aborted || !back && s.Back != nil
		more := rollout.Summarize(g.in).Failed - rollout.Summarize(f.in).Failed
		if alone := more <= 1 && s.Stage == f.in.State.Stage; alone && stops != stopped { // else the next stage began, and others failed there
			f.rt.Fatalf("said of one more failure: %s; after that of %s: \n%sbefore:\n%s", said, f.in.State.Member(f.plan, i).Cluster, g.says(), f.says())
		}
	}
}
