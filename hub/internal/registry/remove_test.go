package registry_test

import (
	"errors"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A removal that is under way ends when the cluster is revoked: nobody waits for its agent any more, and what is not deleted yet stays.
func TestRevokeEndsARemoval(t *testing.T) {
	w := newWorld(t)
	w.join("a", "uid-1")
	if _, _, err := w.RemoveCluster(t.Context(), "a", registry.Removal{Objects: "delete"}, registry.Word{By: "ana"}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Revoke(t.Context(), ana, "a", "", "the wrong cluster"); err != nil {
		t.Fatal(err)
	}
	if rec := w.cluster("a"); !rec.GetRevoked() || rec.GetRemoving() != "" || rec.GetCluster().GetMetadata().GetDeletionTimestamp() != nil {
		t.Errorf("the record is %v", rec)
	}
	w.token("a", true) // it may join anew
}

// A cluster that leaves gets no token: its agent, or another one, that joined by it would be told to leave as the one that is meant.
func TestNoTokenForAClusterThatLeaves(t *testing.T) {
	for _, objects := range []string{"keep", "delete"} {
		w := newWorld(t)
		w.join("a", "uid-1")
		if _, _, err := w.RemoveCluster(t.Context(), "a", registry.Removal{Objects: objects}, registry.Word{By: "ana"}); err != nil {
			t.Fatal(err)
		}
		if got, err := w.CreateJoin(t.Context(), ana, registry.JoinRequest{Cluster: "a", Reissue: true}); !errors.Is(err, fleet.ErrPrecondition) || got.Token != "" {
			t.Errorf("%s: a token %t, %v", objects, got.Token != "", err)
		}
	}
}

// Who is told nothing any more deletes nothing, and nobody may ask for that; nor does a removal say that somebody is told who is not let in.
func TestNobodyIsToldToDeleteWhoIsToldNothing(t *testing.T) {
	nothing := func(*world) error { return nil }
	lock := func(w *world) error { w.lock("a"); return nil }
	revoke := func(w *world) error { _, err := w.Revoke(t.Context(), ana, "a", "", "lost"); return err }
	for name, tc := range map[string]struct {
		before  func(*world) error
		objects string
		force   bool
		told    bool
		refused bool
	}{
		"objects are deleted":                          {nothing, "delete", false, true, false},
		"objects are kept":                             {nothing, "keep", false, true, false},
		"objects are deleted, by force":                {nothing, "delete", true, false, true},
		"objects are kept, by force":                   {nothing, "keep", true, false, false},
		"objects of a revoked cluster are deleted":     {revoke, "delete", false, false, true},
		"objects of a revoked cluster are kept":        {revoke, "keep", false, false, false},
		"a locked one deletes when it is unlocked":     {lock, "delete", false, false, false},
		"objects of a locked one are deleted by force": {lock, "delete", true, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.join("a", "uid-1")
			if err := tc.before(w); err != nil {
				t.Fatal(err)
			}
			rev, told, err := w.RemoveCluster(t.Context(), "a", registry.Removal{Objects: tc.objects, Force: tc.force}, registry.Word{By: "ana"})
			if err == nil && told != tc.told || errors.Is(err, fleet.ErrPrecondition) != tc.refused || err != nil && !tc.refused {
				t.Errorf("told %v, %v", told, err)
			}
			var rec *storev1.ClusterRecord
			if err := w.store.View(t.Context(), rev, func(r store.Reader) error {
				rec, _, _ = store.Get[*storev1.ClusterRecord](r, store.ClusterKey("a"))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			switch {
			case tc.refused && rec.GetRemoving() != "":
				t.Errorf("refused and done: %v", rec)
			case !tc.refused && (rec.GetRemoving() != tc.objects || tc.force && !rec.GetRevoked()):
				t.Errorf("the record is %v", rec)
			}
		})
	}
}
