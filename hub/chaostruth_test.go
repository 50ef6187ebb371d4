package hub_test

import (
	"fmt"
	"slices"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// unready is why the agent does not say of a sync that it is ready; empty: it does.
func (b *box) unready(s fleet.Sync) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case s.Hold || b.held.Hold:
		return "it is held"
	case b.fails(b.name, s.Module, s.Revision):
		return "it fails"
	case b.slow:
		return "it is being applied"
	}
	return ""
}

// untrueWait: a put waits for the end of the rollout that is named, or for its source, which takes half a second at most.
func (c *chaos) untrueWait(ro *towlinev1.Rollout) string {
	s := ro.GetStatus()
	all, err := c.Rollouts.ListRollouts(c.ctx, &towlinev1.ListRolloutsRequest{Project: ro.GetMetadata().GetProject(), Module: ro.GetModule()})
	must(c.t, err)
	first := slices.ContainsFunc(all.GetRollouts(), func(x *towlinev1.Rollout) bool {
		return x.GetId() == s.GetFacts().GetRollout() && x.GetRevision() != 0 && x.GetStatus().GetEnded() == nil
	})
	if s.GetReason() != "Queued" || !first {
		return fmt.Sprintf("%s %s", s.GetReason(), s.GetFacts())
	}
	return ""
}

// untrueSums: what is counted is what is listed.
func (c *chaos) untrueSums() string {
	type sums struct{ clusters, healthy, objects int32 }
	listed, at := map[string]*sums{}, map[string]*sums{}
	for _, t := range c.trackers(nil) {
		name := fleet.ModuleRef{Project: t.GetProject(), Name: t.GetModule()}.Display()
		if listed[name] == nil {
			listed[name] = &sums{}
		}
		if at[t.GetCluster()] == nil {
			at[t.GetCluster()] = &sums{}
		}
		for _, x := range []*sums{listed[name], at[t.GetCluster()]} {
			x.clusters++
			x.objects += t.GetObjects()
			if t.GetReady() {
				x.healthy++
			}
		}
	}
	got, err := c.Modules.ListModules(c.ctx, &towlinev1.ListModulesRequest{})
	must(c.t, err)
	for _, m := range got.GetModules() {
		s, name := m.GetStatus(), fleet.ModuleRef{Project: m.GetMetadata().GetProject(), Name: m.GetMetadata().GetName()}.Display()
		if s.GetHealthy()+s.GetProgressing()+s.GetBad()+s.GetAway() != s.GetClusters() {
			return fmt.Sprintf("%s: counts do not add up: %v", name, s)
		}
		x := listed[name]
		if x == nil {
			x = &sums{}
		}
		// A hold takes nothing from who is healthy, and is not ready.
		if s.GetHealthy() < x.healthy || s.GetClusters() < x.clusters || s.GetObjects() != x.objects {
			return fmt.Sprintf("%s: %v, listed %+v", name, s, *x)
		}
		if s.GetConditions()[0].GetStatus() == "True" && (s.GetBad() > 0 || s.GetRolloutState() != "Succeeded" || s.GetProgressing() > s.GetUnassigned() || s.GetHealthy() == 0 && s.GetAway() > 0) {
			return fmt.Sprintf("%s is Ready: %v", name, s)
		}
	}
	all, err := c.Clusters.ListClusters(c.ctx, &towlinev1.ListClustersRequest{})
	must(c.t, err)
	for _, k := range all.GetClusters() {
		x, s := at[k.GetMetadata().GetName()], k.GetStatus()
		if x == nil {
			x = &sums{}
		}
		if s.GetModules() != x.clusters || s.GetHealthy() < x.healthy {
			return fmt.Sprintf("%s: %v, listed %+v", k.GetMetadata().GetName(), s, *x)
		}
		known := !slices.Contains([]string{"Removing", "Unregistered"}, s.GetState())
		if up := c.up[k.GetMetadata().GetName()]; known && up != slices.Contains([]string{"Ready", "Cordoned"}, s.GetState()) {
			return fmt.Sprintf("%s is up %v, and said to be %s", k.GetMetadata().GetName(), up, s.GetState())
		}
	}
	return ""
}
