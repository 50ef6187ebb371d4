package rollout_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// TestWhatIsOfferedIsAccepted: over random runs, whatever Explain offers is accepted when it is said at once; what waits for a person offers
// something; and a promote that is accepted ends what it was offered for.
func TestWhatIsOfferedIsAccepted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := newChaos(rt)
		c.newest = rapid.SampledFrom([]int64{2, 2, 4}).Draw(rt, "newest")
		c.strategies()
		c.randomFleet()
		from := c.newest - 1
		c.begin(rapid.SampledFrom([]int64{0, from, from, from}).Draw(rt, "from"))
		for range rapid.IntRange(1, 25).Draw(rt, "acts") {
			c.hear()
			c.decide()
			c.offered()
		}
	})
}

// verbOf are the verbs that methods of the API say.
var verbOf = map[string]string{rollout.DoResume: rollout.VerbResume, rollout.DoRetry: rollout.VerbRetry, rollout.DoRollBack: rollout.VerbRollback,
	rollout.DoPromote: rollout.VerbPromote, rollout.DoApprove: rollout.VerbApprove, rollout.DoOverride: rollout.VerbOverride, rollout.DoSkip: rollout.VerbSkip,
	rollout.DoUnpin: rollout.VerbUnpin}

// persons are the reasons for which a rollout waits until somebody says something.
var persons = []string{rollout.ReasonApproval, rollout.ReasonEmptyStage, rollout.ReasonEmptyOverride, rollout.ReasonAllDeferred, rollout.ReasonAllAway,
	rollout.ReasonHeldUnready, rollout.ReasonConfirm, rollout.ReasonGateError, rollout.ReasonGateInconclusive}

func (c *chaos) offered() {
	in := c.input()
	d := rollout.Decide(in)
	if len(d.Assign) > 0 {
		return // the next look is another
	}
	in.State = d.State
	for i := len(in.Observed); i < d.State.Len(c.plan); i++ {
		in.Observed = append(in.Observed, c.observe(c.clusters[string(d.State.Member(c.plan, i).Cluster)]))
	}
	offers := 0
	var each func([]rollout.Reason)
	each = func(why []rollout.Reason) {
		for _, r := range why {
			for _, a := range r.Actions {
				c.accepts(in, r, a)
				if r.Blocks {
					offers++
				}
			}
			each(r.Causes)
		}
	}
	why := rollout.Explain(in)
	each(why)
	s := &d.State
	back := s.State == rollout.RollingBack && s.Facts != nil && s.Facts.Code == rollout.GateApproving
	if waits := s.State == rollout.Paused || s.State == rollout.Waiting && slices.Contains(persons, s.Reason) || back; waits && offers == 0 {
		c.rt.Fatalf("it is %s (%s: %s), and nothing is offered: %+v", s.State, s.Reason, s.Facts, why)
	}
}

// accepts has a person do what is offered, at once.
func (c *chaos) accepts(in rollout.Input, r rollout.Reason, a rollout.Action) {
	verb, ok := verbOf[a.Method]
	if !ok {
		return
	}
	v := rollout.Verb{ID: "offered", Verb: verb, By: "tom", Why: "because", At: c.now, Stage: a.Stage, Gate: a.Gate, Revision: a.Revision}
	if len(a.By) > 0 {
		v.By = a.By[0]
	}
	if a.Cluster != "" {
		v.Clusters = []fleet.ClusterName{fleet.ClusterName(a.Cluster)}
	}
	in.Verbs = append(slices.Clip(in.Verbs), v)
	d := rollout.Decide(in)
	i := slices.IndexFunc(d.Outcomes, func(o rollout.Outcome) bool { return o.ID == v.ID })
	was, s := &in.State, &d.State
	switch {
	case i < 0:
		c.rt.Fatalf("%s is offered (%s %s), and gets no answer", a, r.Subject, r.Reason)
	case !d.Outcomes[i].Accepted:
		c.rt.Fatalf("it is %s (%s: %s), %s is offered (%s %s: %s), and is refused: %s\n%s", was.State, was.Reason, was.Facts, a, r.Subject, r.Reason, r.Facts,
			d.Outcomes[i].Sentence, c.explainedAs(in))
	case verb == rollout.VerbPromote && was.State == rollout.Waiting && r.Reason == was.Reason && s.State == was.State && s.Reason == was.Reason && s.Facts.String() == was.Facts.String():
		c.rt.Fatalf("it is %s (%s: %s), and is that still after promote, which is offered (%s %s)\n%s", was.State, was.Reason, was.Facts, r.Subject, r.Reason, c.explainedAs(in))
	}
}

func (c *chaos) explainedAs(in rollout.Input) string {
	c.explain(rollout.Explain(in), 0)
	return strings.TrimSpace(c.flush())
}
