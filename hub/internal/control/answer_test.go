package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// What a person answered is of the question that was there. One that cannot be read any more is asked anew, now and when the same
// list comes another time: what it was answered then releases nothing.
func TestAnswerCountsWithItsQuestionOnly(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		b := memory.New()
		l := newLeaderOn(t, b)
		st := fleet.SyncStatus{Module: shop, Generation: 3, Bundle: l.bundle, Phase: fleet.PhaseApplied, Ready: true, States: make([]fleet.ObjectState, 1),
			Extras: []fleet.ExtraObject{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1", Held: true}}}
		l.put(func(w store.Writer) {
			w.Put(store.ModuleKey(shop), moduleRecord())
			w.Put(store.ClusterKey("a"), clusterRecord("a"))
			w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(3)})
			w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
		})
		look := func() {
			l.state(shop).markAll()
			l.must(l.reconcileModule(t.Context(), shop))
		}
		look()
		var key string
		l.read(func(r store.Reader) {
			store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, e store.Entry) bool {
				key = e.Key
				return true
			})
		})
		l.put(func(w store.Writer) {
			h, _, _ := store.Get[*storev1.HoldRecord](w, key)
			w.Put(store.ConfirmPrefix+h.GetHold().GetId(), &storev1.ConfirmRecord{Digest: h.GetHold().GetDigest()})
			if !damaged {
				w.Delete(key)
			}
		})
		if damaged {
			storetest.Damage(t, b, key)
			if _, err := l.all.Barrier(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		look()
		if l.desired("a").GetSync().GetPruneConfirmed() {
			t.Errorf("damaged %t: released by the answer to a question that is not there", damaged)
		}
		l.read(func(r store.Reader) {
			h, _, asked := store.Get[*storev1.HoldRecord](r, key)
			if answered := record.Confirmed(r, h.GetHold()); !asked || answered {
				t.Errorf("damaged %t: asked anew: %t, and answered: %t", damaged, asked, answered)
			}
		})
	}
}

// A rollout that a newer one supersedes asks nothing any more. The newer one begins with its revision, and may have nothing to decide
// for long; so may a leader that comes after a crash.
func TestQuestionEndsWithItsRollout(t *testing.T) {
	l := newLeader(t)
	l.fleetOf("a", "b")
	l.reportReady("a")
	l.again()
	key := store.HoldPrefix + "leave-1"
	l.put(func(w store.Writer) {
		w.Put(key, &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: "leave-1", Kind: record.HoldConfirm, Project: shop.Project, Module: shop.Name, Code: fleet.HoldLeaves,
			By: "shop/1", Digest: fleet.DigestOf([]byte("b")).String()}})
	})
	l.state(shop).reset()
	l.again()
	l.read(func(r store.Reader) {
		if _, asked := r.Get(key); asked {
			t.Error("a question of a rollout that has ended is asked still")
		}
	})
}
