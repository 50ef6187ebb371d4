package api

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/follow"
	"towline.dev/towline/pkg/rollout"
)

// A project has the annotations that it was put with, as modules and clusters do.
func TestProjectHasItsAnnotations(t *testing.T) {
	a := newAPI(t, func(store.Writer) {})
	put := func(want string, annotations map[string]string) {
		t.Helper()
		if _, err := a.o.Store.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		in := &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "web", Annotations: annotations}}
		resp, err := a.PutProject(t.Context(), &towlinev1.PutProjectRequest{Project: in})
		if err != nil || resp.GetResult() != want || resp.GetProject().GetMetadata().GetAnnotations()["team"] != annotations["team"] {
			t.Errorf("%v, %v, want %s", resp, err, want)
		}
	}
	put("created", map[string]string{"team": "a"})
	put("unchanged", map[string]string{"team": "a"})
	put("configured", map[string]string{"team": "b"})
	put("configured", nil)
}

// A project is not called by the word for a kind: secret/db is secret db of the default project, and would go for that of project secret. One that is there
// already may be put.
func TestProjectIsNotCalledAsAKind(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		w.Put(store.ProjectPrefix+"module", &storev1.ProjectRecord{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "module"}}})
	})
	for name, want := range map[string]error{"secret": fleet.ErrInvalid, "rollout": fleet.ErrInvalid, "catalog": nil, "secrets-team": nil, "module": nil} {
		for _, dry := range []bool{true, false} {
			in := &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: name, Labels: map[string]string{"a": "b"}}}
			if _, err := a.PutProject(t.Context(), &towlinev1.PutProjectRequest{Project: in, DryRun: dry}); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
	}
}

// What waits for a person in a project is of that project, or of a cluster as a whole.
func TestHoldsOfAProjectAreItsOwn(t *testing.T) {
	holds := map[string]*towlinev1.Hold{"own": {Project: "a", Catalog: "team"}, "other": {Project: "b", Catalog: "team"}, "module": {Project: "a", Module: "shop"},
		"cluster": {Cluster: "c1", Kind: "Freeze"}}
	a := newAPI(t, func(w store.Writer) {
		for id, h := range holds {
			rec := proto.CloneOf(h)
			rec.Id = id
			w.Put(store.HoldPrefix+id, &storev1.HoldRecord{Hold: rec})
		}
	})
	list, err := a.ListHolds(t.Context(), &towlinev1.ListHoldsRequest{Project: "a"})
	got := map[string]bool{}
	for _, h := range list.GetHolds() {
		got[h.GetId()] = true
	}
	if err != nil || len(got) != 3 || got["other"] {
		t.Errorf("%v, %v", got, err)
	}
}

// No source is looked at while a restore is not settled, and nobody is told that it is.
func TestFollowingStandsStillAfterARestore(t *testing.T) {
	ref := fleet.ModuleRef{Project: "default", Name: "shop"}
	for name, stands := range map[string]bool{"restored": true, "settled": false} {
		a := newAPI(t, func(w store.Writer) {
			putModule(w, ref.Project, ref.Name, func(rec *storev1.ModuleRecord) {
				rec.Module.Spec.Source = &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/a.git"}, Follow: &towlinev1.Follow{Interval: "5m"}}
			})
			w.Put(store.RestoreKey, &storev1.Restore{Stands: stands})
		})
		m, err := a.GetModule(t.Context(), &towlinev1.GetModuleRequest{Name: ref.Name})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range m.GetModule().GetStatus().GetConditions() {
			if c.GetType() != follow.Condition {
				continue
			}
			if stands && (c.GetStatus() != fleet.ConditionFalse || c.GetReason() != rollout.ReasonRestored) || !stands && c.GetReason() != follow.ReasonFollows {
				t.Errorf("%s: %v", name, c)
			}
		}
	}
}
