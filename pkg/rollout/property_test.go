package rollout_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// TestMain raises the number of random runs above rapid's default; -rapid.checks on the command line wins, so that a
// soak is: go test -run Random -rapid.checks=100000.
func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		n := "2000" // one seed finds what it finds: more of its runs cost minutes of every make test, and new seeds are for a soak
		if testing.Short() {
			n = "200"
		}
		if err := flag.Set("rapid.checks", n); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// chaos is a world in which steps arrive late and the hub may crash between any two actions.
type chaos struct {
	*world
	rt        *rapid.T
	newest    int64      // the revision that is rolled out; the one before it stands
	again     bool       // some clusters have it already
	undone    []delivery // committed, not yet seen by the cluster
	approvers map[string]map[string]bool
	unasked   map[int32]bool // members that lost the module unasked
}

type delivery struct {
	cluster    string
	revision   int64
	generation uint64
}

func newChaos(rt *rapid.T) *chaos {
	w := newWorld(rt)
	w.quiet = true
	return &chaos{world: w, rt: rt, newest: 2, approvers: map[string]map[string]bool{}, unasked: map[int32]bool{}}
}

func amountGen(rt *rapid.T, label string, unset bool) rollout.Amount {
	switch rapid.IntRange(0, 3).Draw(rt, label) {
	case 0:
		if unset {
			return rollout.Amount{}
		}
		return rollout.Number(1)
	case 1:
		return rollout.Percent(rapid.SampledFrom([]int{10, 25, 50, 100}).Draw(rt, label+"%"))
	default:
		return rollout.Number(rapid.IntRange(1, 3).Draw(rt, label+"#"))
	}
}

func pick(rt *rapid.T, label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(rt, label)
}

func (c *chaos) strategies() {
	rt := c.rt
	s := rollout.Strategy{
		OnFailure:        pick(rt, "onFailure", "Pause", "Abort", "Rollback"),
		Offline:          pick(rt, "offline", "Defer", "Defer", "Wait", "Fail"),
		LateJoiners:      pick(rt, "late", "Follow", "Include", "Ignore"),
		MinReadyTime:     time.Duration(rapid.IntRange(0, 2).Draw(rt, "minReady")) * 10 * time.Second,
		ProgressDeadline: time.Minute,
	}
	if rapid.Bool().Draw(rt, "tolerates") {
		s.MaxFailures = amountGen(rt, "maxFailures", true)
	}
	s.Rollback.MaxConcurrency = amountGen(rt, "back", true)
	s.Rollback.Scope = pick(rt, "scope", "Moved", "Moved", "Failed")
	s.Rollback.Gates = pick(rt, "backGates", "Skip", "Skip", "Run")
	for i := range rapid.IntRange(0, 3).Draw(rt, "stages") {
		st := rollout.Stage{Name: "s" + strconv.Itoa(i), MaxConcurrency: amountGen(rt, "max", true),
			Soak: time.Duration(rapid.IntRange(0, 1).Draw(rt, "soak")) * 30 * time.Second, AllowEmpty: rapid.Bool().Draw(rt, "allowEmpty")}
		if rapid.IntRange(0, 3).Draw(rt, "stageTolerates") == 0 {
			st.MaxFailures = amountGen(rt, "stageFailures", true)
		}
		st.Selector = &fleet.Selector{MatchLabels: map[string]string{"ring": strconv.Itoa(i)}}
		switch rapid.IntRange(0, 7).Draw(rt, "gate") {
		case 0:
			st.After = []rollout.Gate{{Approval: &rollout.Approval{Approvers: rapid.IntRange(1, 2).Draw(rt, "n")}}}
		case 1:
			st.Before = []rollout.Gate{{Approval: &rollout.Approval{Approvers: 1, Expires: 20 * time.Second}}}
		case 2:
			st.Before = []rollout.Gate{{Window: &rollout.WindowGate{Deny: []rollout.Window{{Cron: "*/5 * * * *", Duration: 2 * time.Minute}}}}}
		case 3:
			st.After = []rollout.Gate{{Metric: &rollout.Metric{Address: "https://p.example", Query: "up", SuccessCondition: "true",
				Count: 2, Interval: 10 * time.Second}}}
		case 4: // of one name
			st.Before = []rollout.Gate{{Approval: &rollout.Approval{Approvers: 1}}}
			st.After = []rollout.Gate{{Approval: &rollout.Approval{Approvers: 1}}}
		case 5:
			st.Before = []rollout.Gate{{Webhook: &rollout.Webhook{URL: "https://gate.example/check", Interval: 10 * time.Second}}}
			st.After = []rollout.Gate{{Webhook: &rollout.Webhook{URL: "https://gate.example/check", Interval: 10 * time.Second}}}
		}
		s.Stages = append(s.Stages, st)
	}
	c.strategy = s
}

// decide is one decision: taken twice, to see that it is the same, perhaps lost in a crash, else committed.
func (c *chaos) decide() {
	for range 3 {
		in := c.input()
		careful := c.gen%4 == 0 // the slow checks, now and then
		var before []byte
		if careful {
			before = encodeAll(c.t, in.Plan, &in.State)
		}
		d := rollout.Decide(in)
		if careful && !bytes.Equal(before, encodeAll(c.t, in.Plan, &in.State)) {
			c.rt.Fatal("Decide changed its input")
		}
		if rapid.IntRange(0, 9).Draw(c.rt, "crash") == 0 {
			again := rollout.Decide(in) // the hub crashed before the commit and decides again
			if !reflect.DeepEqual(again.Assign, d.Assign) || !bytes.Equal(encodeAll(c.t, in.Plan, &d.State), encodeAll(c.t, in.Plan, &again.State)) {
				c.rt.Fatal("the same input gave another decision")
			}
		}
		c.invariants(in, d)
		c.checkChanged(in, d)
		c.checkIdempotent(in, d)
		if len(d.Assign) > 0 {
			c.gen++
			d.State.Stamp(d.Assign, c.gen)
		}
		c.state = d.State
		if careful {
			c.state = c.store(d.State)
		}
		c.last = d
		for _, a := range d.Assign {
			c.clusters[string(c.state.Member(c.plan, int(a.Member)).Cluster)].o.Anew = false
			c.undone = append(c.undone, delivery{string(c.state.Member(c.plan, int(a.Member)).Cluster), a.Revision, c.gen})
		}
		if rapid.IntRange(0, 3).Draw(c.rt, "slow") > 0 {
			c.deliver()
		}
		if len(d.Assign) == 0 {
			return
		}
	}
}

func (c *chaos) deliver() {
	for _, u := range c.undone {
		cl := c.clusters[u.cluster]
		cl.o.Revision, cl.o.Generation = u.revision, u.generation
		cl.o.Ready, cl.o.Failed, cl.o.Removed = false, false, false
	}
	c.undone = nil
}

func (c *chaos) invariants(in rollout.Input, d rollout.Decision) {
	rt, p, s := c.rt, c.plan, &d.State
	if d.Odd() != "" {
		rt.Fatal(d.Odd())
	}
	c.asDrawn(d)
	c.guards(in, d)
	sum := rollout.Summarize(rollout.Input{Now: in.Now, Plan: p, State: *s, Observed: in.Observed})
	if len(d.Assign) > 0 && (s.State == rollout.Paused || s.State == rollout.Superseded || s.State == rollout.Failed) {
		rt.Fatalf("a rollout that is %s assigns %v", s.State, d.Assign)
	}
	flying := make([]int, len(p.Stages))
	failed := 0
	for i := range s.Len(p) {
		r := s.Record(i)
		if r.InFlight() {
			flying[r.Stage]++
		}
		if r.State == rollout.ClusterFailed || r.State == rollout.ClusterTimedOut {
			failed++
		}
	}
	back := s.Back != nil
	outlook := c.outlook(s)
	for _, a := range d.Assign {
		r := s.Record(int(a.Member))
		c.placed(in, d, a)
		c.foreseen(in, outlook, a)
		if back {
			keeps := a.Revision > s.Back.To && int(a.Member) < in.State.Len(p) && // it is not one of those that go back
				a.Revision == max(in.Observed[a.Member].Revision, in.State.Record(int(a.Member)).Revision)
			if !(a.Revision == s.Back.To && !a.Leave || keeps && !a.Leave || a.Leave && s.State.Ended()) {
				rt.Fatalf("a rollback to r%d assigns %+v", s.Back.To, a)
			}
			continue
		}
		c.mayAssign(in, d, a, r)
		if o := c.observe(c.clusters[string(s.Member(p, int(a.Member)).Cluster)]); !a.Leave && len(in.Awaits[a.Revision]) > 0 && o.Revision != a.Revision {
			rt.Fatalf("it begins %+v, which waits for %+v", a, in.Awaits[a.Revision])
		}
		st := p.Stages[r.Stage]
		if limit := c.limit(s, int(r.Stage)); st.MaxConcurrency.Set && flying[r.Stage] > limit {
			rt.Fatalf("%d of stage %s are moving, limit %d, %s: %v %+v\n%+v", flying[r.Stage], st.Name, limit, s.State, d.Assign, d.Moves, d.State.Stages)
		}
	}
	if back && len(d.Assign) > 0 && p.Strategy.Rollback.MaxConcurrency.Set && !s.State.Ended() {
		c.backBudget(in, d)
	}
	if len(d.Assign) > 0 && !back && !s.State.Ended() && failed > max(p.Tolerated(), s.Accepted) {
		rt.Fatalf("%d failed, %d tolerated, %d accepted, and still assigns %v", failed, p.Tolerated(), s.Accepted, d.Assign)
	}
	c.speaks(d, sum)
	c.approvals(s)
	c.proves(in, d)
	c.forgets(in, d)
	c.cordons(in, d)
	c.pausedStill(in, d)
}

// limit resolves maxConcurrency a second time, by hand.
func (c *chaos) limit(s *rollout.State, stage int) int {
	a, total := c.plan.Stages[stage].MaxConcurrency, c.plan.Stages[stage].Total
	if total == 0 {
		total = s.Stages[stage].Total
	}
	for i := range s.Len(c.plan) {
		if c.plan.Stages[stage].Total == 0 && s.Stages[stage].Total == 0 && int(s.Record(i).Stage) == stage {
			total++
		}
	}
	if a.Percent {
		return max(total*a.N/100, 1)
	}
	return max(a.N, 1)
}

func (c *chaos) backBudget(in rollout.Input, d rollout.Decision) {
	n := 0
	for i := range d.State.Len(c.plan) {
		if r := d.State.Record(i); r.InFlight() && r.Revision == d.State.Back.To && r.Step > 0 {
			n++
		}
	}
	a := c.plan.Strategy.Rollback.MaxConcurrency
	limit := a.N
	if a.Percent {
		limit = d.State.Back.Total * a.N / 100
	}
	if n > max(limit, 1) {
		// Those that came back on their own are not counted against the budget: they were assigned before.
		moved := 0
		for _, x := range d.Assign {
			if in.Observed[x.Member].Connected && !in.Observed[x.Member].Held {
				moved++
			}
		}
		if moved > max(limit, 1) {
			c.rt.Fatalf("%d are moved back at once, limit %d", moved, max(limit, 1))
		}
	}
}

// placed: who is assigned something by its membership is where the placement says that is in force after the decision. What is
// not known takes the module from nobody.
func (c *chaos) placed(in rollout.Input, d rollout.Decision, a rollout.Assign) {
	cl, by := c.clusters[string(d.State.Member(c.plan, int(a.Member)).Cluster)], d.State.PlacedBy()
	out := cl.unselected
	if by != 0 {
		out = cl.outside
	}
	known := by == 0 && !in.Unplaced || by != 0 && in.Older == by
	switch {
	case !known && (a.Leave || in.State.State.Ended() && in.State.PlacedBy() == by):
		c.rt.Fatalf("%s is assigned %+v, and nobody knows whether it is placed (by r%d)", cl.Name, a, by)
	case known && a.Leave != out && (a.Leave || by == 0 || a.Revision == by && d.State.Record(int(a.Member)).Previous != by):
		c.rt.Fatalf("%s: placed %t by r%d, assigned %+v", cl.Name, !out, by, a)
	case a.Leave && by != 0 && in.State.Record(int(a.Member)).Step == 0 && cl.o.Revision > by && !cl.unselected:
		c.rt.Fatalf("%s has r%d and was not moved, and a rollback to r%d takes it away", cl.Name, cl.o.Revision, by)
	}
}

// mayAssign: only who can take it, in stage order.
func (c *chaos) mayAssign(in rollout.Input, d rollout.Decision, a rollout.Assign, r rollout.Record) {
	rt := c.rt
	o := c.clusters[string(d.State.Member(c.plan, int(a.Member)).Cluster)]
	name := o.Name
	switch {
	case in.Stands:
		rt.Fatalf("%s is assigned %+v while the hub's restored store stands", name, a)
	case !o.o.Connected:
		rt.Fatalf("%s is away and is assigned %+v", name, a)
	case o.o.Cordoned || o.o.Held:
		rt.Fatalf("%s is cordoned or held and is assigned %+v", name, a)
	case r.Pinned():
		rt.Fatalf("%s is pinned and is assigned %+v", name, a)
	}
	if a.Revision != c.plan.Revision && !a.Leave {
		if a.Revision != c.plan.From {
			rt.Fatalf("%s is assigned r%d, neither target nor baseline", name, a.Revision)
		}
		if known := in.Older == a.Revision && !o.outside; !known && r.Previous == 0 {
			rt.Fatalf("%s has nothing and is assigned r%d, whose placement does not take it, or is not known", name, a.Revision)
		}
		return
	}
	if d.State.State.Ended() {
		return
	}
	for i := range int(r.Stage) + 1 {
		if d.State.Stages[i].Started == 0 {
			rt.Fatalf("%s of stage %d moves before stage %d has begun", name, r.Stage, i)
		}
		if i < int(r.Stage) && d.State.Stages[i].Ended == 0 {
			rt.Fatalf("%s of stage %d moves before stage %d is over", name, r.Stage, i)
		}
	}
}

// speaks: every rollout has ended, moves, or says what it waits for, and knows when to look again.
func (c *chaos) speaks(d rollout.Decision, sum rollout.Summary) {
	s := &d.State
	switch {
	case sum.ToGo+sum.Running+sum.Succeeded+sum.Failed+sum.Deferred+sum.Skipped+sum.RolledBack+sum.Removed != sum.Total+sum.Joined:
		c.rt.Fatalf("counts do not add up: %+v", sum.Counts)
	case s.State.Ended():
		if s.Ended == 0 {
			c.rt.Fatal("ended, and nobody knows when")
		}
	case s.State == rollout.Waiting || s.State == rollout.Paused || s.State == rollout.RollingBack:
		if s.Reason == "" {
			c.rt.Fatalf("%s without a reason", s.State)
		}
	case s.State == rollout.Progressing && (sum.Running == 0 || d.WakeAt.IsZero()):
		c.rt.Fatalf("Progressing with %d running, to look again at %s: %+v", sum.Running, d.WakeAt, s.Head)
	}
	if !s.State.Ended() && len(rollout.Explain(rollout.Input{Now: c.now, Plan: c.plan, State: *s})) < 2 {
		c.rt.Fatal("nothing is explained")
	}
}

// approvals: an approval gate is passed only by enough people who may, for this revision.
func (c *chaos) approvals(s *rollout.State) {
	for _, g := range s.Gates {
		for _, a := range g.Approvals {
			if !c.approvers[strconv.FormatInt(c.plan.ID.Number, 10)][a.By] || a.By == c.plan.StartedBy {
				c.rt.Fatalf("approval by %s counts and was not given for this revision", a.By)
			}
		}
	}
}

func (c *chaos) act() {
	rt := c.rt
	all := c.sorted()
	cl := all[rapid.IntRange(0, len(all)-1).Draw(rt, "cluster")]
	flip := func(b *bool) { *b = !*b }
	v := rollout.Verb{ID: strconv.Itoa(len(c.verbs) + 1), At: c.now, By: pick(rt, "by", "ana", "bob", "eve"), Why: "because"}
	add := func(verb string) {
		v.Verb = verb
		c.verbs = append(c.verbs, v)
	}
	switch rapid.IntRange(0, 34).Draw(rt, "act") {
	case 0, 1, 2, 3, 4, 5, 6, 7:
		cl.o.Ready, cl.o.Failed, cl.o.Well = cl.o.Revision != 0, false, cl.o.Revision != 0
		cl.o.Removed = cl.o.Revision == 0 && cl.o.Generation != 0
	case 8:
		cl.o.Ready, cl.o.Well = false, false
	case 9:
		cl.o.Ready, cl.o.Failed, cl.o.Reason, cl.o.Well = false, true, "Boom", false
	case 10, 11:
		flip(&cl.o.Connected)
	case 12:
		flip(&cl.o.Cordoned)
	case 13:
		flip(&cl.o.Held)
		cl.o.Ready = cl.o.Ready && !(cl.o.Held && c.gen%2 == 0) // by a hold of all of it
	case 14:
		flip(&cl.unselected)
		cl.outside = cl.unselected
	case 15:
		add("pause")
	case 16:
		add("resume")
	case 17:
		v.Revision = rapid.SampledFrom([]int64{0, c.plan.Revision, c.plan.Revision + 1}).Draw(rt, "revision")
		add("approve")
		if v.Revision <= c.plan.Revision {
			key := strconv.FormatInt(c.plan.ID.Number, 10)
			if c.approvers[key] == nil {
				c.approvers[key] = map[string]bool{}
			}
			c.approvers[key][v.By] = true
		}
	case 18:
		v.Clusters = []fleet.ClusterName{cl.Name}
		add(pick(rt, "verb", "skip", "retry", "pin", "unpin"))
	case 19:
		add(pick(rt, "verb2", "retry", "promote", "override", "reject"))
	case 20:
		if rapid.IntRange(0, 4).Draw(rt, "rare") == 0 {
			v.Revision = c.olderRevision()
			add(pick(rt, "verb3", "abort", "rollback"))
		}
	case 21:
		name := fmt.Sprintf("n%d", len(all))
		c.clusters[name] = &cluster{Cluster: fleet.Cluster{Name: fleet.ClusterName(name), Labels: map[string]string{"ring": strconv.Itoa(rapid.IntRange(0, 3).Draw(rt, "ring"))}},
			o: rollout.Observed{Connected: true}}
	case 22:
		unseen := len(c.undone) == 0 && rapid.Bool().Draw(rt, "unseen")
		if flip(&cl.o.Gone); !cl.o.Gone || unseen { // it is registered again
			cl.o = rollout.Observed{Connected: true, Anew: unseen}
		}
	case 23:
		for _, k := range c.last.Checks {
			c.results = append(c.results, rollout.GateResult{Stage: k.Stage, Position: k.Position, Gate: k.Gate, Number: k.Number, At: c.now,
				Outcome: rollout.GateState(pick(rt, "outcome", "Successful", "Successful", "Running", "Failed", "Error", "Inconclusive"))})
		}
	case 24:
		for _, h := range c.last.Holds {
			c.confirm = append(c.confirm, h.Digest)
		}
	case 25:
		cl.Labels = map[string]string{"ring": strconv.Itoa(rapid.IntRange(0, 3).Draw(rt, "ring"))}
	case 26:
		c.deliver()
		if cl.maybe || cl.only { // another module does not come; or its source is fetched again
			cl.maybe, cl.only = !cl.maybe, cl.maybe
		}
	case 27:
		c.now = c.now.Add(time.Duration(rapid.IntRange(1, 120).Draw(rt, "seconds")) * time.Second)
	case 28:
		flip(&cl.unselected)
	case 29:
		flip(&cl.outside)
	case 30:
		flip(&c.blind)
	case 31:
		flip(&c.unplaced)
	case 32, 33:
		to := "nothing"
		if rapid.Bool().Draw(rt, "awaits") {
			to = "crds"
		}
		c.await([]string{strconv.FormatInt(rapid.Int64Range(1, c.newest).Draw(rt, "of"), 10), to}, map[string]string{"total": "1", "in": "e1"})
	case 34:
		flip(&c.stands)
	}
}

// sunshine makes everything good and lets time pass: the rollout must end.
func (c *chaos) sunshine() {
	c.blind, c.unplaced, c.stands, c.awaits = false, false, false, nil
	for range 200 {
		if c.state.State.Ended() {
			return
		}
		c.deliver()
		for _, cl := range c.clusters {
			cl.o.Connected, cl.o.Cordoned, cl.o.Held, cl.o.Failed, cl.maybe = true, false, false, false, false
			cl.o.Ready, cl.o.Removed = cl.o.Revision != 0, cl.o.Revision == 0 && cl.o.Generation != 0
		}
		for _, h := range c.last.Holds {
			c.confirm = append(c.confirm, h.Digest)
		}
		for _, k := range c.last.Checks {
			c.results = append(c.results, rollout.GateResult{Stage: k.Stage, Position: k.Position, Gate: k.Gate, Number: k.Number, At: c.now, Outcome: rollout.GateSuccessful})
		}
		key := strconv.FormatInt(c.plan.ID.Number, 10)
		if c.approvers[key] == nil {
			c.approvers[key] = map[string]bool{}
		}
		c.approvers[key]["bob"], c.approvers[key]["eve"] = true, true
		for _, v := range []string{"resume", "retry", "promote", "override"} {
			c.verbs = append(c.verbs, rollout.Verb{ID: strconv.Itoa(len(c.verbs) + 1), Verb: v, By: "tom", Why: "because", At: c.now})
		}
		for _, by := range []string{"bob", "eve"} {
			c.verbs = append(c.verbs, rollout.Verb{ID: strconv.Itoa(len(c.verbs) + 1), Verb: "approve", By: by, At: c.now})
		}
		c.decide()
		c.now = c.now.Add(15 * time.Second)
	}
	c.rt.Fatalf("it does not end: %s %s %s\n%+v", c.state.State, c.state.Reason, c.state.Facts, c.state.Head)
}

// TestRandomRuns holds what must always be true over random fleets, strategies, orders of events and crashes.
func TestRandomRuns(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) { newChaos(rt).play() })
}

// TestRandomRollbacks holds the same where there are revisions before the one that stands: clusters that were left behind have one, and
// people go back to one.
func TestRandomRollbacks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := newChaos(rt)
		c.newest = 4
		c.play()
	})
}

// TestRandomRunsAgain holds the same where some clusters have the revision already, as where its rollout was aborted and is started again.
func TestRandomRunsAgain(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := newChaos(rt)
		c.again = true
		c.play()
	})
}

func (c *chaos) play() {
	c.strategies()
	c.randomFleet()
	from := c.newest - 1
	c.begin(rapid.SampledFrom([]int64{0, from, from, from}).Draw(c.rt, "from"))
	for range rapid.IntRange(1, 40).Draw(c.rt, "acts") {
		c.act()
		c.decide()
	}
	c.sunshine()
	for range rapid.IntRange(0, 10).Draw(c.rt, "after") {
		c.act()
		c.decide()
	}
}

// olderRevision is one before the newest, or 0; only 0 where there is one that stands and none before it.
func (c *chaos) olderRevision() int64 {
	if c.newest == 2 {
		return 0
	}
	return rapid.Int64Range(0, c.newest-1).Draw(c.rt, "older")
}

func (c *chaos) randomFleet() {
	rt := c.rt
	for i := range rapid.IntRange(1, 9).Draw(rt, "fleet") {
		name := "c" + strconv.Itoa(i)
		c.gen++
		cl := &cluster{Cluster: fleet.Cluster{Name: fleet.ClusterName(name), Labels: map[string]string{"ring": strconv.Itoa(rapid.IntRange(0, 3).Draw(rt, "ring"))}}}
		cl.o = rollout.Observed{Connected: rapid.IntRange(0, 9).Draw(rt, "up") > 0, Revision: max(1, c.olderRevision()), Generation: c.gen, Ready: true, Well: true}
		if c.again && rapid.IntRange(0, 2).Draw(rt, "has") == 0 {
			cl.o.Revision, cl.o.Cordoned = c.newest, rapid.Bool().Draw(rt, "cordoned")
			cl.o.Ready = rapid.Bool().Draw(rt, "ready")
			cl.o.Well = cl.o.Ready
		}
		cl.unselected = rapid.IntRange(0, 9).Draw(rt, "leaves") == 0
		cl.only, cl.maybe = i == 3, i == 5
		c.clusters[name] = cl
	}
}

func (c *chaos) begin(from int64) {
	c.number++
	in := rollout.PlanInput{ID: fleet.RolloutID{Module: fleet.ModuleRef{Project: "default", Name: "shop"}, Number: c.number},
		Revision: c.newest, From: from, StartedBy: "ana"}
	for _, cl := range c.sorted() {
		in.Clusters = append(in.Clusters, rollout.Candidate{Cluster: cl.Cluster, Selected: !cl.unselected, Revision: cl.o.Revision, Last: cl.only})
	}
	var err error
	c.plan, c.state, err = rollout.NewPlan(c.strategy, in)
	c.must(err)
	if !slices.IsSortedFunc(c.plan.Members, func(a, b rollout.Member) int { return int(a.Stage) - int(b.Stage) }) {
		c.rt.Fatal("members are not in the order of stages")
	}
	c.decide()
}
