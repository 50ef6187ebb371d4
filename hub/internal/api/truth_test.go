package api

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// assigned is a module in one cluster, with a report of it.
type assigned struct {
	policies []fleet.Policy
	kinds    []string // of its objects; each is named after its kind
	status   fleet.SyncStatus
	session  *storev1.SessionRecord
	since    time.Time
}

// newAssigned is an API over a store with module shop in cluster c1.
func newAssigned(t *testing.T, x assigned) *API {
	t.Helper()
	var entries []fleet.BundleEntry
	contents := map[string][]byte{}
	for _, kind := range x.kinds {
		contents[kind] = []byte(`{"kind":"` + kind + `","metadata":{"labels":{"kind":"` + kind + `"}}}`)
		entries = append(entries, fleet.BundleEntry{ID: fleet.ObjectID{Kind: kind, Namespace: "shop", Name: kind}, Version: "v1", Digest: fleet.DigestOf(contents[kind])})
	}
	slices.SortFunc(entries, func(a, b fleet.BundleEntry) int { return a.ID.Compare(b.ID) })
	digest, bundle := assemble.BundleDigest(entries)
	policies, err := wire.PolicySetContent(fleet.PolicySet{Policies: x.policies})
	if err != nil {
		t.Fatal(err)
	}
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}
	a := newAPI(t, func(w store.Writer) {
		putModule(w, "default", "shop", nil)
		w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Joined: timestamppb.Now(), Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
		w.Put(store.DesiredKey("c1", shop), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: shop, Generation: 2, Revision: 2, Bundle: digest,
			Objects: len(entries), Policies: fleet.DigestOf(policies)})})
		x.status.Module, x.status.Generation, x.status.Bundle, x.status.Phase = shop, 2, digest, fleet.PhaseApplied
		for range entries {
			x.status.States = append(x.status.States, fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync})
		}
		w.Put(store.ObservedKey("c1", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(x.status), Epoch: x.session.GetEpoch(), Since: x.since.UnixMilli()})
		if x.session != nil {
			w.Put(store.SessionKey("c1"), x.session)
		}
	})
	for _, blob := range append([][]byte{bundle, policies}, contents["ConfigMap"], contents["PersistentVolumeClaim"], contents["Secret"]) {
		if blob == nil {
			continue
		}
		if _, err := a.o.Store.Blobs().Put(t.Context(), blob); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// What is said before a deletion is what the agents will do: they go by the policies.
func TestDeletionIsToldByThePolicies(t *testing.T) {
	claims := []string{"ConfigMap", "PersistentVolumeClaim", "Secret"}
	named := func(p fleet.Policy) fleet.Policy {
		p.Match.Kinds = []string{"PersistentVolumeClaim"}
		return p
	}
	labelled := fleet.Policy{Match: fleet.PolicyMatch{Labels: &fleet.Selector{MatchLabels: map[string]string{"kind": "Secret"}}}, Delete: fleet.DeleteOrphan}
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		orphan   bool
		goes     int32
		keeps    []string
	}{
		"none":                                {nil, false, 2, []string{"1 PersistentVolumeClaim"}},
		"one names the kind":                  {[]fleet.Policy{named(fleet.Policy{Prune: fleet.PruneOnModuleDelete})}, false, 3, nil},
		"one names the kind and keeps it":     {[]fleet.Policy{named(fleet.Policy{Prune: fleet.PruneNever})}, false, 2, []string{"1 PersistentVolumeClaim"}},
		"one names the kind for another word": {[]fleet.Policy{named(fleet.Policy{Drift: fleet.DriftReport})}, false, 2, []string{"1 PersistentVolumeClaim"}},
		"all stay":                            {[]fleet.Policy{{Delete: fleet.DeleteOrphan}}, false, 0, []string{"1 ConfigMap", "1 PersistentVolumeClaim", "1 Secret"}},
		"by a label":                          {[]fleet.Policy{labelled}, false, 1, []string{"1 PersistentVolumeClaim", "1 Secret"}},
		"orphaned":                            {nil, true, 0, []string{"1 ConfigMap", "1 PersistentVolumeClaim", "1 Secret"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAssigned(t, assigned{policies: tc.policies, kinds: claims})
			resp, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", Orphan: tc.orphan, DryRun: true})
			if err != nil || resp.GetObjects() != tc.goes || !slices.Equal(kindCounts(resp.GetKeeps()), tc.keeps) || resp.GetClusters() != 1 {
				t.Errorf("%v, %v", resp, err)
			}
		})
	}
}

// kindCounts are such as "1 Secret".
func kindCounts(all []*towlinev1.KindCount) []string {
	var out []string
	for _, k := range all {
		out = append(out, fmt.Sprintf("%d %s", k.GetObjects(), k.GetKind()))
	}
	return out
}

// An object that an older revision left is not of the revision that the cluster has now.
func TestObjectOfAnOlderRevision(t *testing.T) {
	a := newAssigned(t, assigned{kinds: []string{"ConfigMap"}, status: fleet.SyncStatus{Extras: []fleet.ExtraObject{
		{ID: fleet.ObjectID{Kind: "Secret", Namespace: "shop", Name: "old"}, Version: "v1", Reason: "Kept"}}}})
	a.o.Sessions = only("c1")
	for revision, want := range map[int64]int{0: 2, 1: 0, 2: 1} {
		resp, err := a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{Total: true, Filter: &towlinev1.ObjectFilter{Revision: revision}})
		if err != nil || len(resp.GetObjects()) != want || int(resp.GetTotal()) != want {
			t.Fatalf("of r%d: %v, %v", revision, resp, err)
		}
		for _, o := range resp.GetObjects() {
			if o.GetExtra() && o.GetRevision() != 0 {
				t.Errorf("of r%d: %v", o.GetRevision(), o.GetObject())
			}
		}
	}
}

// A hub that died did not note when it heard its agents last. Each was there when its newest report came.
func TestLastSeenOfASessionWithoutAnEnd(t *testing.T) {
	now := time.Now()
	a := newAssigned(t, assigned{kinds: []string{"ConfigMap"}, since: now.Add(-time.Hour),
		session: &storev1.SessionRecord{Epoch: 3, Started: timestamppb.New(now.AddDate(0, 0, -12))}})
	got, err := a.GetCluster(t.Context(), &towlinev1.GetClusterRequest{Name: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	if seen := got.GetCluster().GetStatus().GetLastSeen().AsTime(); now.Sub(seen) > 2*time.Hour {
		t.Errorf("last seen %s", seen)
	}
	rows, err := a.ListTrackers(t.Context(), &towlinev1.ListTrackersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if heard := rows.GetTrackers()[0].GetLastHeard().AsTime(); now.Sub(heard) > 2*time.Hour {
		t.Errorf("last heard %s", heard)
	}
}

// A cluster is away since its last word, though nobody noted the end of its session, as where the hub itself ended; and it is to be
// removed since somebody said so. How long it has had a session, or had one, is no answer. Nor is it for one that is cordoned, of which
// nobody noted since when.
func TestStateOfAClusterIsDatedByItself(t *testing.T) {
	now := time.Now()
	a := newAssigned(t, assigned{kinds: []string{"ConfigMap"}, since: now.Add(-time.Hour),
		session: &storev1.SessionRecord{Epoch: 3, Started: timestamppb.New(now.AddDate(0, 0, -12))}})
	status := func(change func(*storev1.ClusterRecord)) *towlinev1.ClusterStatus {
		t.Helper()
		if _, err := storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
			rec, _, _ := store.Get[*storev1.ClusterRecord](w, store.ClusterKey("c1"))
			next := proto.CloneOf(rec)
			change(next)
			w.Put(store.ClusterKey("c1"), next)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.o.Store.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := a.GetCluster(t.Context(), &towlinev1.GetClusterRequest{Name: "c1"})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetCluster().GetStatus()
	}
	if s := status(func(*storev1.ClusterRecord) {}); s.GetState() != "Disconnected" || now.Sub(s.GetSince().AsTime()) > 2*time.Hour {
		t.Errorf("%s since %s", s.GetState(), s.GetSince().AsTime())
	}
	a.o.Sessions = only("c1")
	if s := status(func(r *storev1.ClusterRecord) { r.Cluster.Spec = &towlinev1.ClusterSpec{Cordoned: new(true)} }); s.GetState() != "Cordoned" || s.GetSince() != nil {
		t.Errorf("%s since %s", s.GetState(), s.GetSince().AsTime())
	}
	if s := status(func(r *storev1.ClusterRecord) {
		r.Removing, r.Cluster.Metadata.DeletionTimestamp = "keep", timestamppb.New(now)
	}); s.GetState() != "Removing" || !s.GetSince().AsTime().Equal(now) {
		t.Errorf("%s since %s", s.GetState(), s.GetSince().AsTime())
	}
}

// What a list of drift shows is what the counts count.
func TestDriftIsListedAsItIsCounted(t *testing.T) {
	kinds := []string{"ConfigMap", "PersistentVolumeClaim", "Secret"}
	a := newAssigned(t, assigned{kinds: kinds})
	a.o.Sessions = only("c1")
	states := []fleet.Drift{fleet.DriftIgnored, fleet.DriftHeld, fleet.DriftConflict}
	shop := fleet.ModuleRef{Project: "default", Name: "shop"}
	if _, err := storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
		o, _, _ := store.Get[*storev1.ObservedRecord](w, store.ObservedKey("c1", shop))
		st, err := wire.SyncStatusFromProto(o.GetStatus())
		for i := range st.States {
			st.States[i].Drift = states[i]
		}
		w.Put(store.ObservedKey("c1", shop), &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{Total: true, Filter: &towlinev1.ObjectFilter{Drift: "*"}})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := a.ListTrackers(t.Context(), &towlinev1.ListTrackersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if listed, counted := len(list.GetObjects()), int(rows.GetTrackers()[0].GetDrifted()); listed != counted || counted != 2 {
		t.Errorf("%d listed, %d counted", listed, counted)
	}
}

// objectStream gives what is sent to a watch of objects.
type objectStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *towlinev1.WatchObjectsResponse
}

func (s objectStream) Context() context.Context { return s.ctx }

func (s objectStream) Send(r *towlinev1.WatchObjectsResponse) error {
	s.sent <- r
	return nil
}

// An agent that comes back and has nothing new to say stands by what it said before. Who watches the objects hears that.
func TestWatchSeesAnAgentThatStandsByItsWord(t *testing.T) {
	a := newAssigned(t, assigned{kinds: []string{"ConfigMap"}, session: &storev1.SessionRecord{Epoch: 1, WordFrom: 1}})
	a.o.Sessions = only("c1")
	put := func(owner store.Owner, key string, value proto.Message) {
		t.Helper()
		s := a.o.Store.(interface{ As(store.Owner) store.Store }).As(owner)
		if _, err := s.Update(t.Context(), func(w store.Writer) error { w.Put(key, value); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	watch := objectStream{ctx: ctx, sent: make(chan *towlinev1.WatchObjectsResponse, 16)}
	go func() { _ = a.WatchObjects(&towlinev1.WatchObjectsRequest{}, watch) }()
	await := func(health string) {
		t.Helper()
		for {
			select {
			case m := <-watch.sent:
				if m.GetObject().GetHealth() == health {
					return
				}
			case <-ctx.Done():
				t.Fatalf("the watch never said %s", health)
			}
		}
	}
	await("Healthy")
	put(store.Registry, store.SessionKey("c1"), &storev1.SessionRecord{Epoch: 2, WordFrom: 2})
	await("Unknown")
	put(store.Session, store.AckKey("c1"), &storev1.AckRecord{Epoch: 2, WordFrom: 1})
	await("Healthy")
}
