package rollout_test

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/rollout"
)

// TestExplainSaysWhatIsWaitedFor: over random runs, in which hubs restart and agents are silent, Explain names first what
// Decide waits for, blocks by nothing in a rollout that has ended, and knows no time at which Decide does not look again.
func TestExplainSaysWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := newChaos(rt)
		c.strategies()
		c.randomFleet()
		c.begin(rapid.SampledFrom([]int64{0, 1, 1, 1}).Draw(rt, "from"))
		for range rapid.IntRange(1, 12).Draw(rt, "acts") {
			c.hear()
			c.decide()
			c.explained()
		}
	})
}

// hear changes what is heard of a cluster, or anything else.
func (c *chaos) hear() {
	all := c.sorted()
	o := &all[rapid.IntRange(0, len(all)-1).Draw(c.rt, "heard")].o
	switch rapid.IntRange(0, 9).Draw(c.rt, "hears") {
	case 0: // the hub has just started, and its agent has not come back yet
		o.Connected, o.Silent, o.Unheard, o.NotSeen, o.Ready, o.Failed = true, true, true, false, false, false
	case 1: // it has come back, and not said yet what changed
		o.Connected, o.Silent, o.Unheard, o.NotSeen, o.Session = true, false, true, false, rollout.At(c.now)
	case 2: // the grace is over
		o.Connected, o.Silent, o.NotSeen = false, false, false
	case 3: // its agent does not see the cluster
		o.Connected, o.Silent, o.NotSeen = false, false, true
	case 4:
		o.Connected, o.Silent, o.Unheard, o.NotSeen = true, false, false, false
	default:
		c.act()
	}
	for _, cl := range all {
		if o := &cl.o; o.Silent { // nothing is known of it, and it is not known to be away
			o.Connected, o.NotSeen, o.Unheard, o.Ready, o.Failed = true, false, true, false, false
		}
	}
}

// explained holds Explain to a decision on the same input.
func (c *chaos) explained() {
	in := c.input()
	d := rollout.Decide(in)
	in.State = d.State
	for i := len(in.Observed); i < d.State.Len(c.plan); i++ {
		in.Observed = append(in.Observed, c.observe(c.clusters[string(d.State.Member(c.plan, i).Cluster)]))
	}
	s, why := &d.State, rollout.Explain(in)
	c.asks(d, why)
	i := slices.IndexFunc(why, func(r rollout.Reason) bool { return r.Blocks && r.Subject.Kind != rollout.AboutLeavers })
	switch want := cmp.Or(s.Reason, string(s.State)); {
	case s.State.Ended():
		if i >= 0 || why[0].Reason != want || why[0].Facts.String() != s.Facts.String() {
			c.rt.Fatalf("it is %s (%s: %s), explained by %+v", s.State, s.Reason, s.Facts, why)
		}
	case i < 0:
		c.rt.Fatalf("it is %s (%s: %s), and nothing blocks: %+v", s.State, s.Reason, s.Facts, why)
	case s.State == rollout.Progressing && why[i].Reason == rollout.ReasonCatchingUp: // the stages are over, and some are on their way
	case why[i].Reason != want:
		c.rt.Fatalf("it is %s (%s: %s), explained by %s: %s", s.State, s.Reason, s.Facts, why[i].Reason, why[i].Facts)
	}
	c.timely(d, why)
	c.said(in)
}

// asks: who waits for a confirm is explained, with how to give it, and nobody else.
func (c *chaos) asks(d rollout.Decision, why []rollout.Reason) {
	var want, got []string
	for _, h := range d.Holds {
		want = append(want, h.ID)
	}
	for _, r := range why {
		for _, a := range r.Actions {
			if a.Method == rollout.DoConfirm {
				got = append(got, a.Hold)
			}
		}
	}
	if !slices.Equal(got, want) {
		c.rt.Fatalf("it is %s, and waits for %v, explained by %v: %+v", d.State.State, want, got, why)
	}
}

// timely: when what is waited for is over by itself, or a cluster's time, Decide looks again.
func (c *chaos) timely(d rollout.Decision, why []rollout.Reason) {
	for _, r := range why {
		counts := r.Blocks && (r.Reason == d.State.Reason || r.Subject.Kind == rollout.AboutCluster)
		if counts && r.Until.After(c.now) && (d.WakeAt.IsZero() || d.WakeAt.After(r.Until)) {
			c.rt.Fatalf("%s blocks until %s (%s: %s), and the next look is at %s: %+v", r.Subject, r.Until, r.Reason, r.Facts, d.WakeAt, d.State.Head)
		}
		c.timely(d, r.Causes)
	}
}

// absent are reasons of members of which nothing is heard.
var absent = []string{rollout.ReasonNotHeard, rollout.ReasonDisconnected, rollout.ReasonNotSeen, rollout.ReasonLocked}

// said: of each member people read the state that Decide goes by, and a reason that fits what is known of it.
func (c *chaos) said(in rollout.Input) {
	for i := range in.State.Len(c.plan) {
		r, o, said := in.State.Record(i), in.Observed[i], rollout.ClusterOf(in, i)
		if said.State != r.State && (said.State != rollout.ClusterWaiting || r.State != rollout.ClusterToApply) {
			c.rt.Fatalf("%s is %s, said to be %s", said.Cluster, r.State, said.State)
		}
		if heardOf := o.Connected && !o.Silent; r.InFlight() && heardOf && slices.Contains(absent, said.Reason) {
			c.rt.Fatalf("%s is heard, said to be %s: %s", said.Cluster, said.Reason, said.Facts)
		}
		if r.InFlight() && o.Silent && (said.Reason == rollout.ReasonDisconnected || !said.Deadline.IsZero() && said.Deadline.After(c.now)) {
			c.rt.Fatalf("%s is expected back, said to be %s until %s", said.Cluster, said.Reason, said.Deadline)
		}
	}
}
