package hub_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// patience is for how long the hub may say what is not so while nobody does anything.
const patience = 3 * time.Second

// ask looks whether what the hub says is what the agents have, as the fleet is left: with rollouts that wait, have failed or were taken
// back. What is under way comes to its end meanwhile.
func (c *chaos) ask() {
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if i%10 == 5 {
			for _, b := range c.boxes { // what began while an agent was down is not said by itself
				_ = b.agent.Again()
			}
		}
		untrue := c.untrue()
		switch {
		case untrue == "":
			return
		case time.Now().After(deadline):
			c.found = append(c.found, "it is said and not so: "+untrue+c.standing())
			return
		}
		<-tick.C
	}
}

// there reports that the agent of a cluster has what the hub gave it.
func (c *chaos) there(cluster string) bool {
	return c.up[cluster] && !c.now().clusters[cluster].gone
}

// untrue is what is said and is not so; empty: nothing is.
func (c *chaos) untrue() string {
	holds, err := c.Modules.ListHolds(c.ctx, &towlinev1.ListHoldsRequest{})
	must(c.t, err)
	for name, w := range c.now().modules {
		got, err := c.rollout(name)
		if err != nil {
			return name + ": " + err.Error()
		}
		ro := got.GetRollout()
		if wrong := c.untrueOf(name, w, ro, holds.GetHolds()); wrong != "" {
			return ro.GetId() + ": " + wrong
		}
	}
	return cmp.Or(c.untrueTrackers(), c.untrueSums())
}

func (c *chaos) untrueOf(name string, w want, ro *towlinev1.Rollout, holds []*towlinev1.Hold) string {
	s := ro.GetStatus()
	states := map[string]string{}
	for _, x := range s.GetClusters() {
		states[x.GetCluster()] = x.GetState()
		held := c.boxes[x.GetCluster()].agent.Held()
		if !c.there(x.GetCluster()) || goes(held, name) || c.now().clusters[x.GetCluster()].unlabelled {
			continue
		}
		if has := syncNamed(held, name); has.Revision != x.GetRevision() && !c.withheld(name, x.GetCluster()) {
			return fmt.Sprintf("%s is said to have r%d, and has r%d", x.GetCluster(), x.GetRevision(), has.Revision)
		}
	}
	switch s.GetState() {
	case "Succeeded":
		if w.external {
			return ""
		}
		for _, cluster := range clusters {
			if wrong := c.unfinished(name, w, cluster, states[cluster], s.GetWaitingFor(), holds); wrong != "" {
				return wrong
			}
		}
	case "Pending":
		return c.untrueWait(ro)
	case "Progressing", "Waiting", "Paused", "RollingBack":
		if !slices.ContainsFunc(s.GetWaitingFor(), helps) {
			return fmt.Sprintf("%s, and nobody is told for what: %v", s.GetState(), s.GetWaitingFor())
		}
	}
	return ""
}

// withheld reports that a cluster is said not to be given what it could not have and could have now, since a newer word came first.
func (c *chaos) withheld(name, cluster string) bool {
	return slices.ContainsFunc(c.trackers(&towlinev1.ObjectFilter{Cluster: cluster}), func(t *towlinev1.Tracker) bool {
		ref := fleet.ModuleRef{Project: t.GetProject(), Name: t.GetModule()}
		return ref.Display() == name && t.GetReason() == fleet.TrackerCannotAssign && strings.Contains(t.GetMessage(), "could be assigned now, and is not: ")
	})
}

// helps reports that a reason, or a cause of it, says what to do, until when it lasts, or whom it is about.
func helps(r *towlinev1.Reason) bool {
	return len(r.GetActions()) > 0 || r.GetUntil() != nil || r.GetSubject().GetKind() == "Cluster" || slices.ContainsFunc(r.GetCauses(), helps)
}

// unfinished: who is not as a rollout would have it that has succeeded is named with a reason.
func (c *chaos) unfinished(name string, w want, cluster, state string, reasons []*towlinev1.Reason, holds []*towlinev1.Hold) string {
	p := c.now().clusters[cluster]
	held := c.boxes[cluster].agent.Held()
	frozen := slices.ContainsFunc(holds, func(h *towlinev1.Hold) bool {
		return h.GetKind() == "Freeze" && (h.GetCluster() == "" || h.GetCluster() == cluster) && (h.GetModule() == "" || fleet.ModuleRef{Project: h.GetProject(), Name: h.GetModule()}.Display() == name)
	})
	if !c.there(cluster) || p.cordoned || p.tainted || p.unlabelled || frozen || goes(held, name) || slices.ContainsFunc(reasons, func(r *towlinev1.Reason) bool { return about(r, cluster) }) {
		return ""
	}
	has := syncNamed(held, name)
	lists := ""
	if has.Generation != 0 {
		lists = strings.Join(c.listed(has.Bundle), "")
	}
	wants := ""
	if c.now().takes(w, cluster) {
		wants = w.objects
	}
	if lists == wants {
		return ""
	}
	return fmt.Sprintf("succeeded, and %s has %q, wanted %q: %s, %v", cluster, lists, wants, state, reasons)
}

// about reports that a reason, or a cause of it, is about a cluster.
func about(r *towlinev1.Reason, cluster string) bool {
	return r.GetSubject().GetKind() == "Cluster" && r.GetSubject().GetName() == cluster || slices.ContainsFunc(r.GetCauses(), func(x *towlinev1.Reason) bool { return about(x, cluster) })
}

func syncNamed(a fleet.Assemblage, name string) fleet.Sync {
	if i := slices.IndexFunc(a.Syncs, func(s fleet.Sync) bool { return s.Module.Display() == name }); i >= 0 {
		return a.Syncs[i]
	}
	return fleet.Sync{}
}

func goes(a fleet.Assemblage, name string) bool {
	return slices.ContainsFunc(a.Tombstones, func(t fleet.Tombstone) bool { return t.Module.Display() == name })
}

// untrueTrackers: what is listed is what the agents have.
func (c *chaos) untrueTrackers() string {
	listed, ready := map[string]map[string]uint64{}, map[string]bool{}
	for _, t := range c.trackers(nil) {
		if listed[t.GetCluster()] == nil {
			listed[t.GetCluster()] = map[string]uint64{}
		}
		name := fleet.ModuleRef{Project: t.GetProject(), Name: t.GetModule()}.Display()
		listed[t.GetCluster()][name], ready[t.GetCluster()+" "+name] = t.GetGeneration(), t.GetReady()
		if (t.GetReady() || t.GetHealth() == "Healthy") && !c.up[t.GetCluster()] {
			return fmt.Sprintf("%s in %s is away, and %s", name, t.GetCluster(), t.GetHealth())
		}
	}
	for _, cluster := range clusters {
		if !c.there(cluster) || c.now().clusters[cluster].unlabelled {
			continue
		}
		held := c.boxes[cluster].agent.Held()
		for _, s := range held.Syncs {
			if wrong := c.boxes[cluster].unready(s); wrong != "" && ready[cluster+" "+s.Module.Display()] {
				return fmt.Sprintf("%s in %s is said to be ready, and %s", s.Module.Display(), cluster, wrong)
			}
			if got := listed[cluster][s.Module.Display()]; got != s.Generation {
				return fmt.Sprintf("%s in %s is listed with generation %d, and is at %d", s.Module.Display(), cluster, got, s.Generation)
			}
		}
		for name := range listed[cluster] {
			if syncNamed(held, name).Generation == 0 && !goes(held, name) {
				return fmt.Sprintf("%s is listed in %s, and is not there", name, cluster)
			}
		}
	}
	return ""
}
