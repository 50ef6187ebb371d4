package rollout

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Plan is what is fixed when a rollout starts: its stages, their members in order, and the totals that percentages are
// of. Nobody changes a Plan.
type Plan struct {
	ID               fleet.RolloutID
	Revision         int64 // where clusters move to
	From             int64 // the last succeeded revision when it started; 0: none
	ModuleGeneration int64
	StartedBy, Why   string
	Strategy         Strategy // prepared
	// Stages are those of the strategy, and one for clusters that none of them takes, if there are such.
	Stages []PlanStage
	// Members in the order of stages, and in each stage in the order in which they move.
	Members []Member
	// Unmatched are clusters that no stage takes where the strategy refuses that.
	Unmatched []fleet.ClusterName
	// EmptyOverrides name overrides that match no cluster.
	EmptyOverrides []string
	// ConfirmLeave: the leavers of this plan wait for a person.
	ConfirmLeave bool
	// Assigned is how many clusters ran the module when the plan was made.
	Assigned int
}

// PlanStage is a stage with its frozen total.
type PlanStage struct {
	Stage
	Total int
}

// Member is a cluster of a plan.
type Member struct {
	Cluster fleet.ClusterName
	Stage   int16
	Leave   bool // the placement no longer selects it: its move is to lose the module
}

// Candidate is a cluster that the placement selects or that runs the module.
type Candidate struct {
	Cluster  fleet.Cluster
	Selected bool
	Revision int64 // assigned now; 0: nothing
	Last     bool  // as in Observed
	Without  bool  // as in Observed
	Lost     bool  // as in Observed: it has something
	// UnselectedOlder is as in Observed, with the placement of PlanInput.From for the older one. Only a simulation asks for it.
	UnselectedOlder bool
}

// Selected are the clusters that the placement selects.
func Selected(candidates []Candidate) (out []fleet.Cluster) {
	for _, c := range candidates {
		if c.Selected {
			out = append(out, c.Cluster)
		}
	}
	return out
}

// has reports that something is assigned.
func (c *Candidate) has() bool { return c.Revision != 0 || c.Lost }

// PlanInput is what a plan is made of.
type PlanInput struct {
	ID               fleet.RolloutID
	Revision, From   int64
	ModuleGeneration int64
	StartedBy, Why   string
	Clusters         []Candidate
	EmptyOverrides   []string
	// Pins carry over from the rollout before: State.Pins.
	Pins []Pin
	// MayHave may have the revision still, by a rollout before: MayStillHave.
	MayHave []fleet.ClusterName
	// AskedSince is since when clusters that were to leave waited for a person's confirm, by the rollout before: Head.HoldSince. Those that
	// are still to leave wait on, though this change alone would not ask.
	AskedSince Instant
}

// NewPlan fixes stages and members and makes the state that the rollout starts with. The strategy is prepared.
func NewPlan(strategy Strategy, in PlanInput) (*Plan, State, error) {
	strategy, err := strategy.Prepare()
	if err != nil {
		return nil, State{}, err
	}
	p := &Plan{ID: in.ID, Revision: in.Revision, From: in.From, ModuleGeneration: in.ModuleGeneration,
		StartedBy: in.StartedBy, Why: in.Why, Strategy: strategy, EmptyOverrides: slices.Clone(in.EmptyOverrides)}
	for i := range strategy.Stages {
		p.Stages = append(p.Stages, PlanStage{Stage: strategy.Stages[i]})
	}
	placed := p.place(in.Clusters)
	p.order(placed)
	p.guardLeavers(in.Clusters)
	s := newState(p, in.Pins)
	if slices.ContainsFunc(p.Members, func(m Member) bool { return m.Leave }) {
		s.HoldSince = in.AskedSince
	}
	mayHave := make(map[fleet.ClusterName]bool, len(in.MayHave))
	for _, name := range in.MayHave {
		mayHave[name] = true
	}
	for i := range p.Members {
		if mayHave[p.Members[i].Cluster] {
			s.record(i).flags |= flagMayHave
		}
	}
	return p, s, nil
}

// StageFor is the index of the stage that takes a cluster with these labels; -1 if none does. It is what
// Observed.Stage speaks of (plus one).
func (p *Plan) StageFor(labels map[string]string) int {
	for i := range p.Stages {
		if p.Stages[i].Name == UnmatchedStage && p.Strategy.Unmatched == UnmatchedFail {
			continue // it is of those that are to leave
		}
		if p.Stages[i].Selector == nil || p.Stages[i].Selector.Matches(labels) {
			return i
		}
	}
	return -1
}

// JoinsIn is the stage of a cluster that joins: the last one, if none takes it; -1: then it joins in none, by the strategy.
func (p *Plan) JoinsIn(labels map[string]string) int {
	stage := p.StageFor(labels)
	if stage < 0 && p.Strategy.Unmatched != UnmatchedFail {
		return len(p.Stages) - 1
	}
	return stage
}

type placed struct {
	cluster *fleet.Cluster
	stage   int
	leave   bool
}

func (p *Plan) place(clusters []Candidate) []placed {
	out := make([]placed, 0, len(clusters))
	declared := len(p.Stages)
	for i := range clusters {
		c := &clusters[i]
		if !c.Selected && !c.has() {
			continue
		}
		stage := -1
		for s := range declared {
			if sel := p.Stages[s].Selector; sel == nil || sel.Matches(c.Cluster.Labels) {
				stage = s
				break
			}
		}
		if stage < 0 && p.Strategy.Unmatched == UnmatchedFail && c.Selected {
			p.Unmatched = append(p.Unmatched, c.Cluster.Name)
			continue
		}
		if stage < 0 {
			stage = declared
		}
		out = append(out, placed{cluster: &c.Cluster, stage: stage, leave: !c.Selected})
		if c.has() && !c.Without {
			p.Assigned++
		}
	}
	slices.Sort(p.Unmatched)
	left := slices.ContainsFunc(out, func(x placed) bool { return x.stage == declared })
	if p.takesRest() || p.Strategy.Unmatched == UnmatchedFail && !left {
		return out
	}
	p.addUnmatched(declared)
	return out
}

// addUnmatched adds the stage of clusters that no stage takes; it moves as the last declared stage does.
func (p *Plan) addUnmatched(declared int) {
	p.Stages = append(p.Stages, PlanStage{Stage: Stage{Name: UnmatchedStage,
		MaxConcurrency: p.Stages[declared-1].MaxConcurrency, AllowEmpty: true}})
}

// takesRest reports that some stage has no selector, so that every cluster has a stage.
func (p *Plan) takesRest() bool {
	return slices.ContainsFunc(p.Stages, func(s PlanStage) bool { return s.Selector == nil })
}

func (p *Plan) order(list []placed) {
	slices.SortFunc(list, func(a, b placed) int {
		if c := cmp.Compare(a.stage, b.stage); c != 0 {
			return c
		}
		return compareClusters(p.Stages[a.stage].SortBy, a.cluster, b.cluster)
	})
	p.Members = make([]Member, len(list))
	for i, x := range list {
		p.Members[i] = Member{Cluster: x.cluster.Name, Stage: int16(x.stage), Leave: x.leave}
		p.Stages[x.stage].Total++
	}
}

func compareClusters(sortBy string, a, b *fleet.Cluster) int {
	key, descending := strings.CutPrefix(sortBy, "-")
	byName := strings.Compare(string(a.Name), string(b.Name))
	if key == "" || key == "name" {
		if descending {
			return -byName
		}
		return byName
	}
	av, aok := a.Labels[key]
	bv, bok := b.Labels[key]
	switch {
	case aok != bok && aok:
		return -1 // clusters without the label come last
	case aok != bok:
		return 1
	}
	c := compareValues(av, bv)
	if descending {
		c = -c
	}
	return cmp.Or(c, byName)
}

// compareValues compares numbers as numbers, and puts them before everything else.
func compareValues(a, b string) int {
	an, aerr := strconv.Atoi(a)
	bn, berr := strconv.Atoi(b)
	switch {
	case aerr == nil && berr == nil:
		return cmp.Compare(an, bn)
	case aerr == nil:
		return -1
	case berr == nil:
		return 1
	}
	return strings.Compare(a, b)
}

func (p *Plan) guardLeavers(clusters []Candidate) { p.ConfirmLeave = asksToLeave(clusters, p.Assigned) }

// AsksToLeave reports that a module leaves the clusters that are not selected any more only when a person has confirmed that: one of
// them would have nothing any more, or they are too many.
func AsksToLeave(clusters []Candidate) bool {
	assigned := 0
	for i := range clusters {
		if clusters[i].has() && !clusters[i].Without {
			assigned++
		}
	}
	return asksToLeave(clusters, assigned)
}

func asksToLeave(clusters []Candidate, assigned int) bool {
	leavers, last := 0, false
	for i := range clusters {
		if !clusters[i].Selected && clusters[i].has() {
			if !clusters[i].Without {
				leavers++
			}
			last = last || clusters[i].Last
		}
	}
	return last || tooMany(leavers, assigned)
}

// tooMany: more than half of the clusters that ran the module, and more than one.
func tooMany(leavers, assigned int) bool { return leavers > 1 && 2*leavers > assigned }
