package hub_test

import (
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// expel takes a cluster out of the fleet without its agent, which leaves everything there behind.
func (c *chaos) expel(cluster string) {
	p := c.now().clusters[cluster]
	if p.gone {
		return
	}
	p.gone, c.backup = true, nil
	c.wish(func(x *wish) { x.clusters[cluster] = p })
	_, err := c.Clusters.RemoveCluster(c.ctx, &towlinev1.RemoveClusterRequest{Name: cluster, Force: true})
	c.note("%s is no cluster of the fleet: %v", cluster, err)
	c.mustGo(err)
	if c.up[cluster] {
		c.stops[cluster]()
	}
	c.up[cluster] = false
	c.boxes[cluster].forget()
}

// leave has a cluster leave the fleet by its agent, which deletes all that is a module's, or leaves it behind.
func (c *chaos) leave(cluster string) {
	p := c.now().clusters[cluster]
	if p.gone {
		return
	}
	objects := pickOf(c, []string{"keep", "delete"})
	p.gone, c.backup = true, nil
	c.wish(func(x *wish) { x.clusters[cluster] = p })
	_, err := c.Clusters.RemoveCluster(c.ctx, &towlinev1.RemoveClusterRequest{Name: cluster, Objects: objects})
	c.note("%s is to leave the fleet, %s: %v", cluster, objects, err)
	if errors.Is(err, fleet.ErrPrecondition) { // a module that is being deleted is to go there first
		p.gone = false
		c.wish(func(x *wish) { x.clusters[cluster] = p })
		return
	}
	c.mustGo(err)
}

// obeys has the agent of a cluster do as it is told that is to leave the fleet.
func (c *chaos) obeys(cluster string) {
	b := c.boxes[cluster]
	if !c.up[cluster] {
		c.up[cluster] = true
		c.stops[cluster] = c.run(b.agent)
	}
	c.confirm() // nothing goes where it is held
	if l := b.agent.Leave(); l != nil {
		b.leaveFleet(l)
		_ = b.agent.Again()
	}
}

// leaveFleet lets go of everything that is not held.
func (b *box) leaveFleet(l *agentv1.Leave) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leaving = l
	for o, m := range b.owner {
		switch {
		case !b.gone(m):
		case l.GetObjects() == "delete":
			delete(b.owner, o)
		default:
			b.owner[o] = fleet.ModuleRef{}
		}
	}
}

// gone reports that the module is let go because the cluster leaves the fleet.
func (b *box) gone(m fleet.ModuleRef) bool {
	return m != fleet.ModuleRef{} && b.leaving != nil && !b.leaving.GetHold() && !slices.Contains(b.leaving.GetHeld(), m.String())
}

// admit has a cluster join again that was expelled, with an agent that knows of nothing. As long as the hub forgets what it knew of
// the cluster it cannot.
func (c *chaos) admit(cluster string) {
	p := c.now().clusters[cluster]
	if !p.gone {
		return
	}
	for {
		got, err := c.Clusters.GetCluster(c.ctx, &towlinev1.GetClusterRequest{Name: cluster})
		if status.Code(err) == codes.NotFound || got.GetCluster().GetStatus().GetState() == "Unregistered" { // its agent asked to come in
			break
		}
		must(c.t, c.ctx.Err())
		if got.GetCluster().GetStatus().GetState() == "Removing" {
			c.obeys(cluster)
		}
	}
	if c.up[cluster] {
		c.stops[cluster]()
	}
	c.boxes[cluster].forget()
	p = place{zone: p.zone}
	c.wish(func(x *wish) { x.clusters[cluster] = p })
	c.note("%s joins again", cluster)
	c.backup = nil
	c.enroll(cluster, ringed(cluster, p))
	c.connectBox(c.boxes[cluster])
}

// forget leaves everything behind.
func (b *box) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for o := range b.owner {
		b.owner[o] = fleet.ModuleRef{}
	}
	b.held, b.told, b.slow, b.leaving = fleet.Assemblage{}, "", false, nil
}

// mustGo: whoever asks again after a kill may find that it is gone.
func (c *chaos) mustGo(err error) {
	if c.mortal == nil || status.Code(err) != codes.NotFound {
		must(c.t, err)
	}
}
