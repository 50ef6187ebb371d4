package api

import (
	"errors"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// What is not there, or is in no state for what is asked, is named for programs: they need not read sentences.
func TestErrorsNameTheObject(t *testing.T) {
	a := newAPI(t, func(w store.Writer) {
		putRollout(w, putModule(w, "default", "shop", nil), 1, 1, string(rollout.Progressing))
		putModule(w, "default", "new", nil)
		putRollout(w, putModule(w, "default", "going", func(m *storev1.ModuleRecord) { m.Deleting = fleet.DeleteDelete }), 1, 1, "Progressing")
		w.Put(store.ProjectPrefix+"web", &storev1.ProjectRecord{Project: &towlinev1.Project{Metadata: &towlinev1.Metadata{Name: "web"}}})
		putModule(w, "web", "page", nil)
	})
	ctx := t.Context()
	for name, tc := range map[string]struct {
		call  func() error
		kind  error
		about fleet.Object
	}{
		"GetModule": {func() error { _, err := a.GetModule(ctx, &towlinev1.GetModuleRequest{Name: "x"}); return err },
			fleet.ErrNotFound, fleet.Object{Kind: "Module", Name: "default/x"}},
		"DeleteModule": {func() error {
			_, err := a.DeleteModule(ctx, &towlinev1.DeleteModuleRequest{Project: "web", Name: "x"})
			return err
		},
			fleet.ErrNotFound, fleet.Object{Kind: "Module", Name: "web/x"}},
		"GetCluster": {func() error { _, err := a.GetCluster(ctx, &towlinev1.GetClusterRequest{Name: "x"}); return err },
			fleet.ErrNotFound, fleet.Object{Kind: "Cluster", Name: "x"}},
		"RemoveCluster": {func() error { _, err := a.RemoveCluster(ctx, &towlinev1.RemoveClusterRequest{Name: "x"}); return err },
			fleet.ErrNotFound, fleet.Object{Kind: "Cluster", Name: "x"}},
		"GetRollout": {func() error {
			_, err := a.GetRollout(ctx, &towlinev1.GetRolloutRequest{Module: "shop", Number: 9})
			return err
		},
			fleet.ErrNotFound, fleet.Object{Kind: "Rollout", Name: "default/shop/9"}},
		"GetRollout of no module": {func() error {
			_, err := a.GetRollout(ctx, &towlinev1.GetRolloutRequest{Module: "x", Number: 9})
			return err
		},
			fleet.ErrNotFound, fleet.Object{Kind: "Module", Name: "default/x"}},
		"GetRevision": {func() error {
			_, err := a.GetRevision(ctx, &towlinev1.GetRevisionRequest{Module: "shop", Number: 9})
			return err
		},
			fleet.ErrNotFound, fleet.Object{Kind: "Revision", Name: "default/shop/9"}},
		"ConfirmHold": {func() error { _, err := a.ConfirmHold(ctx, &towlinev1.ConfirmHoldRequest{Id: "x"}); return err },
			fleet.ErrNotFound, fleet.Object{Kind: "Hold", Name: "x"}},
		"PutHold": {func() error {
			_, err := a.PutHold(ctx, &towlinev1.PutHoldRequest{Module: "shop", Cluster: "x"})
			return err
		},
			fleet.ErrNotFound, fleet.Object{Kind: "Cluster", Name: "x"}},
		"PinClusters": {func() error {
			_, err := a.PinClusters(ctx, &towlinev1.PinClustersRequest{Module: "shop", Clusters: []string{"x"}})
			return err
		}, fleet.ErrNotFound, fleet.Object{Kind: "Cluster", Name: "x"}},
		"DeleteProject": {func() error { _, err := a.DeleteProject(ctx, &towlinev1.DeleteProjectRequest{Name: "web"}); return err },
			fleet.ErrPrecondition, fleet.Object{Kind: "Project", Name: "web"}},
		"DeleteProject of the one that is always there": {func() error {
			_, err := a.DeleteProject(ctx, &towlinev1.DeleteProjectRequest{Name: "default"})
			return err
		}, fleet.ErrPrecondition, fleet.Object{Kind: "Project", Name: "default"}},
		"PauseRollout": {func() error {
			_, err := a.PauseRollout(ctx, &towlinev1.PauseRolloutRequest{Module: "going"})
			return err
		},
			fleet.ErrPrecondition, fleet.Object{Kind: "Module", Name: "default/going"}},
		"PutAssignments": {func() error {
			_, err := a.PutAssignments(ctx, &towlinev1.PutAssignmentsRequest{Module: "going", Revision: 1})
			return err
		}, fleet.ErrPrecondition, fleet.Object{Kind: "Module", Name: "default/going"}},
	} {
		if err := tc.call(); !errors.Is(err, tc.kind) || fleet.HintOf(err).About != tc.about {
			t.Errorf("%s: %v, about %+v", name, err, fleet.HintOf(err).About)
		}
	}
}
