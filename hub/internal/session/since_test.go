package session

import (
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// TestSinceHealthAndSyncHold: a module stands as it does since its health or what it has last changed, though it is as ready as before: somebody
// paused a Deployment, or changed what a policy leaves so.
func TestSinceHealthAndSyncHold(t *testing.T) {
	ref := fleet.ModuleRef{Project: "default", Name: "m0"}
	fine := fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}
	suspended, drifted, other := fine, fine, fine
	suspended.Health = fleet.HealthSuspended
	drifted.Sync, drifted.Drift = fleet.SyncOutOfSync, fleet.DriftDrifted
	other.Drift = fleet.DriftIgnored
	status := func(states ...fleet.ObjectState) *agentv1.SyncStatus {
		return wire.SyncStatusToProto(fleet.SyncStatus{Module: ref, Generation: 1, Bundle: fleet.DigestOf([]byte("bundle")), Phase: fleet.PhaseApplied, Ready: true, States: states})
	}
	for name, tc := range map[string]struct {
		next  *agentv1.SyncStatus
		stays bool
	}{
		"nothing":                             {status(fine, fine), true},
		"one is left to an autoscaler":        {status(fine, other), true},
		"one is paused":                       {status(fine, suspended), false},
		"one drifts, and is left so":          {status(drifted, fine), false},
		"another agent, which tells the same": {func() *agentv1.SyncStatus { s := status(fine, fine); s.Corrections = 7; return s }(), true},
	} {
		x := reporter(t, 1)
		x.report(t, 1, status(fine, fine))
		if _, err := storetest.All(x.server.o.Store).Update(t.Context(), func(w store.Writer) error {
			rec, _, _ := store.Get[*storev1.ObservedRecord](w, store.ObservedKey("a", ref))
			w.Put(store.ObservedKey("a", ref), &storev1.ObservedRecord{Status: rec.GetStatus(), Epoch: rec.GetEpoch(), Since: 1})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := x.server.o.Store.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.report(t, 2, tc.next)
		rev, err := x.server.o.Store.Barrier(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := x.server.o.Store.View(t.Context(), rev, func(r store.Reader) error {
			rec, _, _ := store.Get[*storev1.ObservedRecord](r, store.ObservedKey("a", ref))
			if stays := rec.GetSince() == 1; stays != tc.stays || rec.GetStatus().GetCorrections() != tc.next.GetCorrections() {
				t.Errorf("%s: the time stays: %t, %v", name, stays, rec)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
