package control

import (
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
)

// TestWhatWaitsForARemovalWaitsForARestore: a store was put back, in which a removal is carried out behind which a revision waits, or could not be
// assigned. A person may have taken that back since: the cluster is given nothing until the restore is settled.
func TestWhatWaitsForARemovalWaitsForARestore(t *testing.T) {
	for name, d := range map[string]*storev1.DesiredRecord{
		"a revision":                  {Rollout: 1, Tombstone: tomb(15), Final: true, NextRevision: 1, NextGeneration: 17},
		"one that cannot be assigned": {Rollout: 1, Tombstone: tomb(15), Final: true, Problem: "no value", ProblemRevision: 1, ProblemGeneration: 17},
	} {
		t.Run(name, func(t *testing.T) {
			l, unjoined := newLeader(t), clusterRecord("a")
			unjoined.Joined = nil
			l.put(func(w store.Writer) {
				w.Put(store.GenerationKey, &storev1.Counter{Value: 20})
				w.Put(store.ModuleKey(shop), moduleRecord())
				w.Put(store.ClusterKey("a"), unjoined)
				w.Put(store.RevisionKey(shop, 1), l.revision(1))
				w.Put(store.DesiredKey("a", shop), d)
				w.Put(store.HubKey, &storev1.Hub{Incarnation: "now"})
				w.Put(store.RestoreKey, &storev1.Restore{Incarnation: "now", Stands: true})
			})
			l.must(l.reconcileAssigned(t.Context(), shop, nil, true, nil))
			if got := l.desired("a"); got.GetTombstone() == nil {
				t.Errorf("while the restore stands: %v", got)
			}
			l.put(func(w store.Writer) {
				w.Put(store.SettledKey, &storev1.Acceptance{Incarnation: "now", At: timestamppb.Now()})
			})
			l.must(l.reconcileAssigned(t.Context(), shop, nil, true, nil))
			if got := l.desired("a"); got.GetSync().GetRevision() != 1 {
				t.Errorf("when it is settled: %v", got)
			}
		})
	}
}
