package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// A confirm is of the list that was shown: what is held at that moment is not on it, so that the confirm is over when the list is gone.
func TestConfirmEndsWithItsList(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(3)})
	})
	report := func(waits bool) (id string) {
		st := fleet.SyncStatus{Module: shop, Generation: l.desired("a").GetSync().GetGeneration(), Bundle: l.bundle, Phase: fleet.PhaseApplied, Ready: true,
			States: make([]fleet.ObjectState, 1)}
		st.Extras = []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "held"}, Version: "v1", Reason: plan.ReasonHeld}}
		if waits {
			st.Extras = append(st.Extras, fleet.ExtraObject{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "shown"}, Version: "v1", Held: true})
		}
		l.put(func(w store.Writer) {
			w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
		})
		l.state(shop).markAll()
		l.must(l.reconcileModule(t.Context(), shop))
		l.read(func(r store.Reader) {
			store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
				id = e.Key
				return true
			})
		})
		return id
	}
	first := report(true)
	l.put(func(w store.Writer) {
		h, _, _ := store.Get[*storev1.HoldRecord](w, first)
		w.Put(store.ConfirmPrefix+h.GetHold().GetId(), &storev1.ConfirmRecord{Digest: h.GetHold().GetDigest()})
	})
	l.state(shop).markAll()
	l.must(l.reconcileModule(t.Context(), shop))
	if !l.desired("a").GetSync().GetPruneConfirmed() {
		t.Fatal("not confirmed")
	}
	report(false)
	if l.desired("a").GetSync().GetPruneConfirmed() {
		t.Error("what was confirmed is done, and the sync is confirmed still, for what was on no list")
	}
}
