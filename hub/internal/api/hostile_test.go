package api

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// The bundle that an agent says it has, while a module leaves it, is its word only: whatever it names, what is known of
// other clusters is shown, and the module can be deleted.
func TestBundleThatAnAgentMadeUpHidesNothingElse(t *testing.T) {
	digest, content := assemble.BundleDigest([]fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1", Digest: fleet.DigestOf([]byte("a"))}})
	object := []byte(`{"kind":"ConfigMap"}`)
	var shop fleet.ModuleRef
	a := newAPI(t, func(w store.Writer) {
		shop = putModule(w, "default", "shop", nil)
		for _, c := range []fleet.ClusterName{"honest", "hostile"} {
			w.Put(store.ClusterKey(c), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(c)}}})
		}
		w.Put(store.DesiredKey("honest", shop), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: shop, Generation: 1, Revision: 1, Bundle: digest, Objects: 1})})
		w.Put(store.DesiredKey("hostile", shop), &storev1.DesiredRecord{Tombstone: wire.TombstoneToProto(fleet.Tombstone{Module: shop, Generation: 2, Policy: fleet.DeleteDelete})})
		w.Put(store.ObservedKey("hostile", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(fleet.SyncStatus{Module: shop, Generation: 1,
			Bundle: fleet.DigestOf(object), Phase: fleet.PhaseApplied})})
	})
	if _, err := a.o.Store.Blobs().Put(t.Context(), content, object); err != nil {
		t.Fatal(err)
	}
	resp, err := a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{})
	if err != nil || len(resp.GetObjects()) != 1 || resp.GetObjects()[0].GetCluster() != "honest" {
		t.Errorf("objects: %v, %v", resp.GetObjects(), err)
	}
	if _, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Project: "default", Name: "shop"}); err != nil {
		t.Errorf("deletion: %v", err)
	}
}
