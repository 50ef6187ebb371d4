package rollout

import (
	"reflect"
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// Reasons of clusters that wait for modules in others.
const (
	ReasonAwaitingDependency = "AwaitingDependency"
	ReasonMoreAwaited        = "MoreAwaited" // clusters, of that module
	// ReasonDependentsFirst: a deleted module stays in some clusters until others that depend on it there are gone everywhere.
	ReasonDependentsFirst = "DependentsFirst"
)

// AwaitedSet is a set of clusters in which another module is not ready yet, and has to be before a cluster begins a revision. Like Facts it
// is never changed once it is made.
type AwaitedSet struct {
	// Module is the other one's name, Selector the labels of the clusters; empty: all that the module is placed in.
	Module   string `json:"module"`
	Selector string `json:"selector,omitempty"`
	// Code says why nobody can say of its clusters how it stands, one of the constants below; empty: some are not ready.
	Code string `json:"code,omitempty"`
	// Total is in how many clusters of the set the module is placed, Waiting in how many of these it is not ready.
	Total   int `json:"total,omitempty"`
	Waiting int `json:"waiting,omitempty"`
	// Clusters are the first few of those that are not ready.
	Clusters []AwaitedCluster `json:"clusters,omitempty"`
}

// Why nobody can say of the clusters of a set how a module stands there.
const (
	SetNoModule  = "NoSuchModule"
	SetDeleting  = "BeingDeleted"
	SetSource    = "SourceAhead"   // it was put, and has no revision yet
	SetFailed    = "RolloutFailed" // that of its newest revision, before it came anywhere
	SetDamaged   = "DamagedRecord"
	SetNoCluster = "NoCluster" // that the selector matches
	SetNotPlaced = "NotPlaced" // in any of those
)

// AwaitedCluster is a cluster in which a module is waited for.
type AwaitedCluster struct {
	Cluster string `json:"cluster"`
	// Reason is that of its tracker there, or ReasonDisconnected, ReasonNotReached and the like.
	Reason string `json:"reason"`
	// Revision is the one that it is to have there; 0: it has it.
	Revision int64   `json:"revision,omitempty"`
	Since    Instant `json:"since,omitempty"`
	Detail   string  `json:"detail,omitempty"`
}

// Awaits are the sets for which clusters of a rollout wait.
type Awaits struct {
	Since Instant      `json:"since,omitempty"`
	Sets  []AwaitedSet `json:"sets"`
}

// Standing is how a module stands in a cluster of a set.
type Standing struct {
	Cluster fleet.ClusterName
	// Placed says that the module is there, or is to come.
	Placed bool
	// Wants is the revision to which its rollouts lead it there; 0: it keeps what it has. Revision is what it is assigned; 0: nothing.
	Wants, Revision int64
	// Ready says that it is applied and healthy at what it is assigned, as far as the cluster is seen.
	Ready bool
	// Reason, Since and Detail say why it is not.
	Reason string
	Since  Instant
	Detail string
}

// maxAwaited is how many clusters of a set are named.
const maxAwaited = 5

// AwaitSet judges a module in a set of clusters: ready only in all in which it is placed, each at the revision to which it is led there, and
// only if there are any. matched is how many clusters of the fleet the selector matches. Nil: nothing is waited for.
func AwaitSet(module, selector string, matched int, all []Standing) *AwaitedSet {
	out := AwaitedSet{Module: module, Selector: selector}
	for i := range all {
		s := &all[i]
		if !s.Placed {
			continue
		}
		out.Total++
		if there := s.Wants == 0 || s.Revision == s.Wants; s.Ready && there && s.Revision != 0 {
			continue
		}
		if out.Waiting++; len(out.Clusters) < maxAwaited {
			out.Clusters = append(out.Clusters, s.awaited())
		}
	}
	switch {
	case matched == 0:
		out.Code = SetNoCluster
	case out.Total == 0:
		out.Code = SetNotPlaced
	case out.Waiting == 0:
		return nil
	}
	return &out
}

// awaited says why a cluster is waited for: that it is away says more than that its turn has not come.
func (s *Standing) awaited() AwaitedCluster {
	c := AwaitedCluster{Cluster: string(s.Cluster), Reason: s.Reason, Since: s.Since, Detail: clip(s.Detail)}
	if s.Revision != s.Wants {
		c.Revision = s.Wants
	}
	switch {
	case isAway(s.Reason), s.Reason == ReasonNotHeard, s.Reason == ReasonCordoned, s.Reason == ReasonHeld:
	case c.Revision != 0:
		c.Reason, c.Since, c.Detail = ReasonNotReached, 0, ""
	case c.Reason == "":
		c.Reason = ReasonNotReady
	}
	return c
}

// facts are those of the first set, with the names of the modules of all.
func (a *Awaits) facts() *Facts {
	first := &a.Sets[0]
	f := Facts{Code: first.Code, Selector: first.Selector, Count: first.Waiting, Total: first.Total}
	for i := range a.Sets {
		if !slices.Contains(f.Names, a.Sets[i].Module) {
			f.Names = append(f.Names, a.Sets[i].Module)
		}
	}
	for i := range first.Clusters {
		f.Clusters = append(f.Clusters, first.Clusters[i].Cluster)
	}
	return &f
}

// awaits reports that a member may not begin a revision yet, because of modules in other clusters, or because its agent is about to tell
// what the cluster can do. What is begun goes on, whatever becomes of these: it is not asked again, also when it is assigned anew.
func (d *decider) awaits(o *Observed, revision int64) bool {
	untold := o.untold(d.now, revision)
	if untold {
		d.wake(o.Untold)
	}
	sets := d.in.Awaits[revision]
	if len(sets) == 0 || o.Revision == revision && !o.Without {
		return untold
	}
	if len(d.sets) == 0 {
		d.sets = sets
	}
	return true
}

// untold reports that the cluster waits for what its agent is about to tell, before it begins a revision.
func (o *Observed) untold(now Instant, revision int64) bool {
	return o.Untold > now && (o.Revision != revision || o.Without)
}

// waitsToBeTold reports that a member would be moved, if its agent was not about to tell what the cluster can do.
func (s *State) waitsToBeTold(in Input, i int) bool {
	if i >= len(in.Observed) {
		return false
	}
	r, o := s.record(i), &in.Observed[i]
	return r.State == ClusterToApply && r.flags&(flagLeave|flagPinned|flagBack) == 0 && obstacle(o) == "" && o.untold(At(in.Now), in.Plan.Revision) &&
		(r.has(flagLate|flagBaseline) || s.Stages[r.Stage].Started != 0 && !s.State.Ended())
}

// noteHeld notes for what members of a stage wait, whether there are slots for them or not.
func (d *decider) noteHeld(stage int16) {
	if len(d.in.Awaits[d.p.Revision]) == 0 {
		return
	}
	d.each(stage, func(i int, r *Record) bool {
		o := d.observed(i)
		return r.State != ClusterToApply || r.flags&(flagBaseline|flagLeave) != 0 || obstacle(o) != "" || !d.awaits(o, d.p.Revision)
	})
}

// settlesLater reports that a member which comes late waits for modules in other clusters.
func (d *decider) settlesLater(r *Record, o *Observed) bool {
	if len(d.in.Awaits) == 0 && o.Untold == 0 || r.has(flagLeave) {
		return false
	}
	want, _ := d.wanted(r.Stage, o)
	if d.keepsNew(r, o) {
		want = standsAt(r, o)
	}
	return want != 0 && d.awaits(o, want)
}

// noteAwaits keeps for whom clusters wait.
func (d *decider) noteAwaits() {
	switch old := d.s.Awaits; {
	case len(d.sets) == 0:
		if old != nil {
			d.s.Awaits = nil
			d.touch()
		}
	case old == nil:
		d.s.Awaits = &Awaits{Since: d.now, Sets: d.sets}
		d.touch()
	case !reflect.DeepEqual(old.Sets, d.sets):
		d.s.Awaits = &Awaits{Since: old.Since, Sets: d.sets}
		d.touch()
	}
}

// Begins are the revisions that a decision gives to clusters: what they wait for has to be known.
func (d *Decision) Begins() (revisions []int64) {
	for _, a := range d.Assign {
		if !a.Leave && !slices.Contains(revisions, a.Revision) {
			revisions = append(revisions, a.Revision)
		}
	}
	return revisions
}

// BeginsStage reports that a stage after the first begins, and gives clusters something, or takes it from them.
func (d *Decision) BeginsStage() bool {
	return len(d.Assign) > 0 && slices.ContainsFunc(d.Moves, func(m Transition) bool { return m.Kind == OfStage && m.Stage > 0 && m.To == string(StageProgressing) })
}

// waitsForSets reports that a member would be moved, if it did not wait for modules in other clusters.
func (s *State) waitsForSets(p *Plan, r *Record, o *Observed) bool {
	if s.Awaits == nil || r.State != ClusterToApply || r.flags&(flagLeave|flagPinned|flagBack) != 0 || o.Revision == p.Revision && !o.Without {
		return false
	}
	if s.State.Ended() {
		return r.has(flagLate)
	}
	return s.Stages[r.Stage].Started != 0 || r.has(flagBaseline)
}

// awaits explains for which modules in other clusters the rollout's clusters wait.
func (e *explainer) awaits() {
	if e.s.Awaits == nil {
		return
	}
	blocks := e.s.Reason == ReasonAwaitingDependency // else some wait, and others are on their way
	for i := range e.s.Awaits.Sets {
		set := &e.s.Awaits.Sets[i]
		one := Awaits{Sets: e.s.Awaits.Sets[i : i+1]}
		r := Reason{Subject: e.rollout(AboutRollout), Reason: ReasonAwaitingDependency, Facts: one.facts(), Since: e.s.Awaits.Since.Time(), Blocks: blocks}
		for _, c := range set.Clusters {
			f := Facts{Code: ReasonAwaitingDependency, Names: []string{set.Module}, Revision: c.Revision, Detail: c.Detail}
			r.Causes = append(r.Causes, Reason{Subject: aboutCluster(c.Cluster), Reason: c.Reason, Facts: &f, Since: c.Since.Time(), Blocks: blocks})
		}
		if more := set.Waiting - len(set.Clusters); more > 0 && len(set.Clusters) > 0 {
			r.Causes = append(r.Causes, Reason{Subject: About{Kind: AboutClusters}, Reason: ReasonMoreAwaited, Facts: &Facts{Count: more, Names: []string{set.Module}}})
		}
		e.add(r)
	}
}
