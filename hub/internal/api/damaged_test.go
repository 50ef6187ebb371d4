package api

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

var damagedShop = fleet.ModuleRef{Project: "default", Name: "shop"}

// content stands for the bundle of shop instead of the key of a record.
const content = "content"

// newDamaged is an API over a store in which one bit of the record is flipped: modules shop and other in clusters c1 and c2,
// with rollouts shop/1 and shop/2.
func newDamaged(t *testing.T, key string) *API {
	t.Helper()
	b := memory.New()
	s := storetest.On(t, b, engine.Options{StandIn: record.StandIn, BlobCacheBytes: 1})
	a, err := New(Options{Store: s.As(store.API), Bundles: bundle.New(s.Blobs()), Sessions: away{}, Registry: newRegistry(t, s), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1", Digest: fleet.DigestOf([]byte("a"))}}
	digest, bundled := assemble.BundleDigest(entries)
	otherDigest, otherBundled := assemble.BundleDigest([]fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "b"}, Version: "v1", Digest: fleet.DigestOf([]byte("b"))}})
	policies, err := wire.PolicySetContent(fleet.PolicySet{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Blobs().Put(t.Context(), bundled, otherBundled, policies); err != nil {
		t.Fatal(err)
	}
	if _, err = s.Update(t.Context(), func(w store.Writer) error {
		putModule(w, "default", "shop", func(m *storev1.ModuleRecord) { m.Module.Metadata.Generation = 2 })
		putModule(w, "default", "other", nil)
		putRollout(w, damagedShop, 1, 1, "Succeeded")
		putRollout(w, damagedShop, 2, 2, "Succeeded")
		for n := range int64(2) {
			w.Put(store.RevisionKey(damagedShop, n+1), &storev1.RevisionRecord{Bundle: digest.Bytes(), Policies: fleet.DigestOf(policies).Bytes(),
				Revision: &towlinev1.Revision{Number: n + 1, Module: "shop", Metadata: &towlinev1.Metadata{Project: "default"}}})
			w.Put(store.ChunkKey(damagedShop, n+1, 0), &storev1.RolloutChunk{Data: []byte("members")})
		}
		w.Put(store.GenerationKey, &storev1.Counter{Value: 2})
		w.Put(store.VerbKey(damagedShop, 2, 1), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbResume}})
		for _, c := range []fleet.ClusterName{"c1", "c2"} {
			w.Put(store.SessionKey(c), &storev1.SessionRecord{Epoch: 3, AgentVersion: "1"})
			w.Put(store.AckKey(c), &storev1.AckRecord{Epoch: 3, Generation: 2})
			w.Put(store.ConditionKey(c), &storev1.ConditionsRecord{Epoch: 3})
			w.Put(store.FloorKey(c), &storev1.FloorRecord{Generation: 1})
			w.Put(store.ObservedKey(c, damagedShop), &storev1.ObservedRecord{Epoch: 3, Since: 1})
			w.Put(store.ClusterKey(c), &storev1.ClusterRecord{Joined: timestamppb.Now(), Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(c)}}})
			w.Put(store.DesiredKey(c, damagedShop), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: damagedShop, Generation: 2, Revision: 2,
				Bundle: digest, Objects: 1, Policies: fleet.DigestOf(policies)})})
			if key != content {
				continue
			}
			other := fleet.ModuleRef{Project: "default", Name: "other"}
			w.Put(store.DesiredKey(c, other), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: other, Generation: 2, Revision: 1, Bundle: otherDigest, Objects: 1, Policies: fleet.DigestOf(policies)})})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if key == content {
		if _, _, err := b.Commit(t.Context(), []backend.Part{{Then: []backend.Op{{Key: "b/blobchunks/" + digest.String() + "/0000", Value: []byte("not that")}}}}); err != nil {
			t.Fatal(err)
		}
	} else {
		storetest.Damage(t, b, key)
	}
	if _, err := s.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *API) rowsOf(t *testing.T) (modules map[string]*towlinev1.ModuleStatus, clusters map[string]*towlinev1.ClusterStatus) {
	t.Helper()
	modules, clusters = map[string]*towlinev1.ModuleStatus{}, map[string]*towlinev1.ClusterStatus{}
	if _, err := a.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	m, err := a.ListModules(t.Context(), &towlinev1.ListModulesRequest{})
	if err != nil {
		t.Fatalf("modules: %v", err)
	}
	for _, x := range m.GetModules() {
		modules[x.GetMetadata().GetName()] = x.GetStatus()
	}
	c, err := a.ListClusters(t.Context(), &towlinev1.ListClustersRequest{})
	if err != nil {
		t.Fatalf("clusters: %v", err)
	}
	for _, x := range c.GetClusters() {
		clusters[x.GetMetadata().GetName()] = x.GetStatus()
	}
	if len(modules) != 2 || len(clusters) != 2 {
		t.Errorf("modules %v, clusters %v", modules, clusters)
	}
	return modules, clusters
}

func putShop() *towlinev1.PutModuleRequest {
	return &towlinev1.PutModuleRequest{Module: &towlinev1.Module{ApiVersion: fleet.APIVersion, Kind: "Module", Metadata: &towlinev1.Metadata{Name: "shop"}, Spec: &towlinev1.ModuleSpec{
		Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}},
		Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}}
}

// A module whose record cannot be read is listed as that, stops no list, and is mended by putting it, or goes by deleting it.
func TestDamagedModule(t *testing.T) {
	a := newDamaged(t, store.ModuleKey(damagedShop))
	modules, _ := a.rowsOf(t)
	if s := modules["shop"]; s.GetRolloutState() != stateDamaged || s.GetClusters() != 2 || s.GetAway() != 2 || s.GetRolloutReason() != fleet.ReasonDamagedModule {
		t.Errorf("%v", s)
	}
	_, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"})
	if !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), "towline delete module shop") || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("get: %v", err)
	}
	if list, err := a.ListRollouts(t.Context(), &towlinev1.ListRolloutsRequest{}); err != nil || len(list.GetRollouts()) != 2 {
		t.Errorf("rollouts: %v, %v", list, err)
	}
	put, err := a.PutModule(t.Context(), putShop())
	if err != nil || put.GetResult() != resultConfigured || put.GetRollout() != "shop/3" || put.GetWarnings()[0].GetCode() != fleet.WarnDamaged {
		t.Fatalf("put: %v, %v", put, err)
	}
	if modules, _ = a.rowsOf(t); modules["shop"].GetRollout() != "shop/3" {
		t.Errorf("after that: %v", modules["shop"])
	}

	a = newDamaged(t, store.ModuleKey(damagedShop))
	if _, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop"}); err != nil {
		t.Fatalf("delete: %v", err)
	}
	if modules, _ = a.rowsOf(t); modules["shop"].GetRolloutState() != "Deleting" {
		t.Errorf("after that: %v", modules["shop"])
	}
}

// A rollout whose record cannot be read stops no list, and putting the module, as it is, begins another.
func TestDamagedRollout(t *testing.T) {
	a := newDamaged(t, store.RolloutKey(damagedShop, 2))
	modules, _ := a.rowsOf(t)
	if s := modules["shop"]; s.GetRolloutState() != stateDamaged || s.GetRollout() != "shop/2" || s.GetConditions()[0].GetStatus() == fleet.ConditionTrue {
		t.Errorf("%v", s)
	}
	if _, err := a.PauseRollout(t.Context(), &towlinev1.PauseRolloutRequest{Module: "shop"}); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("a verb meant for it went to another: %v", err)
	}
	for range 2 {
		put, err := a.PutModule(t.Context(), putShop())
		if err != nil || put.GetRollout() != "shop/3" && put.GetRollout() != "shop/4" {
			t.Fatalf("put: %v, %v", put, err)
		}
	}
	// One that is not the newest is history.
	a = newDamaged(t, store.RolloutKey(damagedShop, 1))
	if modules, _ = a.rowsOf(t); modules["shop"].GetRolloutState() != "Succeeded" {
		t.Errorf("an older one: %v", modules["shop"])
	}
}

// A cluster whose record cannot be read is listed as that, counts as away, and can be forgotten to join again.
func TestDamagedCluster(t *testing.T) {
	a := newDamaged(t, store.ClusterKey("c1"))
	modules, clusters := a.rowsOf(t)
	if s := modules["shop"]; s.GetClusters() != 2 || s.GetAway() != 2 {
		t.Errorf("%v", s)
	}
	if s := clusters["c1"]; s.GetState() != stateDamaged || s.GetModules() != 1 || s.GetAttention().GetCode() != fleet.AttentionDamaged {
		t.Errorf("%v", s)
	}
	if _, err := a.GetCluster(t.Context(), &towlinev1.GetClusterRequest{Name: "c1"}); !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), "towline cluster join c1") {
		t.Errorf("get: %v", err)
	}
	if _, err := a.RemoveCluster(t.Context(), &towlinev1.RemoveClusterRequest{Name: "c1", Objects: "delete"}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("remove with its objects: %v", err)
	}
	if _, err := a.RemoveCluster(t.Context(), &towlinev1.RemoveClusterRequest{Name: "c1"}); err != nil {
		t.Fatalf("remove: %v", err)
	}
	if _, clusters = a.rowsOf(t); clusters["c1"].GetState() != string(fleet.ClusterRemoving) {
		t.Errorf("after that: %v", clusters["c1"])
	}

	a = newDamaged(t, store.ClusterKey("c1"))
	named := putShop()
	named.Module.Spec.Placement = &towlinev1.Placement{Clusters: []string{"c1", "c2"}}
	if put, err := a.PutModule(t.Context(), named); err != nil || slices.ContainsFunc(put.GetWarnings(), func(n *towlinev1.Note) bool { return n.GetCode() == fleet.WarnNoSuchCluster }) {
		t.Errorf("a module whose placement names it: %v, %v", put, err)
	}
	pin := &towlinev1.PinClustersRequest{Module: "shop", Number: 2, Clusters: []string{"c1"}}
	if _, err := a.PinClusters(t.Context(), pin); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("pin: %v", err)
	}
}

// Whatever record cannot be read, every list can.
func TestDamageOfOneRecordStopsNoList(t *testing.T) {
	for name, key := range map[string]string{
		"session": store.SessionKey("c1"), "generation": store.GenerationKey, "revision": store.RevisionKey(damagedShop, 2),
		"older revision": store.RevisionKey(damagedShop, 1), "chunk": store.ChunkKey(damagedShop, 2, 0), "verb": store.VerbKey(damagedShop, 2, 1),
		"assignment": store.DesiredKey("c1", damagedShop), "report": store.ObservedKey("c1", damagedShop), "acknowledged": store.AckKey("c1"),
		"conditions": store.ConditionKey("c1"), "floor": store.FloorKey("c1"), "rollout": store.RolloutKey(damagedShop, 2),
		"module": store.ModuleKey(damagedShop), "cluster": store.ClusterKey("c1"),
	} {
		t.Run(name, func(t *testing.T) {
			a := newDamaged(t, key)
			modules, _ := a.rowsOf(t)
			if s := modules["shop"]; name != "module" && s.GetRevision() != 2 {
				t.Errorf("the newest revision: %v", s)
			}
			if _, err := a.ListTrackers(t.Context(), &towlinev1.ListTrackersRequest{}); err != nil {
				t.Errorf("trackers: %v", err)
			}
			if _, err := a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{}); err != nil {
				t.Errorf("objects: %v", err)
			}
			if _, err := a.ListRollouts(t.Context(), &towlinev1.ListRolloutsRequest{}); err != nil {
				t.Errorf("rollouts: %v", err)
			}
			if _, err := a.ListRevisions(t.Context(), &towlinev1.ListRevisionsRequest{}); err != nil {
				t.Errorf("revisions: %v", err)
			}
			got, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", DryRun: true})
			if err != nil || got.GetObjects() == 0 {
				t.Errorf("what a deletion would do: %v, %v", got, err)
			}
			if _, err := a.ListHolds(t.Context(), &towlinev1.ListHoldsRequest{}); err != nil {
				t.Errorf("holds: %v", err)
			}
		})
	}
}

// TestDamagedContentStopsNoList: where the content that names the objects of a module cannot be read, its row says so, and all others are listed,
// watched and explained.
func TestDamagedContentStopsNoList(t *testing.T) {
	a := newDamaged(t, content)
	for _, f := range []*towlinev1.ObjectFilter{{}, {Kind: "ConfigMap"}, {Health: "Unknown"}} {
		r, err := a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{Filter: f, PageSize: 10})
		if err != nil {
			t.Fatalf("%v: %v", f, err)
		}
		var got []string
		for _, o := range r.GetObjects() {
			got = append(got, o.GetCluster()+" "+o.GetObject().GetKind()+" "+o.GetObject().GetName()+" "+o.GetReason())
		}
		if want := []string{"c1 ConfigMap b ", "c1 Module shop DamagedRecord", "c2 ConfigMap b ", "c2 Module shop DamagedRecord"}; !slices.Equal(got, want) {
			t.Fatalf("%v: %q, want %q", f, got, want)
		}
		if o := r.GetObjects()[1]; !strings.Contains(o.GetMessage(), "its 1 objects cannot be listed") || o.GetHealth() != "Unknown" {
			t.Errorf("%v", o)
		}
	}
	explain := func(name string) error {
		_, err := a.ExplainObject(t.Context(), &towlinev1.ExplainObjectRequest{Cluster: "c1", Object: &towlinev1.ObjectReference{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "shop", Name: name}})
		return err
	}
	if err := explain("b"); err != nil {
		t.Errorf("of another module: %v", err)
	}
	if err := explain("a"); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("of that module: %v", err)
	}
}

// TestDamagedContentHidesNoDrift: what drifts or ails cannot be listed. Who asks for that is told so, and not that nothing does.
func TestDamagedContentHidesNoDrift(t *testing.T) {
	a := newDamaged(t, content)
	if _, err := storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
		d, _, _ := store.Get[*storev1.DesiredRecord](w, store.DesiredKey("c1", damagedShop))
		st := fleet.SyncStatus{Module: damagedShop, Generation: 2, Bundle: record.Digest(d.GetSync().GetBundle()), Phase: fleet.PhaseApplied,
			States: []fleet.ObjectState{{Sync: fleet.SyncSynced, Health: fleet.HealthDegraded, Drift: fleet.DriftDrifted}}}
		w.Put(store.ObservedKey("c1", damagedShop), &storev1.ObservedRecord{Epoch: 3, Since: 1, Status: wire.SyncStatusToProto(st)})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*towlinev1.ObjectFilter{{Drift: "*"}, {Drift: "Drifted"}, {Health: "Degraded"}} {
		f.Cluster = "c1"
		r, err := a.ListObjects(t.Context(), &towlinev1.ListObjectsRequest{Filter: f, PageSize: 10})
		if err != nil || len(r.GetObjects()) != 1 || r.GetObjects()[0].GetReason() != fleet.AttentionDamaged {
			t.Errorf("%v: %v, %v", f, r.GetObjects(), err)
		}
	}
	if _, err := a.eventTargets(t.Context(), &towlinev1.ObjectFilter{Cluster: "c1", Name: "a"}, 0); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("events of an object that it may have: %v", err)
	}
	if targets, err := a.eventTargets(t.Context(), &towlinev1.ObjectFilter{Cluster: "c1", Name: "b"}, 0); err != nil || len(targets) != 1 {
		t.Errorf("events of an object of another module: %v, %v", targets, err)
	}
}

// TestDamagedContentKeepsNoModule: what a deletion takes cannot be told, so that all may go.
func TestDamagedContentKeepsNoModule(t *testing.T) {
	a := newDamaged(t, content)
	resp, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", DryRun: true})
	if err != nil || resp.GetClusters() != 2 || resp.GetObjects() != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	if _, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop"}); err != nil {
		t.Error(err)
	}
}

// A revision that cannot be read, or the clusters of a rollout, are mended by putting the module again, as it is.
func TestPutTakesThePlaceOfWhatIsDamaged(t *testing.T) {
	for name, key := range map[string]string{
		"none": store.SessionKey("c1"), "revision": store.RevisionKey(damagedShop, 2), "chunk": store.ChunkKey(damagedShop, 2, 0),
	} {
		a := newDamaged(t, key)
		if name == "chunk" {
			if modules, _ := a.rowsOf(t); modules["shop"].GetRolloutState() != stateDamaged {
				t.Errorf("%s: %v", name, modules["shop"])
			}
			for _, number := range []int64{0, 2} {
				got, err := a.GetRollout(t.Context(), &towlinev1.GetRolloutRequest{Module: "shop", Number: number})
				if !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), "towline apply") {
					t.Errorf("rollout %d: %v, %v", number, got, err)
				}
			}
		}
		if _, err := a.o.Store.(interface {
			As(store.Owner) store.Store
		}).As(store.Everyone).Update(t.Context(), func(w store.Writer) error {
			rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(damagedShop))
			rec = proto.CloneOf(rec)
			digest, err := wire.SpecDigest(putShop().GetModule().GetSpec())
			rec.SpecDigest = digest.Bytes()
			w.Put(store.ModuleKey(damagedShop), rec)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		want := "shop/3"
		if name == "none" {
			want = ""
		}
		put, err := a.PutModule(t.Context(), putShop())
		if err != nil || put.GetRollout() != want {
			t.Errorf("%s: %v, %v; want rollout %q", name, put, err, want)
		}
	}
}

// A verb that cannot be read keeps no other from being given.
func TestDamagedVerbKeepsNoOther(t *testing.T) {
	a := newDamaged(t, store.VerbKey(damagedShop, 2, 1))
	if _, err := a.o.Store.Update(t.Context(), func(w store.Writer) error {
		was, err := a.say(t.Context(), w, damagedShop, &towlinev1.PauseRolloutRequest{}, &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbPause}})
		if was.key != store.VerbKey(damagedShop, 2, 2) {
			t.Errorf("pause is %s", was.key)
		}
		return err
	}); err != nil {
		t.Errorf("pause: %v", err)
	}
}

// A retry whose rollout waits for its revision, and cannot be read any more, is a retry still: its repeat is told what is damaged.
func TestRepeatOfARetryThatIsDamaged(t *testing.T) {
	b := memory.New()
	a := newAPIOn(t, storetest.On(t, b, engine.Options{StandIn: record.StandIn}), func(w store.Writer) {
		putRollout(w, putModule(w, "default", "shop", nil), 1, 0, "Failed")
		w.Put(store.VerbKey(damagedShop, 1, 1), &storev1.VerbRecord{RequestId: "x", Started: 2, Verb: &towlinev1.VerbRecord{Verb: rollout.VerbRetry}})
		w.Put(store.StartKey(damagedShop, 2), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Number: 2}})
	})
	storetest.Damage(t, b, store.StartKey(damagedShop, 2))
	if _, err := a.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := a.RetryRollout(t.Context(), &towlinev1.RetryRolloutRequest{Module: "shop", RequestId: "x"})
	if !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), "shop/2 is damaged") {
		t.Errorf("%v", err)
	}
}

// What a deleted module of the name left behind stays that module's, however often the new one is put.
func TestFirstNumbersStay(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		putModule(w, "default", "shop", func(m *storev1.ModuleRecord) { m.FirstRollout, m.FirstRevision = 6, 4 })
		for n := int64(1); n < 8; n++ {
			putRollout(w, damagedShop, n, n, "Succeeded")
		}
	})
	if _, err := a.PutModule(t.Context(), putShop()); err != nil {
		t.Fatal(err)
	}
	if list, err := a.ListRollouts(t.Context(), &towlinev1.ListRolloutsRequest{Module: "shop"}); err != nil || len(list.GetRollouts()) != 3 {
		t.Errorf("shop/6 to shop/8: %v, %v", list, err)
	}
}

// TestProjectWhoseModuleCannotBeReadIsNotDeleted: what it has counts, and is put again in it.
func TestProjectWhoseModuleCannotBeReadIsNotDeleted(t *testing.T) {
	for _, key := range []string{store.ModuleKey(fleet.ModuleRef{Project: "web", Name: "shop"}), store.CatalogKey(fleet.ModuleRef{Project: "web", Name: "team"})} {
		b := memory.New()
		s := storetest.On(t, b, engine.Options{StandIn: record.StandIn})
		a := newAPIOn(t, s, func(w store.Writer) {
			w.Put(store.ProjectPrefix+"web", &storev1.ProjectRecord{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "web"}}})
			if strings.HasPrefix(key, store.ModulePrefix) {
				w.Put(key, &storev1.ModuleRecord{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop", Project: "web"}}})
			} else {
				w.Put(key, &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "team", Project: "web"}}})
			}
		})
		storetest.Damage(t, b, key)
		if _, err := s.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := a.DeleteProject(t.Context(), &towlinev1.DeleteProjectRequest{Name: "web"}); !errors.Is(err, fleet.ErrPrecondition) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// TestDamagedCatalogIsDeletedAsItWasSeen: a list shows of which catalog the last look was, and a deletion of that is not one of another that has the name by then.
func TestDamagedCatalogIsDeletedAsItWasSeen(t *testing.T) {
	ref, b := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}, memory.New()
	s := storetest.On(t, b, engine.Options{StandIn: record.StandIn})
	a := newAPIOn(t, s, func(w store.Writer) {
		w.Put(store.CatalogKey(ref), &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: ref.Name, Project: ref.Project, Uid: "u"}}})
		w.Put(store.CatalogStateKey(ref), &storev1.CatalogState{CatalogUid: "u", Status: &towlinev1.CatalogStatus{}})
	})
	storetest.Damage(t, b, store.CatalogKey(ref))
	at, err := s.Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	list, err := a.ListCatalogs(t.Context(), &towlinev1.ListCatalogsRequest{MinRevision: at})
	if err != nil || len(list.GetCatalogs()) != 1 || list.GetCatalogs()[0].GetMetadata().GetUid() != "u" {
		t.Fatalf("%v, %v", list, err)
	}
	remove := func(uid string, cascade bool) error {
		_, err := a.DeleteCatalog(t.Context(), &towlinev1.DeleteCatalogRequest{Name: ref.Name, Uid: uid, Cascade: cascade})
		return err
	}
	if err := remove("v", false); !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "another one") {
		t.Errorf("another one: %v", err)
	}
	if err := remove("u", true); !errors.Is(err, fleet.ErrPrecondition) || !strings.HasPrefix(err.Error(), record.DamagedCatalog(ref)) {
		t.Errorf("with its modules: %v", err)
	}
	if err := remove("u", false); err != nil {
		t.Errorf("as it was seen: %v", err)
	}
}

// TestWhatIsDamagedIsHeld: a module or a cluster whose record cannot be read is there, and is frozen as any other.
func TestWhatIsDamagedIsHeld(t *testing.T) {
	for key, req := range map[string]*towlinev1.PutHoldRequest{
		store.ModuleKey(damagedShop): {Module: "shop", ModuleUid: "uid-1"},
		store.ClusterKey("c1"):       {Cluster: "c1", ClusterUid: "uid-1"},
	} {
		a := newDamaged(t, key)
		put, err := a.PutHold(t.Context(), req)
		if err != nil {
			t.Errorf("%s: %v", key, err)
			continue
		}
		if err := a.o.Store.View(t.Context(), put.GetRevision(), func(r store.Reader) error {
			if !record.ReadHolds(r, a.now()).Frozen(damagedShop, "c1") {
				t.Errorf("%s: is not held", key)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
