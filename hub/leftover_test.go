package hub_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

// leftObjects pages through what is left of a module.
func (w *world) leftObjects(name string) (total int, listed map[string]string) {
	w.t.Helper()
	listed = map[string]string{}
	for token := ""; ; {
		got, err := w.Trackers.ListObjects(w.ctx, &towlinev1.ListObjectsRequest{PageSize: 1000, PageToken: token, Total: true, Filter: &towlinev1.ObjectFilter{Project: fleet.DefaultProject, Module: name}})
		must(w.t, err)
		for _, o := range got.GetObjects() {
			if o.GetExtra() {
				listed[o.GetObject().GetName()] = o.GetReason()
			}
		}
		if token = got.GetNextPageToken(); token == "" {
			return int(got.GetTotal()), listed
		}
	}
}

func (w *world) extraCount(name string) int32 {
	w.t.Helper()
	got, err := w.Trackers.ListTrackers(w.ctx, &towlinev1.ListTrackersRequest{Filter: &towlinev1.ObjectFilter{Project: fleet.DefaultProject, Module: name}})
	must(w.t, err)
	n := int32(0)
	for _, t := range got.GetTrackers() {
		n += t.GetExtra()
	}
	return n
}

// TestLeftoversAreCountedAndListed: all that is left of a module that goes is counted and listed by name, from the moment
// at which its removal is ordered, with the agent away, too.
func TestLeftoversAreCountedAndListed(t *testing.T) {
	w := newWorld(t, true)
	var left atomic.Int64
	left.Store(5000)
	w.joinRemoving("a", func(x fleet.Tombstone) fleet.SyncStatus {
		s := fleet.SyncStatus{Module: x.Module, Generation: x.Generation, Phase: fleet.PhaseRemoving, Reason: "Removing"}
		for i := range left.Load() {
			s.Extras = append(s.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: fmt.Sprintf("settings-%05d", i)},
				Version: "v1", Reason: "Removing", Message: "goes when its turn comes",
				State: fleet.ObjectState{Sync: fleet.SyncOutOfSync, Health: fleet.HealthUnknown, Drift: fleet.DriftInSync}})
		}
		if len(s.Extras) == 0 {
			s.Phase = fleet.PhaseRemoved
		}
		return s
	})
	w.await("shop", w.put(module("shop", configMap("x"))).GetRevision())
	w.stops["a"]()
	w.awaitCluster("a", "Disconnected")
	_, err := w.Modules.DeleteModule(w.ctx, &towlinev1.DeleteModuleRequest{Name: "shop"})
	must(t, err)
	w.eventually(func() bool { n, listed := w.leftObjects("shop"); return n == 1 && listed["web"] == "Removing" })
	if n := w.extraCount("shop"); n != 1 {
		t.Errorf("%d are counted while the agent is away, and 1 is there", n)
	}

	a := w.reconnect("a")
	for i, want := range []int{5000, 1234, 17, 1} {
		if left.Store(int64(want)); i > 0 {
			must(t, a.Again())
		}
		w.eventually(func() bool { return w.extraCount("shop") == int32(want) })
		total, listed := w.leftObjects("shop")
		if total != want || len(listed) != want || listed[fmt.Sprintf("settings-%05d", want-1)] != "Removing" {
			t.Errorf("total %d, %d are listed; %d are there", total, len(listed), want)
		}
	}
	left.Store(0)
	must(t, a.Again())
	w.eventually(func() bool { n, _ := w.leftObjects("shop"); return n == 0 })
}
