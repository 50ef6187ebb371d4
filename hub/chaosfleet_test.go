package hub_test

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// expel takes a cluster out of the fleet without its agent, which leaves everything there behind.
func (c *chaos) expel(cluster string) {
	p := c.now().clusters[cluster]
	if p.gone {
		return
	}
	p.gone = true
	c.wish(func(x *wish) { x.clusters[cluster] = p })
	_, err := c.Clusters.RemoveCluster(c.ctx, &towlinev1.RemoveClusterRequest{Name: cluster, Force: true})
	c.note("%s is no cluster of the fleet: %v", cluster, err)
	must(c.t, err)
	if c.up[cluster] {
		c.stops[cluster]()
	}
	c.up[cluster] = false
	c.boxes[cluster].forget()
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
	}
	p = place{zone: p.zone}
	c.wish(func(x *wish) { x.clusters[cluster] = p })
	c.note("%s joins again", cluster)
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
	b.held, b.told, b.slow = fleet.Assemblage{}, "", false
}
