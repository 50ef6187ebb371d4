package record

import (
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// A cluster that was made anew and has told nothing yet, or whose record is damaged, hides from nobody what others can do as well.
func TestWhatOthersCanDoIsFound(t *testing.T) {
	told := wire.CapabilitiesToProto(fleet.Capabilities{KubeVersion: "v1.34.1", APIs: []string{"apps/v1", "apps/v1/Deployment"}})
	can := func(apis []byte) *storev1.CapabilitiesRecord {
		return &storev1.CapabilitiesRecord{Epoch: 3, Apis: apis,
			Sum: &storev1.CapabilitiesSum{Digest: told.GetDigest(), KubernetesVersion: told.GetKubernetesVersion()}}
	}
	s := storetest.New(t)
	at, err := s.Update(t.Context(), func(w store.Writer) error {
		for name, rec := range map[fleet.ClusterName]*storev1.CapabilitiesRecord{"anew": can(told.GetApis()), "broken": can([]byte("?")), "fine": can(told.GetApis())} {
			w.Put(store.CapabilityKey(name), rec)
		}
		w.Put(store.ClusterKey("anew"), &storev1.ClusterRecord{AnewEpoch: 3})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.View(t.Context(), at, func(r store.Reader) error {
		able, found := Capable{}.Find(r, Digest(told.GetDigest()))
		if !found || !able.All.Has("apps/v1/Deployment") {
			t.Errorf("found %t, %+v", found, able.All)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
