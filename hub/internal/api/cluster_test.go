package api

import (
	"fmt"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
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

// Where a module is to be says the revision that was rolled out last, not a put that failed at its source: so does the answer to a
// change of labels, by which a person says yes or no.
func TestLabelsAreToldByThePlacementInForce(t *testing.T) {
	placed := func(label string) *towlinev1.Placement {
		return &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{label: "yes"}}}
	}
	for state, leaves := range map[rollout.RunState]int{rollout.Failed: 1, rollout.Pending: 2} {
		digest, content := assemble.BundleDigest(nil)
		a := newAPI(t, func(w store.Writer) {
			for name, placement := range map[string][2]string{"by-old": {"old", "new"}, "by-new": {"new", "old"}} {
				var spec *towlinev1.ModuleSpec
				ref := putModule(w, "default", name, func(m *storev1.ModuleRecord) {
					spec = proto.CloneOf(m.Module.Spec)
					m.Module.Spec.Placement = placed(placement[1])
				})
				spec.Placement = placed(placement[0])
				w.Put(store.RevisionKey(ref, 1), &storev1.RevisionRecord{Revision: &towlinev1.Revision{Number: 1, Spec: spec}})
				putRollout(w, ref, 1, 1, "Succeeded")
				putRollout(w, ref, 2, 0, string(state))
				w.Put(store.DesiredKey("c1", ref), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: ref, Generation: 1, Revision: 1, Bundle: digest})})
			}
			w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1", Labels: map[string]string{"old": "yes", "new": "yes"}}}})
		})
		if _, err := a.o.Store.Blobs().Put(t.Context(), content); err != nil {
			t.Fatal(err)
		}
		resp, err := a.PutCluster(t.Context(), &towlinev1.PutClusterRequest{DryRun: true,
			Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1", Labels: map[string]string{"new": "yes"}}}})
		if err != nil || len(resp.GetLeaves()) != leaves || !slices.Contains(resp.GetLeaves(), "default/by-old") {
			t.Errorf("put is %s: leaves %v, want by-old and %d: %v", state, resp.GetLeaves(), leaves, err)
		}
	}
}

// TestAcknowledgementOfBeforeAJoin: what an agent acknowledged in sessions that do not count any more says nothing of the one that is there.
func TestAcknowledgementOfBeforeAJoin(t *testing.T) {
	for voidBefore, says := range map[uint64]bool{0: true, 3: true, 4: false} {
		a := newAPI(t, func(w store.Writer) {
			w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Joined: timestamppb.Now(), Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
			w.Put(store.SessionKey("c1"), &storev1.SessionRecord{Epoch: 4, VoidBefore: voidBefore})
			w.Put(store.AckKey("c1"), &storev1.AckRecord{Epoch: 3, Generation: 7, Code: "REGRESSED", Message: "it has seen more"})
		})
		got, err := a.ListClusters(t.Context(), &towlinev1.ListClustersRequest{})
		if err != nil || len(got.GetClusters()) != 1 {
			t.Fatal(got, err)
		}
		if s := got.GetClusters()[0].GetStatus(); (s.GetAcknowledgedGeneration() == 7) != says || (s.GetAttention().GetCode() == fleet.AttentionRefused) != says {
			t.Errorf("void before %d: %v", voidBefore, s)
		}
	}
}
