package hub_test

import (
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/simagent"
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
