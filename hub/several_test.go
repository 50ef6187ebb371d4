package hub_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	hubv1 "towline.dev/towline/gen/towline/hub/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// beside is another hub on the etcd of the first, with the same CA.
func (w *world) beside(etcd string, change ...func(*hub.Options)) *world {
	return newWorldWith(w.t, func(o *hub.Options) {
		o.Memory, o.EtcdEndpoints, o.ShareEtcd, o.SeatTTL, o.CADir = false, []string{"unix:" + etcd}, true, time.Second, w.dir
		for _, fn := range change {
			fn(o)
		}
	})
}

// shared has a hub share its etcd.
func shared(o *hub.Options) { o.ShareEtcd = true }

// two are a hub that leads and one beside it, each with its own way to the etcd.
func two(t *testing.T) (leader, follower *world, ways [2]*line) {
	etcd := ownEtcd(t)
	ways = [2]*line{newLine(t, etcd), newLine(t, etcd)}
	leader = sharing(t, ways[0].socket, shared)
	leader.await("first", leader.put(module("first", map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first, namespace: default}\n"})).GetRevision())
	return leader, leader.beside(ways[1].socket), ways
}

// canaryFirst moves the canaries first, and stops at the first one that fails.
func canaryFirst(name, value string) *towlinev1.Module {
	m := module(name, configMap(value))
	m.Spec.Rollout = &towlinev1.RolloutStrategy{Stages: []*towlinev1.Stage{
		{Name: "canary", Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}}, {Name: "rest"}}}
	return m
}

// A rollout is stopped by a canary that fails, at whichever hub its agent is.
func TestCanaryThatFailsAtAnotherHubStopsTheRollout(t *testing.T) {
	leader, follower, _ := two(t)
	follower.join("a", simagent.Failing, map[string]string{"ring": "canary"})
	leader.join("b", nil, map[string]string{"ring": "canary"})
	leader.join("c", nil, nil)
	for _, w := range []*world{leader, follower} {
		for _, c := range []string{"a", "b", "c"} {
			w.awaitCluster(c, "Ready")
		}
	}
	put := follower.put(canaryFirst("shop", "1"))
	ro := leader.until("shop", put.GetRevision(), func(r *towlinev1.Rollout) bool {
		s := r.GetStatus()
		return s.GetFailed() > 0 || s.GetState() == "Succeeded"
	})
	if s := ro.GetStatus(); s.GetFailed() != 1 || s.GetDeferred() != 0 || s.GetState() == "Succeeded" {
		t.Fatalf("rollout: %v", s)
	}
	if n := len(leader.agents["c"].Held().Syncs); n > 1 { // the module that both hubs began with
		t.Error("the stage after the canaries has the module")
	}
	follower.eventually(func() bool { return follower.module("shop").GetStatus().GetHealthy() == 1 })
}

// A hub that is cut off from etcd, as one that died or was paused, takes the sessions of its agents along, and has them again when it is
// back.
func TestHubThatIsCutOffTakesItsSessionsAlong(t *testing.T) {
	leader, follower, ways := two(t)
	follower.join("a", nil, nil)
	leader.awaitCluster("a", "Ready")
	epoch := leader.cluster("a").GetStatus().GetEpoch()
	ways[1].Cut()
	leader.awaitCluster("a", "Disconnected")
	ways[1].Mend()
	leader.awaitCluster("a", "Ready")
	if now := leader.cluster("a").GetStatus().GetEpoch(); now != epoch {
		t.Errorf("the session was %d and is %d: the agent was made to connect again", epoch, now)
	}
	follower.stops["a"]()
	leader.awaitCluster("a", "Disconnected")
}

// When the hub that leads is cut off, another one goes on with its rollouts; and the first one, when it is back, follows and writes
// nothing more.
func TestAnotherHubLeadsWhenTheFirstIsCutOff(t *testing.T) {
	leader, follower, ways := two(t)
	follower.join("a", nil, nil)
	leader.awaitCluster("a", "Ready")
	ways[0].Cut()
	ro := follower.await("shop", follower.put(module("shop", configMap("1"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 {
		t.Fatalf("rollout: %v", s)
	}
	ways[0].Mend()
	ro = leader.await("shop", leader.put(module("shop", configMap("2"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 {
		t.Errorf("rollout that was put at the hub that came back: %v", s)
	}
	select {
	case err := <-leader.ended:
		t.Errorf("the hub that was cut off ended: %v", err)
		leader.stopHub = func() {}
	default:
	}
	for _, w := range []*world{leader, follower} {
		if r := w.cluster("a").GetStatus(); r.GetState() != "Ready" || r.GetAttention() != nil {
			t.Errorf("cluster a is %v", r)
		}
	}
}

// An agent goes from hub to hub with what it has: it is sent nothing again, and no hub takes its store for older than the agent.
func TestAgentGoesFromHubToHub(t *testing.T) {
	first, second, _ := two(t)
	first.join("a", nil, nil)
	first.await("shop", first.put(module("shop", configMap("1"))).GetRevision())
	agent := first.agents["a"]
	first.eventually(func() bool { return len(agent.Held().Syncs) == 2 }) // what the hubs began with may come to it after that
	indexes := agent.Indexes.Load()
	for _, w := range []*world{second, first, second} {
		first.stops["a"]()
		sessions := agent.Sessions.Load()
		agent.Dial(w.listen)
		first.stops["a"] = w.run(agent)
		w.eventually(func() bool { return agent.Sessions.Load() > sessions })
		for _, at := range []*world{first, second} {
			at.awaitCluster("a", "Ready")
		}
		w.awaitLook("a")
	}
	if s := first.cluster("a").GetStatus(); s.GetAttention() != nil {
		t.Errorf("it is said of the cluster: %v", s.GetAttention())
	}
	if n := agent.Indexes.Load(); n != indexes {
		t.Errorf("%d indexes were sent, want %d", n, indexes)
	}
	second.await("shop", second.put(module("shop", configMap("2"))).GetRevision())
}

// awaitLook returns when the session of a cluster has looked at what it should have, and the agent has what it was sent by that: the first
// look is in the round of the first question or before it, so that the second one goes after it.
func (w *world) awaitLook(cluster string) {
	w.t.Helper()
	for range 2 {
		w.eventually(func() bool {
			_, err := w.Trackers.GetLiveObject(w.ctx, &towlinev1.GetLiveObjectRequest{Cluster: cluster, Module: "shop",
				Object: &towlinev1.ObjectReference{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: "web"}})
			return err == nil
		})
	}
}

// A question to an agent goes to the hub that has its stream, whichever hub is asked.
func TestQuestionIsRelayedToTheHubWithTheStream(t *testing.T) {
	leader, follower, ways := two(t)
	asked, answer := make(chan struct{}, 1), make(chan struct{}, 1)
	follower.enroll("a", nil)
	follower.connectWith("a", simagent.Options{Answer: func(q *agentv1.Query) *agentv1.QueryResult {
		asked <- struct{}{}
		<-answer
		return &agentv1.QueryResult{Data: []byte(`{"kind":"ConfigMap"}`)}
	}})
	leader.join("b", nil, nil)
	leader.await("shop", leader.put(module("shop", configMap("1"))).GetRevision())
	live := func(w *world, cluster string) (*towlinev1.GetLiveObjectResponse, error) {
		return w.Trackers.GetLiveObject(w.ctx, &towlinev1.GetLiveObjectRequest{Cluster: cluster, Module: "shop",
			Object: &towlinev1.ObjectReference{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "default", Name: "web"}})
	}
	if got, err := live(follower, "b"); err != nil || !strings.Contains(got.GetJson(), "web") {
		t.Errorf("from the hub that does not lead: %v, %v", got, err)
	}
	answer <- struct{}{}
	if got, err := live(leader, "a"); err != nil || !strings.Contains(got.GetJson(), "ConfigMap") {
		t.Errorf("from the hub that leads: %v, %v", got, err)
	}
	<-asked
	go func() {
		<-asked // again
		ways[1].Cut()
	}()
	// The client asks again, by when the cluster is not connected any more.
	if _, err := live(leader, "a"); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("of a hub that went away: %v", err)
	}
	close(answer)
}

// What one hub asks another is for hubs only.
func TestRelayIsForHubsOnly(t *testing.T) {
	w := sharing(t, ownEtcd(t), shared)
	w.enroll("a", nil)
	for name, shown := range map[string]bool{"an agent": true, "nobody": false} {
		conn, err := w.ids["a"].Connect(w.listen, shown)
		must(t, err)
		_, err = hubv1.NewRelayServiceClient(conn).Ask(w.ctx, &hubv1.AskRequest{Cluster: "a", Query: &agentv1.Query{Type: wire.QueryGet}})
		if !errors.Is(err, fleet.ErrDenied) && !errors.Is(err, fleet.ErrUnknownUser) {
			t.Errorf("%s may ask agents of others: %v", name, err)
		}
		must(t, conn.Close())
	}
}

// Of two instances of an agent at two hubs the one that has the session keeps it.
func TestTwoInstancesAtTwoHubsDoNotTakeTurns(t *testing.T) {
	leader, follower, _ := two(t)
	follower.join("a", nil, nil)
	leader.awaitCluster("a", "Ready")
	epoch := leader.cluster("a").GetStatus().GetEpoch()
	leader.ids["a"] = follower.ids["a"]
	other := leader.newAgent("a", simagent.Options{Reconnect: 20 * time.Millisecond})
	stop := leader.run(other)
	leader.eventually(func() bool { return other.Tries.Load() > 20 })
	if n := other.Sessions.Load(); n != 0 {
		t.Errorf("the second instance had %d sessions", n)
	}
	if now := leader.cluster("a").GetStatus().GetEpoch(); now != epoch {
		t.Errorf("the session was %d and is %d", epoch, now)
	}
	follower.stops["a"]()
	leader.eventually(func() bool { return other.Sessions.Load() == 1 })
	stop()
}

// Agents are told of all hubs, by each of them and when they join.
func TestAgentsAreToldOfAllHubs(t *testing.T) {
	leader, follower, ways := two(t)
	told := func(w *world) []string {
		got, err := w.Identity.GetServerInfo(w.ctx, &towlinev1.GetServerInfoRequest{})
		must(t, err)
		return got.GetAgentAddresses()
	}
	for _, w := range []*world{leader, follower} {
		w.eventually(func() bool {
			all := told(w)
			return slices.Contains(all, leader.listen) && slices.Contains(all, follower.listen)
		})
	}
	join, err := leader.Clusters.JoinCluster(leader.ctx, &towlinev1.JoinClusterRequest{Name: "a"})
	must(t, err)
	if all := join.GetHubAddresses(); len(all) != 2 || all[0] != leader.listen {
		t.Errorf("who joins is told %v", all)
	}
	ways[1].Cut()
	leader.eventually(func() bool { return len(told(leader)) == 1 })
	ways[1].Mend()
}

// A batch of puts is one also at a hub that does not lead: what one module lets go is not deleted before it is known who has it.
func TestPutsOfABatchAtAHubThatDoesNotLead(t *testing.T) {
	leader, follower, _ := two(t)
	putsOfABatch(follower, 3, nil)
	leader.eventually(func() bool { return leader.module("two").GetStatus().GetHealthy() == 1 })
}

// A look at a source that is asked of a hub that does not lead is made by the one that does.
func TestResyncAtAHubThatDoesNotLead(t *testing.T) {
	_, follower, _ := two(t)
	follower.put(module("shop", configMap("1")))
	_, err := follower.Modules.ResyncModule(follower.ctx, &towlinev1.ResyncModuleRequest{Name: "shop", Reason: "test"})
	if errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("nobody looks: %v", err)
	}
}

// A hub with another CA would refuse the agents of the others.
func TestHubWithAnotherCARefusesToStart(t *testing.T) {
	etcd := ownEtcd(t)
	w := sharing(t, etcd, shared)
	h, err := second(w.ctx, t, etcd, shared)
	if err == nil {
		must(t, h.Close())
	}
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "the store belongs to the CA") || !strings.Contains(err.Error(), "--ca-dir") {
		t.Errorf("it says: %v", err)
	}
}

// Hubs and agents at rest write nothing: their leases are kept alive, and that is all.
func TestHubsAtRestWriteNothing(t *testing.T) {
	leader, follower, _ := two(t)
	follower.join("a", nil, nil)
	leader.join("b", nil, nil)
	leader.await("shop", follower.put(module("shop", configMap("1"))).GetRevision())
	revision := func() int64 {
		got, err := follower.Identity.GetServerInfo(follower.ctx, &towlinev1.GetServerInfoRequest{})
		must(t, err)
		return got.GetRevision()
	}
	settled := revision()
	quiet, cancel := context.WithTimeout(leader.ctx, 4*time.Second) // four times what a lease lasts
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for quiet.Err() == nil {
		select {
		case <-quiet.Done():
		case <-tick.C:
			if now := revision(); now != settled && quiet.Err() == nil {
				t.Logf("the store went from %d to %d", settled, now)
				settled = now
			}
		}
	}
	if now := revision(); now != settled {
		t.Errorf("the store went from %d to %d at rest", settled, now)
	}
}

// TestNothingToDoIsSaidOfTheNewest: what another hub has just committed is taken back at this one, whose etcd is far away: that is no put that changes
// nothing.
func TestNothingToDoIsSaidOfTheNewest(t *testing.T) {
	leader, follower, ways := two(t)
	one, two := module("shop", configMap("1")), module("shop", configMap("2"))
	leader.put(one)
	follower.eventually(func() bool {
		_, err := follower.Modules.GetModule(follower.ctx, &towlinev1.GetModuleRequest{Name: "shop"})
		return err == nil
	})
	ways[1].late.Store(int64(300 * time.Millisecond))
	leader.put(two)
	if got, err := follower.Modules.PutModule(follower.ctx, &towlinev1.PutModuleRequest{Module: one}); err != nil || got.GetResult() == "unchanged" {
		t.Errorf("what is to be put back: %q, %v", got.GetResult(), err)
	}
	ways[1].late.Store(0)
}
