package api

import (
	"context"
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// A list of what drifts says what was corrected, too, and of how many clusters nothing is known.
func TestDriftRows(t *testing.T) {
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1", Digest: fleet.DigestOf([]byte("a"))}}
	digest, content := assemble.BundleDigest(entries)
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}
	now := time.Now()
	a := newAPI(t, func(w store.Writer) {
		for _, c := range []struct {
			name        fleet.ClusterName
			drift       fleet.Drift
			corrections []*storev1.HourCount
		}{
			{"c1", fleet.DriftDrifted, []*storev1.HourCount{{Hour: now.Add(-25*time.Hour).Unix() / 3600, Count: 100}, {Hour: now.Unix() / 3600, Count: 5}}},
			{"c2", fleet.DriftInSync, []*storev1.HourCount{{Hour: now.Unix() / 3600, Count: 7}}},
		} {
			w.Put(store.ClusterKey(c.name), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(c.name)}}})
			w.Put(store.DesiredKey(c.name, shop), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: shop, Generation: 1, Revision: 1, Bundle: digest, Objects: 1})})
			st := fleet.SyncStatus{Module: shop, Generation: 1, Bundle: digest, Phase: fleet.PhaseApplied,
				States: []fleet.ObjectState{{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: c.drift}}}
			if c.drift == fleet.DriftDrifted {
				st.Exceptions = []fleet.ObjectException{{Reason: "Drifted", Field: "/data/k", Want: "1", Live: "2", ChangedBy: "ana", Seen: 3}}
			}
			w.Put(store.ObservedKey(c.name, shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st), Corrections: c.corrections})
		}
	})
	if _, err := a.o.Store.Blobs().Put(t.Context(), content); err != nil {
		t.Fatal(err)
	}
	a.o.Sessions = only("c1")
	resp, err := a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{Filter: &towlinev1.ObjectFilter{Drift: "*"}})
	if err != nil || len(resp.GetObjects()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	o := resp.GetObjects()[0]
	if o.GetCluster() != "c1" || o.GetField() != "/data/k" || o.GetWant() != "1" || o.GetLive() != "2" || o.GetChangedBy() != "ana" || o.GetSeen() != 3 {
		t.Errorf("row %v", o)
	}
	if resp.GetAway() != 1 || resp.GetCorrectionsDay() != 12 {
		t.Errorf("%d away, %d corrections", resp.GetAway(), resp.GetCorrectionsDay())
	}
	a.o.Sessions = only("")
	a.Touch("c1")
	resp, err = a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{Filter: &towlinev1.ObjectFilter{Drift: "*"}})
	if err != nil || len(resp.GetObjects()) != 0 || resp.GetAway() != 2 {
		t.Errorf("with both away: %v, %v", resp, err)
	}
}

// only is connected with one cluster.
type only fleet.ClusterName

func (only) Started() time.Time               { return time.Time{} }
func (only) Lost(fleet.ClusterName) time.Time { return time.Time{} }

func (o only) Connected(c fleet.ClusterName) bool         { return fleet.ClusterName(o) == c }
func (only) LastSeen(fleet.ClusterName) (time.Time, bool) { return time.Time{}, false }
func (only) Query(context.Context, fleet.ClusterName, *agentv1.Query) (*agentv1.QueryResult, error) {
	return nil, fleet.ErrUnavailable
}
