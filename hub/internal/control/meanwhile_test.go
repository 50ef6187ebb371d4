package control

import (
	"context"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
)

// meanwhile is a backend in which something happens right before a commit.
type meanwhile struct {
	backend.Backend
	happens func()
}

func (m *meanwhile) Commit(ctx context.Context, parts []backend.Part) (int64, []bool, error) {
	if happens := m.happens; happens != nil {
		m.happens = nil
		happens()
	}
	return m.Backend.Commit(ctx, parts)
}

// What another program assigns between a look of the leader and its commit stays: it is of a later generation than the step.
func TestStepLeavesWhatIsAssignedMeanwhile(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.put(func(w store.Writer) {
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		w.Put(store.StepKey(shop, 1, 1), &storev1.StepRecord{Generation: 9, Revision: 1, Clusters: []string{"a", "b"}})
		for _, name := range []string{"a", "b"} {
			w.Put(store.ClusterKey(fleet.ClusterName(name)), clusterRecord(name))
		}
	})
	b.happens = func() {
		if _, err := l.all.Update(t.Context(), func(w store.Writer) error {
			w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(10)})
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	l.finish(&rollouts.Run{Module: shop, Number: 1})
	if a, b := l.desired("a").GetSync().GetGeneration(), l.desired("b").GetSync().GetGeneration(); a != 10 || b != 9 {
		t.Errorf("a has what was assigned at %d, b at %d; want 10 and 9", a, b)
	}
}

// A removal is ordered again, as at the end of a hold, in the moment in which another Kubernetes cluster joins under the name: what is to go is in
// the one before, and it does not become an order to the new one.
func TestRemovalIsNotOrderedAgainInAnotherCluster(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.Deleting = fleet.DeleteDelete
		w.Put(store.ModuleKey(shop), m)
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		generation := record.NextGeneration(w)
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: &agentv1.Tombstone{Module: shop.String(), Generation: generation, Hold: true, Policy: fleet.DeleteDelete}})
	})
	had := l.desired("a").GetTombstone().GetGeneration()
	b.happens = func() {
		if _, err := l.all.Update(t.Context(), func(w store.Writer) error {
			rec := clusterRecord("a")
			rec.Uid, rec.AnewGeneration = "another", record.LastGeneration(w)
			w.Put(store.ClusterKey("a"), rec)
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if err := l.Controller.refresh(t.Context(), shop, []refresh{{cluster: "a", generation: had, policy: fleet.DeleteDelete}}); err != nil {
		t.Fatal(err)
	}
	if got := l.desired("a").GetTombstone().GetGeneration(); got != had {
		t.Errorf("the removal of the cluster before, ordered at %d, is an order of %d to the new one", had, got)
	}
}
