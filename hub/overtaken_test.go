package hub_test

import (
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
)

// Two agents of one cluster, as a Deployment of two has them, are at one hub or at two, and the one that has the session is cut off from
// the API server and not from its hub: the other one has the Lease by then, and is heard. What is cut off does not get the session back,
// also where the other one does not see the cluster any more either.
func TestAgentThatSeesTheClusterTakesTheSession(t *testing.T) {
	unseen := fleet.Condition{Type: fleet.ConditionAPIServerReachable, Status: fleet.ConditionFalse, Reason: "NoAnswer",
		Message: "the API server does not answer in time", Since: time.Now()}
	for name, worlds := range map[string]func(*testing.T) (one, other *world){
		"at one hub": func(t *testing.T) (*world, *world) {
			w := newWorld(t, true)
			return w, w
		},
		"at two hubs": func(t *testing.T) (*world, *world) {
			leader, follower, _ := two(t)
			return follower, leader
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, at := worlds(t)
			w.join("a", nil, nil)
			at.awaitCluster("a", "Ready")
			first, id := w.agents["a"], w.ids["a"]
			must(t, first.Tell(unseen))
			at.eventually(func() bool { return len(at.cluster("a").GetStatus().GetConditions()) > 0 })
			at.ids["a"] = id
			second := at.newAgent("a", simagent.Options{Reconnect: 20 * time.Millisecond})
			stop := at.run(second)
			defer stop()
			at.eventually(func() bool { return second.Sessions.Load() > 0 })
			at.await("shop", at.put(module("shop", configMap("1"))).GetRevision())
			if at != w {
				return // a hub that is slow to keep its lease alive loses its sessions
			}
			sessions := first.Sessions.Load()
			must(t, second.Tell(unseen))
			tries := first.Tries.Load()
			w.eventually(func() bool { return first.Tries.Load() > tries+3 })
			if now := first.Sessions.Load(); now != sessions || second.Sessions.Load() != 1 {
				t.Errorf("they take turns: the first one had %d sessions more, the second one %d", now-sessions, second.Sessions.Load())
			}
			// It has seen the cluster again as the same instance: what has the session is in a copy of the cluster.
			must(t, second.Tell())
			must(t, first.Tell())
			w.eventually(func() bool { return first.Sessions.Load() > sessions })
			tries = second.Tries.Load()
			w.eventually(func() bool { return second.Tries.Load() > tries+3 })
			if now := first.Sessions.Load(); now != sessions+1 || second.Sessions.Load() != 1 {
				t.Errorf("they take turns: the first one had %d sessions more, the second one %d", now-sessions, second.Sessions.Load())
			}
		})
	}
}
