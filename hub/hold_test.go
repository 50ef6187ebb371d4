package hub_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/client"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// TestHoldReachesADeletionThatWasOrderedBefore: the agent is told to stand still, in the cluster as a whole and in the
// tombstone, also while the cluster leaves the fleet, and to go on when the hold ends.
func TestHoldReachesADeletionThatWasOrderedBefore(t *testing.T) {
	w := newWorld(t, true)
	w.joinRemoving("a", func(x fleet.Tombstone) fleet.SyncStatus {
		return fleet.SyncStatus{Module: x.Module, Generation: x.Generation, Phase: fleet.PhaseRemoving}
	})
	resp := w.put(module("shop", configMap("x")))
	w.await("shop", resp.GetRevision())
	_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
	must(t, err)
	agent := w.agents["a"]
	w.eventually(func() bool { return len(agent.Held().Tombstones) == 1 })
	hold, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a"})
	must(t, err)
	w.eventually(func() bool { h := agent.Held(); return h.Hold && len(h.Tombstones) == 1 && h.Tombstones[0].Hold })

	_, err = w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: "delete"})
	must(t, err)
	w.eventually(func() bool { l := agent.Leave(); return l.GetHold() && len(l.GetHeld()) == 1 })
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: hold.GetHold().GetId()})
	must(t, err)
	w.eventually(func() bool { l := agent.Leave(); return !l.GetHold() && len(l.GetHeld()) == 0 })
}

// What a cluster was to get while its agent was away, it never had: that keeps nobody from leaving.
func TestClusterLeavesWithoutWhatItNeverGot(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	m := module("shop", configMap("1"))
	m.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	w.put(m)
	w.eventually(func() bool {
		_, err := w.Assignments.PutAssignments(w.ctx, &towlinev1.PutAssignmentsRequest{Module: "shop", Revision: 1, Clusters: []string{"a"}})
		return err == nil
	})
	_, err := w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a"})
	must(t, err)
	w.run(w.agents["a"])
	w.eventually(func() bool {
		got, err := w.Clusters.GetCluster(w.ctx, &towlinev1.GetClusterRequest{Name: "a"})
		return errors.Is(err, fleet.ErrNotFound) || got.GetCluster().GetStatus().GetState() == "Unregistered"
	})
}

// joinRemoving is join with a say in what becomes of tombstones.
func (w *world) joinRemoving(name string, remove func(fleet.Tombstone) fleet.SyncStatus) {
	w.t.Helper()
	got, err := w.Clusters.JoinCluster(w.ctx, &towlinev1.JoinClusterRequest{Name: name})
	must(w.t, err)
	w.ids[name], err = simagent.Join(w.ctx, w.listen, got.GetToken(), "uid-"+name)
	must(w.t, err)
	w.agents[name] = simagent.New(simagent.Options{Hub: w.listen, Identity: w.ids[name], Remove: remove, Fetch: true})
	w.reconnect(name)
}

// TestHoldWhileNothingMovesIsShown: what is held is not on its way, and everything that lists it says so.
func TestHoldWhileNothingMovesIsShown(t *testing.T) {
	w := newWorld(t, true)
	asAgents := func(s fleet.Sync) fleet.SyncStatus {
		out := simagent.Ready(s)
		if s.Hold {
			out.Phase, out.Ready, out.Reason, out.Message = fleet.PhaseHeld, false, "Held", "held"
		}
		return out
	}
	w.join("a", asAgents, nil)
	w.join("b", asAgents, nil)
	w.await("shop", w.put(module("shop", configMap("x"))).GetRevision())
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHealthy() == 2 && s.GetHeldClusters() == 0 })

	hold := func(req *towlinev1.PutHoldRequest) (end func()) {
		got, err := w.Modules.PutHold(w.ctx, req)
		must(t, err)
		return func() {
			_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: got.GetHold().GetId()})
			must(t, err)
		}
	}
	held := func(name string) []*towlinev1.Hold { return w.cluster(name).GetStatus().GetHolds() }
	end := hold(&towlinev1.PutHoldRequest{Module: "shop", Reason: "night"})
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool {
		return s.GetHeldClusters() == 2 && s.GetHealthy() == 2 && s.GetProgressing() == 0 && len(s.GetHolds()) == 1
	})
	w.awaitTracker("shop", "a", "Held", func(x *towlinev1.Tracker) bool {
		return x.GetReason() == "Held" && x.GetHealth() == "Healthy" && !x.GetReady()
	})
	if h := held("b"); len(h) != 1 || h[0].GetModule() != "shop" || h[0].GetReason() != "night" {
		t.Errorf("cluster b: %v", h)
	}
	w.eventually(func() bool { return w.cluster("b").GetStatus().GetHealthy() == 1 })
	end()
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHeldClusters() == 0 && s.GetHealthy() == 2 })

	end = hold(&towlinev1.PutHoldRequest{Cluster: "a"})
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return s.GetHeldClusters() == 1 && s.GetHealthy() == 2 })
	if a, b := held("a"), held("b"); len(a) != 1 || len(b) != 0 {
		t.Errorf("cluster a: %v, b: %v", a, b)
	}
	list, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{Project: "default"})
	must(t, err)
	if len(list.GetHolds()) != 1 {
		t.Errorf("holds that concern the project: %v", list.GetHolds())
	}
	end()
}

// TestPinOfWhatIsThereIsShown: a pin is said of the cluster, also where it changes nothing yet, until it ends.
func TestPinOfWhatIsThereIsShown(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(staged("shop", "1", nil)).GetRevision())
	pins := func(name string) []*towlinev1.Pin { return w.cluster(name).GetStatus().GetPins() }
	w.act(client.Word{Module: "shop", Verb: "pin", Clusters: []string{"a"}, Reason: "audit"})
	if a, b := pins("a"), pins("b"); len(a) != 1 || a[0].GetModule() != "shop" || a[0].GetRevision() != 1 || a[0].GetReason() != "audit" || a[0].GetUntil() != nil || len(b) != 0 {
		t.Errorf("a: %v, b: %v", a, b)
	}
	w.await("shop", w.put(staged("shop", "2", nil)).GetRevision())
	w.eventually(func() bool { return w.revisions("shop")["b"] == 2 })
	if a := pins("a"); len(a) != 1 || a[0].GetRevision() != 1 {
		t.Errorf("in the next rollout: %v", a)
	}
	w.act(client.Word{Module: "shop", Verb: "unpin", Clusters: []string{"a"}})
	if a := pins("a"); len(a) != 0 {
		t.Errorf("after unpin: %v", a)
	}
}

// awaitHold waits until a person is asked for one thing, and for no other.
func (w *world) awaitHold() (held *towlinev1.Hold) {
	w.t.Helper()
	w.eventually(func() bool {
		got, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
		must(w.t, err)
		if len(got.GetHolds()) == 1 {
			held = got.GetHolds()[0]
		}
		return held != nil
	})
	return held
}

// confirmList confirms the one hold that is there once it is of so many objects: while heirs are being named it may be of others.
func (w *world) confirmList(items int) {
	w.t.Helper()
	w.eventually(func() bool {
		h := w.awaitHold()
		if len(h.GetItems()) != items {
			return false
		}
		_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: h.GetId()})
		if status.Code(err) == codes.NotFound {
			return false
		}
		must(w.t, err)
		return true
	})
}

func (w *world) confirm(h *towlinev1.Hold) {
	w.t.Helper()
	_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: h.GetId()})
	must(w.t, err)
}

// TestHoldOfAnObject: the agent is told which object of a module nothing is written to, a rollout passes the cluster by as if the
// module were held, and the end of the hold lets both go on.
func TestHoldOfAnObject(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.join("b", nil, nil)
	w.enroll("old", nil)
	w.connectWith("old", simagent.Options{Features: slices.DeleteFunc(wire.Features(), func(f string) bool { return f == wire.FeatureObjectHolds })})
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	object := &towlinev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "web"}
	held := func(name string) (s fleet.Sync) {
		if all := w.agents[name].Held().Syncs; len(all) == 1 {
			s = all[0]
		}
		return s
	}
	var ids []string
	for _, name := range []string{"a", "old"} {
		put, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: name, Object: object, Reason: "night"})
		must(t, err)
		h := put.GetHold()
		if h.GetModule() != "shop" || h.GetProject() != "default" || h.GetObject().GetApiVersion() != "v1" || !slices.Equal(h.GetItems(), []string{"ConfigMap default/web"}) {
			t.Errorf("hold %v", h)
		}
		ids = append(ids, h.GetId())
	}
	w.eventually(func() bool { s := held("a"); return len(s.Held) == 1 && !s.Hold && s.Revision == 1 })
	w.eventually(func() bool { s := held("old"); return len(s.Held) == 0 && s.Hold }) // it knows no holds of objects
	why, err := w.Trackers.ExplainObject(w.ctx, &towlinev1.ExplainObjectRequest{Cluster: "a", Object: object})
	must(t, err)
	if len(why.GetHolds()) != 1 || why.GetHolds()[0].GetReason() != "night" {
		t.Errorf("explained by %v", why.GetHolds())
	}

	ro := w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 2 {
		t.Errorf("rollout: %v", s)
	}
	if r := w.revisions("shop"); r["a"] != 1 || r["b"] != 2 || r["old"] != 1 {
		t.Errorf("revisions %v", r)
	}
	for _, id := range ids {
		_, err := w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: id})
		must(t, err)
	}
	w.eventually(func() bool { s := held("a"); return len(s.Held) == 0 && s.Revision == 2 })
	w.eventually(func() bool { s := held("old"); return !s.Hold && s.Revision == 2 })

	_, err = w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a", Object: &towlinev1.ObjectReference{Kind: "Secret", Namespace: "default", Name: "web"}})
	if !errors.Is(err, fleet.ErrNotFound) {
		t.Errorf("a hold of what no module has: %v", err)
	}
}

// TestHoldOfAnObjectStopsTheRemoval: the deletion of its module waits for the end of the hold, which comes by itself.
func TestHoldOfAnObjectStopsTheRemoval(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	put, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a", Object: &towlinev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "web"}})
	must(t, err)
	agent := w.agents["a"]
	w.eventually(func() bool { all := agent.Held().Syncs; return len(all) == 1 && len(all[0].Held) == 1 })
	_, err = w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
	must(t, err)
	_, err = w.Clusters.RemoveCluster(w.ctx, &towlinev1.RemoveClusterRequest{Name: "a", Objects: "delete"})
	must(t, err)
	w.eventually(func() bool { l := agent.Leave(); return l != nil && len(l.GetHeld()) == 1 })
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: put.GetHold().GetId()})
	must(t, err)
	w.eventually(func() bool { return len(agent.Leave().GetHeld()) == 0 })
}

// Two modules list one object: a hold is of the one that has it, whichever name comes first, and so is the explanation.
func TestHoldOfAnObjectIsOfTheModuleThatHasIt(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	w.put(module("base", configMap("2")))
	w.awaitTracker("base", "a", "in conflict", func(x *towlinev1.Tracker) bool { return strings.Contains(x.GetMessage(), "shop") })
	object := &towlinev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "web"}
	check := func(when string) {
		t.Helper()
		why, err := w.Trackers.ExplainObject(w.ctx, &towlinev1.ExplainObjectRequest{Cluster: "a", Object: object})
		must(t, err)
		if why.GetObject().GetModule() != "shop" {
			t.Errorf("%s: explained as module %s's", when, why.GetObject().GetModule())
		}
	}
	check("with its agent")
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	check("without its agent")
	put, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Cluster: "a", Object: object})
	must(t, err)
	if put.GetHold().GetModule() != "shop" {
		t.Errorf("the hold is of module %s", put.GetHold().GetModule())
	}
	w.reconnect("a")
	w.eventually(func() bool {
		return slices.ContainsFunc(w.agents["a"].Held().Syncs, func(s fleet.Sync) bool { return s.Module.Name == "shop" && len(s.Held) == 1 })
	})
}

// A hold that would be over already by the hub's clock, as from a machine whose clock is behind, is refused: nothing would be held.
func TestHoldThatIsOverIsRefused(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	for what, until := range map[string]*timestamppb.Timestamp{"an hour ago": timestamppb.New(time.Now().Add(-time.Hour)), "no time": {Seconds: 1, Nanos: -5}} {
		_, err := w.Modules.PutHold(w.ctx, &towlinev1.PutHoldRequest{Module: "shop", Until: until})
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "until") {
			t.Errorf("until %s: %v", what, err)
		}
		_, err = w.Rollouts.PinClusters(w.ctx, &towlinev1.PinClustersRequest{Module: "shop", Clusters: []string{"a"}, Until: until})
		if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "until") {
			t.Errorf("pinned until %s: %v", what, err)
		}
	}
	list, err := w.Modules.ListHolds(w.ctx, &towlinev1.ListHoldsRequest{})
	must(t, err)
	if len(list.GetHolds()) != 0 {
		t.Errorf("holds: %v", list.GetHolds())
	}
}

// TestHoldByAnAnnotation: what an annotation in a cluster holds is shown as a hold of the object wherever holds are, and stops a rollout
// as one that was put here does; nobody ends it here. It is listed while the cluster is away, and gone when the agent says so.
func TestHoldByAnAnnotation(t *testing.T) {
	w := newWorld(t, true)
	var noted atomic.Bool
	since := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	w.join("a", func(s fleet.Sync) fleet.SyncStatus {
		out := simagent.Ready(s)
		if noted.Load() {
			out.Holds = []fleet.ObjectHold{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "default", Name: "web"}, Version: "v1", Reason: "INC-42", By: "kubectl-annotate", Since: since, Unread: "soon"}}
		}
		return out
	}, nil)
	w.join("b", nil, nil)
	w.await("shop", w.put(module("shop", configMap("1"))).GetRevision())
	say := func(is bool) {
		noted.Store(is)
		must(t, w.agents["a"].Again())
	}
	holds := func(of *towlinev1.ListHoldsRequest) []*towlinev1.Hold {
		list, err := w.Modules.ListHolds(w.ctx, of)
		must(t, err)
		return list.GetHolds()
	}
	say(true)
	w.eventually(func() bool { return len(holds(&towlinev1.ListHoldsRequest{})) == 1 })
	h := holds(&towlinev1.ListHoldsRequest{Project: "default", Module: "shop", Cluster: "a"})[0]
	if h.GetKind() != "Freeze" || h.GetSource() != "Annotation" || h.GetModule() != "shop" || h.GetCluster() != "a" || h.GetReason() != "INC-42" || h.GetBy() != "kubectl-annotate" ||
		!h.GetSince().AsTime().Equal(since) || h.GetCode() != fleet.HoldUnreadEnd || h.GetObject().GetApiVersion() != "v1" || !slices.Equal(h.GetItems(), []string{"ConfigMap default/web"}) {
		t.Errorf("hold %v", h)
	}
	for _, of := range []*towlinev1.ListHoldsRequest{{Project: "other"}, {Module: "base"}, {Cluster: "b"}} {
		if got := holds(of); len(got) != 0 {
			t.Errorf("%v: %v", of, got)
		}
	}
	why, err := w.Trackers.ExplainObject(w.ctx, &towlinev1.ExplainObjectRequest{Cluster: "a", Object: &towlinev1.ObjectReference{Kind: "ConfigMap", Namespace: "default", Name: "web"}})
	must(t, err)
	if len(why.GetHolds()) != 1 || why.GetHolds()[0].GetId() != h.GetId() {
		t.Errorf("explained by %v", why.GetHolds())
	}
	if got := w.cluster("a").GetStatus().GetHolds(); len(got) != 1 {
		t.Errorf("cluster a: %v", got)
	}
	w.moduleIs("shop", func(s *towlinev1.ModuleStatus) bool { return len(s.GetHolds()) == 1 && s.GetHealthy() == 2 })
	_, err = w.Modules.ConfirmHold(w.ctx, &towlinev1.ConfirmHoldRequest{Id: h.GetId()})
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), fleet.HoldAnnotation) {
		t.Errorf("ended here: %v", err)
	}

	ro := w.await("shop", w.put(module("shop", configMap("2"))).GetRevision())
	if s := ro.GetStatus(); s.GetState() != "Succeeded" || s.GetSucceeded() != 1 || s.GetDeferred() != 1 {
		t.Errorf("rollout: %v", s)
	}
	if r := w.revisions("shop"); r["a"] != 1 || r["b"] != 2 {
		t.Errorf("revisions %v", r)
	}
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	if got := holds(&towlinev1.ListHoldsRequest{}); len(got) != 1 {
		t.Errorf("while it is away: %v", got)
	}
	w.reconnect("a")
	say(false)
	w.eventually(func() bool { return w.revisions("shop")["a"] == 2 && len(holds(&towlinev1.ListHoldsRequest{})) == 0 })
}
