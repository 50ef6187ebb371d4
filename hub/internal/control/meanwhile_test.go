package control

import (
	"context"
	"fmt"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
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

// happensAt has something happen right before the commit of a number, from 1 on.
func (m *meanwhile) happensAt(at int, happens func()) {
	m.happens = func() {
		if at--; at > 0 {
			m.happensAt(at, happens)
			return
		}
		happens()
	}
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
	l.finish(&rollouts.Run{Module: shop, Number: 1, Plan: &rollout.Plan{}})
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
	b.happens = func() { l.takes("a") }
	if err := l.Controller.refresh(t.Context(), shop, []refresh{{cluster: "a", generation: had, policy: fleet.DeleteDelete}}); err != nil {
		t.Fatal(err)
	}
	if got := l.desired("a").GetTombstone().GetGeneration(); got != had {
		t.Errorf("the removal of the cluster before, ordered at %d, is an order of %d to the new one", had, got)
	}
}

// A module is deleted, another Kubernetes cluster takes the name, and the leader, which has not heard of the deletion, looks who is to have what the
// module lets go: the sync of the one before is not given to this one, which would be told to delete it next.
func TestSyncOfADeletedModuleIsNotGivenToAnotherCluster(t *testing.T) {
	for name, deleted := range map[string]bool{"deleted": true, "not deleted": false} {
		t.Run(name, func(t *testing.T) {
			l := newLeader(t)
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), moduleRecord())
				w.Put(store.ClusterKey("a"), clusterRecord("a"))
				w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(record.NextGeneration(w))})
			})
			if deleted {
				l.put(func(w store.Writer) {
					m, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
					record.Delete(w, shop, m, fleet.DeleteDelete)
					w.Put(store.ModuleKey(shop), m)
				})
			}
			l.takes("a")
			l.put(func(store.Writer) {}) // sees what was written
			had := l.desired("a").GetSync().GetGeneration()
			next := refresh{cluster: "a", generation: had, heirs: []*agentv1.Heir{{Module: "default/two"}}}
			l.read(func(r store.Reader) { next = next.in(record.Anew(r, "a")) })
			l.must(l.Controller.refresh(t.Context(), shop, []refresh{next}))
			if got := l.desired("a").GetSync().GetGeneration(); (got == had) != deleted {
				t.Errorf("the sync of %d is given as %d", had, got)
			}
			if !deleted {
				return
			}
			l.must(l.reconcileModule(t.Context(), shop))
			if d := l.desired("a"); d != nil {
				t.Errorf("the new one is told %v", d)
			}
		})
	}
}

// A person let objects go that an agent waited with, and in the moment in which that is ordered another Kubernetes cluster joins under the name: the
// person was shown nothing of what is there, so that the word is not given to it.
func TestConfirmIsNotCarriedOutInAnotherCluster(t *testing.T) {
	for name, before := range map[string]func(l *leader){
		"the first one":                    func(*leader) {},
		"one that had taken the name, too": func(l *leader) { l.takes("a") },
	} {
		t.Run(name, func(t *testing.T) {
			b := &meanwhile{Backend: memory.New()}
			l := newLeaderOn(t, b)
			l.put(func(w store.Writer) {
				w.Put(store.ModuleKey(shop), moduleRecord())
				w.Put(store.ClusterKey("a"), clusterRecord("a"))
				w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(record.NextGeneration(w))})
			})
			before(l)
			l.put(func(store.Writer) {}) // sees what was written
			shown := refresh{cluster: "a", generation: l.desired("a").GetSync().GetGeneration(), prune: true, shown: []uint64{1}}
			l.read(func(r store.Reader) { shown = shown.in(record.Anew(r, "a")) })
			b.happens = func() { l.takes("a") }
			if err := l.Controller.refresh(t.Context(), shop, []refresh{shown}); err != nil {
				t.Fatal(err)
			}
			if got := l.desired("a").GetSync(); got.GetGeneration() != shown.generation || got.GetPruneConfirmed() {
				t.Errorf("what was confirmed of the cluster before is an order to the new one: %v", got)
			}
		})
	}
}

// A person confirms that a module leaves a cluster, and in the moment in which its removal is ordered another Kubernetes cluster joins under the
// name: he was asked of the one before, and is asked of this one.
func TestLeaveIsNotOrderedInAnotherCluster(t *testing.T) {
	b := &meanwhile{Backend: memory.New()}
	l := newLeaderOn(t, b)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RevisionKey(shop, 1), nowhere(l.revision(1)))
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Progressing)))
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(record.NextGeneration(w))})
	})
	confirm := func() (id string) {
		l.must(l.reconcileModule(t.Context(), shop))
		l.put(func(w store.Writer) {
			store.Scan(w, store.HoldPrefix, func(h *storev1.HoldRecord, _ store.Entry) bool {
				id = h.GetHold().GetId()
				w.Put(store.ConfirmPrefix+id, &storev1.ConfirmRecord{Digest: h.GetHold().GetDigest()})
				return true
			})
		})
		l.state(shop).markAll()
		return id
	}
	asked := confirm()
	b.happens = func() { l.takes("a") }
	_ = l.reconcileModule(t.Context(), shop)
	if d := l.desired("a"); asked == "" || b.happens != nil || d.GetTombstone() != nil {
		t.Fatalf("asked in %q; what was confirmed of the cluster before is an order to the new one: %v", asked, d)
	}
	l.state(shop).markAll()
	if again := confirm(); again == "" || again == asked {
		t.Errorf("nobody is asked of the new one: %q", again)
	}
	l.must(l.reconcileModule(t.Context(), shop))
	if l.desired("a").GetTombstone() == nil {
		t.Error("what is confirmed of the new one is not ordered")
	}
}

// takes has another Kubernetes cluster join under a name, as the registry writes that.
func (l *leader) takes(name fleet.ClusterName) {
	l.t.Helper()
	l.writes(func(w store.Writer) {
		rec := clusterRecord(string(name))
		rec.Uid = "another"
		record.TakeName(w, name, rec)
		w.Put(store.ClusterKey(name), rec)
	})
}

func TestRemovalGoesOnInManyClustersAtOnce(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.Deleting = fleet.DeleteDelete
		w.Put(store.ModuleKey(shop), m)
	})
	var list []refresh
	for i := range batchClusters + 1 {
		name := fleet.ClusterName(fmt.Sprintf("c%d", i))
		l.put(func(w store.Writer) {
			held := tomb(record.NextGeneration(w))
			held.Hold = true
			list = append(list, refresh{cluster: name, generation: held.GetGeneration(), policy: fleet.DeleteDelete})
			w.Put(store.ClusterKey(name), clusterRecord(string(name)))
			w.Put(store.DesiredKey(name, shop), &storev1.DesiredRecord{Tombstone: held})
		})
	}
	if err := l.Controller.refresh(t.Context(), shop, list); err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if dead := l.desired(x.cluster).GetTombstone(); dead.GetHold() || dead.GetGeneration() <= x.generation {
			t.Fatalf("cluster %s: %v", x.cluster, dead)
		}
	}
}
