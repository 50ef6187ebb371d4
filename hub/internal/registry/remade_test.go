package registry_test

import (
	"errors"
	"testing"

	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/pkg/fleet"
)

// What somebody asks of the cluster or the user that they saw is not done to another one that has the name by now.
func TestRequestsAreOfWhatWasSeen(t *testing.T) {
	w := newWorld(t)
	user, err := w.CreateUser(t.Context(), ana, registry.UserRequest{Name: "bob", Role: "admin"})
	if err != nil {
		t.Fatal(err)
	}
	join, err := w.CreateJoin(t.Context(), ana, registry.JoinRequest{Cluster: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what string
		call func(uid string) error
		uid  string
	}{
		{"a new token", func(uid string) error {
			_, err := w.CreateJoin(t.Context(), ana, registry.JoinRequest{Cluster: "a", Reissue: true, UID: uid})
			return err
		}, join.Cluster.GetCluster().GetMetadata().GetUid()},
		{"revoke", func(uid string) error {
			_, err := w.Revoke(t.Context(), ana, "a", uid, "stolen")
			return err
		}, join.Cluster.GetCluster().GetMetadata().GetUid()},
		{"delete a user", func(uid string) error {
			_, err := w.DeleteUser(t.Context(), "bob", uid)
			return err
		}, user.User.GetMetadata().GetUid()},
	} {
		if err := tc.call("of one that is gone"); !errors.Is(err, fleet.ErrPrecondition) || fleet.HintOf(err).Unmet != fleet.PreconditionUID {
			t.Errorf("%s: of one that is gone: %v", tc.what, err)
		}
		if err := tc.call(tc.uid); err != nil {
			t.Errorf("%s: of the one that is there: %v", tc.what, err)
		}
	}
}
