package rollout

import (
	"cmp"
	"container/heap"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// SimInput is a rollout to run in virtual time, with hypotheses about the fleet.
type SimInput struct {
	Strategy Strategy
	Plan     PlanInput
	Start    time.Time
	// Seed draws the apply times and the clusters of OfflinePercent.
	Seed uint64
	// ApplyMin and ApplyMax bound how long a cluster takes from assignment to ready; default 5s and 30s. Times are drawn
	// in whole seconds.
	ApplyMin, ApplyMax time.Duration
	// Fail are clusters that fail for good with the new revision; they are fine with older ones.
	Fail []fleet.ClusterName
	// Offline are clusters that are away all the time, OfflinePercent so many of all more, rounded down but one at least,
	// drawn by Seed.
	Offline        []fleet.ClusterName
	OfflinePercent int
	// Held are clusters to which nothing is written, until when; zero: all the time.
	Held map[fleet.ClusterName]time.Time
	// Gates are outcomes by STAGE/POSITION/NAME; unset: Successful. An approval that fails is a rejection.
	Gates map[string]GateState
	// GateTime is how long a gate, or a person, takes to answer; default 0.
	GateTime time.Duration
	// Limit is how long is simulated at most; default 30 days.
	Limit time.Duration
}

// Timeline is what happened.
type Timeline struct {
	Events []SimEvent
	// State is where it stood in the end; Stuck says that only a person could move it on.
	State  RunState
	Reason string
	Facts  *Facts
	Stuck  bool
	// Duration is from the start to the end, or to where it is stuck.
	Duration time.Duration
	Steps    int
	// Decisions is how often Decide was called.
	Decisions int
	// MaxNotReady is the largest number of clusters that were not ready at once, first reached at MaxNotReadyAt.
	MaxNotReady   int
	MaxNotReadyAt time.Duration
	Summary       Summary
}

// SimEvent is one line of the timeline: a step, or a transition of the rollout, a stage or a gate, or clusters that
// failed or were deferred.
type SimEvent struct {
	At      time.Duration
	Subject About
	// From and To are states; empty for what is no transition.
	From, To string
	// Reason is why, with its facts; of a step what it does.
	Reason   string
	Facts    *Facts
	Clusters []fleet.ClusterName // in order, for steps and clusters
}

// Simulate runs Decide in virtual time until the rollout has ended, or nothing but a person moves it on.
func Simulate(in SimInput) (Timeline, error) {
	in.ApplyMin, in.ApplyMax = cmp.Or(in.ApplyMin, 5*time.Second), cmp.Or(in.ApplyMax, 30*time.Second)
	in.Limit = cmp.Or(in.Limit, 30*24*time.Hour)
	if in.ApplyMax < in.ApplyMin {
		return Timeline{}, fleet.Invalidf("applyMax", "%s is less than applyMin, %s", in.ApplyMax, in.ApplyMin)
	}
	if in.OfflinePercent < 0 || in.OfflinePercent > 100 {
		return Timeline{}, fleet.Invalidf("offline", "%d%% is not between 0%% and 100%%", in.OfflinePercent)
	}
	plan, state, err := NewPlan(in.Strategy, in.Plan)
	if err != nil {
		return Timeline{}, err
	}
	s := newSim(in, plan, state)
	if err := s.known(); err != nil {
		return Timeline{}, err
	}
	s.run()
	return s.out, nil
}

type sim struct {
	in       SimInput
	plan     *Plan
	state    State
	now      time.Time
	observed []Observed
	fails    []bool
	due      dueList
	answers  []answer
	verbs    []Verb
	results  []GateResult
	confirm  []fleet.Digest
	asked    map[string]bool
	gen      uint64
	notReady int
	out      Timeline
}

// due is a member that becomes ready, or fails.
type due struct {
	at         time.Time
	member     int32
	generation uint64
}

type answer struct {
	at     time.Time
	verb   *Verb
	result *GateResult
}

func newSim(in SimInput, plan *Plan, state State) *sim {
	s := &sim{in: in, plan: plan, state: state, now: in.Start, asked: map[string]bool{}}
	s.observed, s.fails = make([]Observed, len(plan.Members)), make([]bool, len(plan.Members))
	index := make(map[fleet.ClusterName]int, len(plan.Members))
	for i, m := range plan.Members {
		index[m.Cluster] = i
		s.observed[i].Connected = true
		s.observed[i].Unselected = m.Leave
	}
	for i := range in.Plan.Clusters {
		c := &in.Plan.Clusters[i]
		if k, ok := index[c.Cluster.Name]; ok {
			s.gen = 1
			o := &s.observed[k]
			o.Revision, o.Cordoned = c.Revision, c.Cluster.Cordoned
			_, o.Held = in.Held[c.Cluster.Name]
			if c.Revision != 0 {
				o.Generation, o.Ready, o.Well = 1, true, true
			}
			o.UnselectedOlder = c.UnselectedOlder
		}
	}
	s.takeAway(index)
	for _, name := range in.Fail {
		if k, ok := index[name]; ok {
			s.fails[k] = true
		}
	}
	return s
}

// takeAway makes the clusters of Offline away, and of the others those of OfflinePercent: rounded down, but one at least.
func (s *sim) takeAway(index map[fleet.ClusterName]int) {
	for _, name := range s.in.Offline {
		if k, ok := index[name]; ok {
			s.observed[k].Connected = false
		}
	}
	if s.in.OfflinePercent == 0 {
		return
	}
	var order []int
	for i := range s.observed {
		if s.observed[i].Connected {
			order = append(order, i)
		}
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := s.plan.Members[a].Cluster, s.plan.Members[b].Cluster
		return cmp.Or(cmp.Compare(s.draw("offline", x), s.draw("offline", y)), cmp.Compare(x, y))
	})
	n := max(len(s.observed)*s.in.OfflinePercent/100, 1)
	for _, i := range order[:min(n, len(order))] {
		s.observed[i].Connected = false
	}
}

// known refuses hypotheses about clusters and gates that are not there: a misspelt name would say that all is well.
func (s *sim) known() error {
	index := make(map[fleet.ClusterName]bool, len(s.plan.Members))
	for _, m := range s.plan.Members {
		index[m.Cluster] = true
	}
	for _, list := range []struct {
		path  string
		names []fleet.ClusterName
	}{{"fail", s.in.Fail}, {"offline", s.in.Offline}} {
		for _, name := range list.names {
			if !index[name] {
				return fleet.Invalidf(list.path, "cluster %s is not in the rollout", name)
			}
		}
	}
	for key := range s.in.Gates {
		if !slices.ContainsFunc(s.state.Gates, func(g GateHead) bool { return s.gateKey(&g) == key }) {
			return fleet.Invalidf("gates", "%q is no gate of the rollout; write STAGE/before/NAME or STAGE/after/NAME", key)
		}
	}
	return nil
}

func (s *sim) gateKey(g *GateHead) string {
	return s.plan.Stages[g.Stage].Name + "/" + string(g.Position) + "/" + g.Name
}

// draw is a number that depends on the seed, the purpose and the name alone.
func (s *sim) draw(what string, name fleet.ClusterName) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%s/%s", s.in.Seed, what, name)
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

func (s *sim) applyTime(name fleet.ClusterName) time.Duration {
	span := uint64((s.in.ApplyMax-s.in.ApplyMin)/time.Second) + 1
	return s.in.ApplyMin + time.Duration(s.draw("apply", name)%span)*time.Second
}

func (s *sim) run() {
	for {
		d := s.decide()
		if len(d.Assign) > 0 {
			continue
		}
		next, ok := s.next(d)
		if s.state.State.Ended() || !ok || next.Sub(s.in.Start) > s.in.Limit {
			break
		}
		s.now = next
		s.happen()
	}
	s.out.State, s.out.Reason, s.out.Facts = s.state.State, s.state.Reason, s.state.Facts
	s.out.Stuck = !s.state.State.Ended()
	s.out.Duration = s.now.Sub(s.in.Start)
	s.out.Summary = Summarize(s.input())
}

func (s *sim) input() Input {
	return Input{Now: s.now, Plan: s.plan, State: s.state, Observed: s.observed, Verbs: s.verbs, Results: s.results, Confirmed: s.confirm, Older: s.plan.From}
}

func (s *sim) decide() Decision {
	d := Decide(s.input())
	s.out.Decisions++
	s.verbs, s.results = nil, nil
	if len(d.Assign) > 0 {
		s.gen++
		d.State.Stamp(d.Assign, s.gen)
		s.out.Steps++
	}
	s.state = d.State
	s.tell(d)
	for _, a := range d.Assign {
		s.deliver(a)
	}
	if s.notReady > s.out.MaxNotReady {
		s.out.MaxNotReady, s.out.MaxNotReadyAt = s.notReady, s.now.Sub(s.in.Start)
	}
	s.ask(d)
	for _, h := range d.Holds {
		s.confirm = append(s.confirm, h.Digest)
		s.event(SimEvent{Subject: About{Kind: AboutRollout}, Reason: SimConfirmed, Facts: &Facts{Count: len(h.Items)}})
	}
	return d
}

func (s *sim) deliver(a Assign) {
	o := &s.observed[a.Member]
	if o.Ready || o.Revision == 0 {
		s.notReady++
	}
	o.Revision, o.Generation, o.Ready, o.Well, o.Failed, o.Removed = a.Revision, s.gen, false, false, false, false
	if !o.Held {
		s.apply(a.Member)
	}
}

// apply lets a member that is there become what it was given last, after its time.
func (s *sim) apply(member int32) {
	if o := &s.observed[member]; o.Connected {
		heap.Push(&s.due, due{at: s.now.Add(s.applyTime(s.plan.Members[member].Cluster)), member: member, generation: o.Generation})
	}
}

// holdEnds is when the next hold ends that does.
func (s *sim) holdEnds() (at time.Time) {
	for i := range s.observed {
		if s.observed[i].Held {
			at = earlier(at, s.in.Held[s.plan.Members[i].Cluster])
		}
	}
	return at
}

// release ends the holds that end now.
func (s *sim) release() {
	if at := s.holdEnds(); at.IsZero() || at.After(s.now) {
		return
	}
	for i := range s.observed {
		o, until := &s.observed[i], s.in.Held[s.plan.Members[i].Cluster]
		if !o.Held || until.IsZero() || until.After(s.now) {
			continue
		}
		o.Held = false
		if o.Generation != 0 && !o.Ready && !o.Failed && !o.Removed {
			s.apply(int32(i))
		}
	}
}

// next is when something happens.
func (s *sim) next(d Decision) (time.Time, bool) {
	var t time.Time
	if len(s.due) > 0 {
		t = s.due[0].at
	}
	for _, a := range s.answers {
		t = earlier(t, a.at)
	}
	if s.state.State != Paused && len(s.confirm) > 0 && d.Holds != nil {
		t = earlier(t, s.now)
	}
	t = earlier(t, s.holdEnds())
	if w := d.WakeAt; !w.IsZero() && !s.pointless(d) {
		t = earlier(t, w)
	}
	return t, !t.IsZero()
}

// pointless: a check that is open is answered here, so its own time says nothing.
func (s *sim) pointless(d Decision) bool {
	return slices.ContainsFunc(d.Checks, func(c Check) bool { return c.NotBefore.Equal(d.WakeAt) })
}

// happen lets everything happen that is due now.
func (s *sim) happen() {
	s.release()
	for len(s.due) > 0 && !s.due[0].at.After(s.now) {
		x, _ := heap.Pop(&s.due).(due)
		o := &s.observed[x.member]
		if o.Generation != x.generation {
			continue
		}
		switch {
		case o.Revision == 0:
			o.Removed = true
			s.notReady--
		case s.fails[x.member] && o.Revision == s.plan.Revision:
			o.Failed, o.Reason = true, SimFails
		default:
			o.Ready, o.Well = true, true
			s.notReady--
		}
	}
	s.answers = slices.DeleteFunc(s.answers, func(a answer) bool {
		if a.at.After(s.now) {
			return false
		}
		if a.verb != nil {
			s.verbs = append(s.verbs, *a.verb)
		} else {
			s.results = append(s.results, *a.result)
		}
		return true
	})
}

// ask lets checks and approvals that wait be answered after GateTime.
func (s *sim) ask(d Decision) {
	for _, c := range d.Checks {
		name := s.plan.Stages[c.Stage].Name + "/" + string(c.Position) + "/" + c.Gate
		key := fmt.Sprintf("%s#%d", name, c.Number)
		if s.asked[key] {
			continue
		}
		s.asked[key] = true
		at := c.NotBefore
		if at.Before(s.now) {
			at = s.now
		}
		at = at.Add(s.in.GateTime)
		s.answers = append(s.answers, answer{at: at, result: &GateResult{Stage: c.Stage, Position: c.Position, Gate: c.Gate, Number: c.Number,
			At: at, Outcome: s.outcome(name)}})
	}
	for i := range s.state.Gates {
		g := &s.state.Gates[i]
		if spec := s.plan.gateSpec(g); spec.Approval != nil && g.State == GateRunning && !s.asked[s.gateKey(g)] {
			s.asked[s.gateKey(g)] = true
			s.approve(g, spec.Approval)
		}
	}
}

func (s *sim) outcome(key string) GateState {
	if o, ok := s.in.Gates[key]; ok {
		return o
	}
	return GateSuccessful
}

func (s *sim) approve(g *GateHead, spec *Approval) {
	v := Verb{Verb: VerbApprove, Stage: s.plan.Stages[g.Stage].Name, Gate: g.Name, At: s.now.Add(s.in.GateTime), Why: "simulated", Revision: s.plan.Revision}
	outcome := s.outcome(s.gateKey(g))
	if outcome == GatePending || outcome == GateRunning {
		return // nobody answers
	}
	n := spec.Approvers
	if outcome != GateSuccessful {
		v.Verb, n = VerbReject, 1
	}
	for i := range n {
		v.ID, v.By = fmt.Sprintf("%s#%d", s.gateKey(g), i), fmt.Sprintf("approver-%d", i+1)
		if len(spec.Users) > i {
			v.By = spec.Users[i]
		}
		given := v
		s.answers = append(s.answers, answer{at: v.At, verb: &given})
	}
}

// Codes of a simulation.
const (
	SimConfirmed = "TakenAsConfirmed"
	SimFails     = "Simulated"
	SimAssign    = "Assign"
	SimTake      = "TakeAway"
)

func (s *sim) event(e SimEvent) {
	e.At = s.now.Sub(s.in.Start)
	s.out.Events = append(s.out.Events, e)
}

// tell writes a decision into the timeline.
func (s *sim) tell(d Decision) {
	groups := map[string]*SimEvent{}
	var order []*SimEvent
	for _, m := range d.Moves {
		e := SimEvent{From: m.From, To: m.To, Reason: m.Reason, Facts: m.Facts}
		switch m.Kind {
		case OfRollout:
			e.Subject = About{Kind: AboutRollout}
		case OfStage:
			e.Subject = About{Kind: AboutStage, Name: s.plan.Stages[m.Stage].Name}
		case OfGate:
			e.Subject = About{Kind: AboutGate, Name: m.Gate, Stage: s.plan.Stages[m.Stage].Name, Position: m.Position}
		case OfCluster:
			if !telling(m.To) {
				continue
			}
			e.Subject = About{Kind: AboutClusters}
			key := m.From + " " + m.To + " " + m.Reason + " " + m.Facts.String()
			if groups[key] == nil {
				groups[key] = &e
				order = append(order, &e)
			}
			groups[key].Clusters = append(groups[key].Clusters, s.plan.Members[m.Member].Cluster)
			continue
		}
		s.event(e)
	}
	for _, e := range order {
		s.event(*e)
	}
	s.tellStep(d)
}

func telling(to string) bool {
	switch to {
	case ClusterFailed.String(), ClusterTimedOut.String(), ClusterDeferred.String():
		return true
	}
	return false
}

func (s *sim) tellStep(d Decision) {
	for from := 0; from < len(d.Assign); {
		to := from
		for to < len(d.Assign) && d.Assign[to].Revision == d.Assign[from].Revision && d.Assign[to].Leave == d.Assign[from].Leave {
			to++
		}
		who := make([]fleet.ClusterName, 0, to-from)
		for _, a := range d.Assign[from:to] {
			who = append(who, s.plan.Members[a.Member].Cluster)
		}
		e := SimEvent{Subject: About{Kind: AboutStep, Name: strconv.Itoa(int(d.State.Step))}, Reason: SimAssign, Clusters: who,
			Facts: &Facts{Count: len(who), Revision: d.Assign[from].Revision}}
		if d.Assign[from].Leave {
			e.Reason = SimTake
		}
		s.event(e)
		from = to
	}
}

// dueList is a heap by time, then member.
type dueList []due

func (l dueList) Len() int { return len(l) }
func (l dueList) Less(i, j int) bool {
	if l[i].at.Equal(l[j].at) {
		return l[i].member < l[j].member
	}
	return l[i].at.Before(l[j].at)
}
func (l dueList) Swap(i, j int) { l[i], l[j] = l[j], l[i] }

// Push and Pop are for container/heap.
func (l *dueList) Push(x any) {
	if d, ok := x.(due); ok {
		*l = append(*l, d)
	}
}

// Pop takes the last.
func (l *dueList) Pop() any {
	old := *l
	x := old[len(old)-1]
	*l = old[:len(old)-1]
	return x
}
