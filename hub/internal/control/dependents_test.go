package control

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// Two modules are deleted together. In the cluster the one has a revision that depends on the other, and the other's spec depends on the first one there,
// which was put since, and is no circle of specs. Neither waits for the other.
func TestDeletedModulesInACircleOfAnOldAndANewSpecWaitForNobody(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) { w.Put(store.ClusterKey("c"), clusterRecord("c")) })
	refs := []fleet.ModuleRef{{Project: "default", Name: "a"}, {Project: "default", Name: "b"}}
	for i, ref := range refs {
		rec, sync := moduleRecord(), l.sync(5)
		rec.Module.Metadata.Name, rec.Deleting, sync.Module = ref.Name, fleet.DeleteDelete, ref.String()
		if i == 0 {
			sync.DependsOn = []string{refs[1].String()}
		} else {
			rec.Module.Spec.DependsOn = []*towlinev1.Dependency{{Module: refs[0].Name, Clusters: &towlinev1.LabelSelector{}}}
		}
		l.put(func(w store.Writer) {
			w.Put(store.ModuleKey(ref), rec)
			w.Put(store.DesiredKey("c", ref), &storev1.DesiredRecord{Sync: sync})
		})
	}
	for _, ref := range refs {
		l.must(l.reconcileModule(t.Context(), ref))
	}
	l.read(func(r store.Reader) {
		for _, ref := range refs {
			if d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey("c", ref)); d.GetTombstone() == nil {
				t.Errorf("%s waits: %v", ref, d)
			}
		}
	})
}
