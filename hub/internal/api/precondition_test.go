package api

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// remade has a cluster, a project and modules that were deleted and made again: what somebody saw of them had the UID one.
func remade(t *testing.T) *API {
	t.Helper()
	meta := func(name string) *towlinev1.Metadata {
		return &towlinev1.Metadata{Name: name, Uid: "two", Generation: 1}
	}
	return newAPI(t, func(w store.Writer) {
		w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: meta("c1"), Spec: &towlinev1.ClusterSpec{}}})
		w.Put(store.ProjectPrefix+"web", &storev1.ProjectRecord{Project: &towlinev1.Project{Metadata: meta("web")}})
		ref := putModule(w, "default", "shop", func(rec *storev1.ModuleRecord) { rec.Module.Metadata.Uid, rec.Module.Metadata.Generation = "two", 1 })
		putRollout(w, ref, 1, 1, string(rollout.Progressing))
		putModule(w, "default", "outside", func(rec *storev1.ModuleRecord) {
			rec.Module.Metadata.Uid = "two"
			rec.Module.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		})
	})
}

// What somebody asks of the object that they saw is not done to another one that has its name by now.
func TestRequestsAreOfTheObjectThatWasSeen(t *testing.T) {
	put := func(uid string) *towlinev1.Module {
		m := &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop", Uid: uid}, Spec: &towlinev1.ModuleSpec{
			Source:    &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}},
			Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}
		return m
	}
	for name, call := range map[string]func(a *API, uid string) error{
		"DeleteModule": func(a *API, uid string) error {
			_, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", Uid: uid})
			return err
		},
		"DeleteModule, dry run": func(a *API, uid string) error {
			_, err := a.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop", Uid: uid, DryRun: true})
			return err
		},
		"PutModule": func(a *API, uid string) error {
			_, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: put(uid)})
			return err
		},
		"PutCluster": func(a *API, uid string) error {
			_, err := a.PutCluster(t.Context(), &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1", Uid: uid}}})
			return err
		},
		"PutProject": func(a *API, uid string) error {
			_, err := a.PutProject(t.Context(), &towlinev1.PutProjectRequest{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "web", Uid: uid}}})
			return err
		},
		"RemoveCluster": func(a *API, uid string) error {
			_, err := a.RemoveCluster(t.Context(), &towlinev1.RemoveClusterRequest{Name: "c1", Uid: uid})
			return err
		},
		"DeleteProject": func(a *API, uid string) error {
			_, err := a.DeleteProject(t.Context(), &towlinev1.DeleteProjectRequest{Name: "web", Uid: uid})
			return err
		},
		"PutHold of a module": func(a *API, uid string) error {
			_, err := a.PutHold(t.Context(), &towlinev1.PutHoldRequest{Module: "shop", ModuleUid: uid})
			return err
		},
		"PutHold of a cluster": func(a *API, uid string) error {
			_, err := a.PutHold(t.Context(), &towlinev1.PutHoldRequest{Cluster: "c1", ClusterUid: uid})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := remade(t)
			before := a.written(t)
			err := call(a, "one")
			if !errors.Is(err, fleet.ErrPrecondition) || fleet.HintOf(err).Unmet != fleet.PreconditionUID {
				t.Errorf("of one that is gone: %v", err)
			}
			if now := a.written(t); now != before {
				t.Errorf("something was written: revision %d, was %d", now, before)
			}
			if err := call(a, "two"); err != nil {
				t.Errorf("of the one that is there: %v", err)
			}
		})
	}
	for name, call := range map[string]func(a *API) error{
		"a word to a rollout": func(a *API) error {
			_, err := a.PauseRollout(t.Context(), &towlinev1.PauseRolloutRequest{Module: "shop", ModuleUid: "one"})
			return err
		},
		"DeleteAssignments": func(a *API) error {
			_, err := a.DeleteAssignments(t.Context(), &towlinev1.DeleteAssignmentsRequest{Module: "outside", ModuleUid: "one", Clusters: []string{"c1"}})
			return err
		},
		"PutAssignments": func(a *API) error {
			_, err := a.PutAssignments(t.Context(), &towlinev1.PutAssignmentsRequest{Module: "outside", ModuleUid: "one", Revision: 1, Clusters: []string{"c1"}})
			return err
		},
	} {
		if err := call(remade(t)); !errors.Is(err, fleet.ErrPrecondition) || fleet.HintOf(err).Unmet != fleet.PreconditionUID {
			t.Errorf("%s: of one that is gone: %v", name, err)
		}
	}
}

// written is the revision of the newest write.
func (a *API) written(t *testing.T) (newest int64) {
	t.Helper()
	if _, err := a.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		r.Scan("", func(e store.Entry) bool {
			newest = max(newest, e.ModRevision)
			return true
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return newest
}

// A change of labels is no new generation of a module; with the resource version it loses no race either.
func TestPutWithAResourceVersionLosesNoRace(t *testing.T) {
	a := remade(t)
	for name, tc := range map[string]struct {
		read func() *towlinev1.Metadata
		put  func(*towlinev1.Metadata) error
	}{
		"a module": {func() *towlinev1.Metadata {
			got, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetModule().GetMetadata()
		}, func(meta *towlinev1.Metadata) error {
			got, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: "shop"})
			if err == nil {
				_, err = a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: &towlinev1.Module{Metadata: meta, Spec: got.GetModule().GetSpec()}})
			}
			return err
		}},
		"a cluster": {func() *towlinev1.Metadata {
			got, err := a.GetCluster(t.Context(), &towlinev1.GetClusterRequest{Name: "c1"})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetCluster().GetMetadata()
		}, func(meta *towlinev1.Metadata) error {
			_, err := a.PutCluster(t.Context(), &towlinev1.PutClusterRequest{Cluster: &towlinev1.Cluster{Metadata: meta}})
			return err
		}},
		"a project": {func() *towlinev1.Metadata {
			got, err := a.ListProjects(t.Context(), &towlinev1.ListProjectsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return got.GetProjects()[1].GetMetadata()
		}, func(meta *towlinev1.Metadata) error {
			_, err := a.PutProject(t.Context(), &towlinev1.PutProjectRequest{Project: &towlinev1.Project{Metadata: meta}})
			return err
		}},
	} {
		seen := func(label string) *towlinev1.Metadata {
			a.written(t)
			meta := proto.CloneOf(tc.read())
			meta.Generation, meta.Labels = 0, map[string]string{"by": label}
			return meta
		}
		first, second := seen("first"), seen("second")
		if err := tc.put(first); err != nil || first.GetResourceVersion() == 0 {
			t.Errorf("%s: the first, of version %d: %v", name, first.GetResourceVersion(), err)
		}
		a.written(t)
		if err := tc.put(second); !errors.Is(err, fleet.ErrConflict) || fleet.HintOf(err).Unmet != fleet.PreconditionVersion {
			t.Errorf("%s: the second: %v", name, err)
		}
		if err := tc.put(seen("third")); err != nil {
			t.Errorf("%s: read again: %v", name, err)
		}
	}
}

// A put of a spec that was read fails if somebody put another one meanwhile.
func TestPutOfAProjectLosesNoRace(t *testing.T) {
	a := remade(t)
	in := &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "web", Uid: "two", Generation: 1, Labels: map[string]string{"a": "b"}}}
	if _, err := a.PutProject(t.Context(), &towlinev1.PutProjectRequest{Project: proto.CloneOf(in)}); err != nil {
		t.Fatal(err)
	}
	in.Metadata.Labels["a"] = "c"
	_, err := a.PutProject(t.Context(), &towlinev1.PutProjectRequest{Project: in})
	if !errors.Is(err, fleet.ErrConflict) || fleet.HintOf(err).Unmet != fleet.PreconditionGeneration {
		t.Errorf("the second of the same generation: %v", err)
	}
}

// A hold that was ended and put anew has the same id and digest: who ends the one that they saw does not end the other.
func TestHoldThatWasSeenIsTheOneThatEnds(t *testing.T) {
	a := remade(t)
	put := func() *towlinev1.Hold {
		t.Helper()
		if _, err := a.PutHold(t.Context(), &towlinev1.PutHoldRequest{Cluster: "c1"}); err != nil {
			t.Fatal(err)
		}
		a.written(t)
		list, err := a.ListHolds(t.Context(), &towlinev1.ListHoldsRequest{})
		if err != nil || len(list.GetHolds()) != 1 || list.GetHolds()[0].GetResourceVersion() == 0 {
			t.Fatalf("%v, %v", list, err)
		}
		return list.GetHolds()[0]
	}
	end := func(h *towlinev1.Hold) error {
		_, err := a.ConfirmHold(t.Context(), &towlinev1.ConfirmHoldRequest{Id: h.GetId(), Digest: h.GetDigest(), ResourceVersion: h.GetResourceVersion()})
		return err
	}
	first := put()
	if err := end(first); err != nil {
		t.Fatal(err)
	}
	second := put()
	if err := end(first); !errors.Is(err, fleet.ErrConflict) || fleet.HintOf(err).Unmet != fleet.PreconditionVersion {
		t.Errorf("the first again: %v", err)
	}
	if err := end(second); err != nil {
		t.Error(err)
	}
}

// meanwhile does something once, after a transaction has decided and before it commits.
type meanwhile struct {
	store.Store
	do func()
}

func (m *meanwhile) Update(ctx context.Context, fn func(store.Writer) error) (int64, error) {
	return m.Store.Update(ctx, func(w store.Writer) error {
		err := fn(w)
		if do := m.do; do != nil {
			m.do = nil
			do()
		}
		return err
	})
}

// A module that is put into a project while that is being deleted, because it was empty, keeps it.
func TestModuleIsPutIntoAProjectThatIsBeingDeleted(t *testing.T) {
	a := remade(t)
	late := &meanwhile{Store: a.o.Store}
	a.o.Store = late
	late.do = func() {
		if _, err := a.PutModule(t.Context(), &towlinev1.PutModuleRequest{Module: &towlinev1.Module{Metadata: &towlinev1.Metadata{Name: "shop", Project: "web"},
			Spec: &towlinev1.ModuleSpec{Source: &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: map[string]string{"a.yaml": "a"}}},
				Placement: &towlinev1.Placement{Selector: &towlinev1.LabelSelector{}}}}}); err != nil {
			t.Error(err)
		}
	}
	if _, err := a.DeleteProject(t.Context(), &towlinev1.DeleteProjectRequest{Name: "web"}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("deleted with a module in it: %v", err)
	}
}
