package api

import (
	"fmt"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
)

// What a put of a cluster shows is not what its commit rests on: a fleet has more modules than a commit may compare keys.
func TestPutClusterAmongManyModules(t *testing.T) {
	labelled := func(value string) *towlinev1.PutClusterRequest {
		return &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{ApiVersion: "towline.dev/v1", Kind: "Cluster",
			Metadata: &towlinev1.Metadata{Name: "c1", Labels: map[string]string{"ring": value}}}}
	}
	a := newAPI(t, func(w store.Writer) {
		w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
	})
	for i := range 3 {
		if _, err := a.o.Store.Update(t.Context(), func(w store.Writer) error {
			for j := range 50 {
				putModule(w, "default", fmt.Sprintf("m%d-%02d", i, j), nil)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	put, err := a.PutCluster(t.Context(), labelled("canary"))
	if err != nil || put.GetResult() != resultConfigured {
		t.Fatalf("%v, %v", put, err)
	}
	if put, err = a.PutCluster(t.Context(), labelled("canary")); err != nil || put.GetResult() != resultUnchanged {
		t.Errorf("%v, %v", put, err)
	}
}
