package hub_test

import (
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// wrong says what is not as wanted; empty: everything is. An object that several modules want is any one's of them.
func (c *chaos) wrong() string {
	now := c.now()
	for _, cluster := range clusters {
		b := c.boxes[cluster]
		has := b.has()
		for _, o := range objects {
			wanted := slices.ContainsFunc(modules, func(m string) bool { return now.wants(m, cluster, o) })
			owner, there := has[o]
			if wanted != (there && owner != fleet.ModuleRef{}) && (wanted || there) {
				if !wanted && owner == (fleet.ModuleRef{}) {
					continue // left behind on purpose
				}
				return fmt.Sprintf("%s, wanted %v: %s", o, wanted, b)
			}
			if wanted && !now.wants(owner.Display(), cluster, o) {
				return fmt.Sprintf("%s is %s's: %s", o, owner.Display(), b)
			}
		}
		a := b.agent.Held()
		if len(a.Tombstones) > 0 {
			return "tombstones: " + b.String()
		}
		for _, s := range a.Syncs {
			if w, ok := now.modules[s.Module.Display()]; !ok || !now.takes(w, cluster) || strings.Join(b.names(s.Bundle), "") != w.objects {
				return "a sync of another time: " + b.String()
			}
		}
	}
	for name := range now.modules {
		got, err := c.rollout(name)
		if err != nil {
			return err.Error()
		}
		if s := got.GetRollout().GetStatus(); s.GetState() != "Succeeded" {
			return fmt.Sprintf("rollout %s: %s %s: %s", got.GetRollout().GetId(), s.GetState(), s.GetReason(), s.GetFacts())
		}
	}
	return c.lies(now)
}

// lies says what the hub says of a fleet that is as wanted, and is not so.
func (c *chaos) lies(now wish) string {
	places, objects := 0, 0
	for name, w := range now.modules {
		in := int32(0)
		for _, cluster := range clusters {
			if now.takes(w, cluster) {
				in++
			}
		}
		places, objects = places+int(in), objects+int(in)*len(w.objects)
		s := c.moduleOf(name).GetStatus()
		ready := s.GetConditions()[0].GetStatus() == "True" || in == 0
		if s.GetClusters() != in || s.GetHealthy() != in || s.GetUpdated() != in || s.GetObjects() != in*int32(len(w.objects)) || s.GetDrift() != 0 || s.GetRolledBack() || !ready {
			return fmt.Sprintf("module %s is in %d clusters: %v", name, in, s)
		}
	}
	for _, t := range c.trackers(nil) {
		if places--; !t.GetReady() || t.GetHealth() != "Healthy" {
			return fmt.Sprintf("tracker: %v", t)
		}
	}
	for _, o := range c.objects(nil) {
		if objects--; o.GetHealth() != "Healthy" || o.GetSync() != "Synced" {
			return fmt.Sprintf("object: %v", o)
		}
	}
	if places != 0 || objects != 0 {
		return fmt.Sprintf("%d modules in clusters and %d objects too few", places, objects)
	}
	return ""
}
