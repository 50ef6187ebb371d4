package registry_test

import (
	"crypto/sha256"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rpc"
)

func TestUsers(t *testing.T) {
	w := newWorld(t)
	maria, err := w.CreateUser(t.Context(), ana, registry.UserRequest{Name: "maria", Role: "viewer", TTL: time.Hour})
	if err != nil || !strings.HasPrefix(maria.Token, "towline_u_") {
		t.Fatalf("%v, %v", maria, err)
	}
	if c, err := w.Bearer(maria.Token); err != nil || c.Name != "maria" || c.Role != rpc.RoleViewer || c.Kind != rpc.KindUser {
		t.Errorf("%+v, %v", c, err)
	}
	for name, q := range map[string]struct {
		r    registry.UserRequest
		kind error
	}{
		"twice":    {registry.UserRequest{Name: "maria", Role: "admin"}, fleet.ErrExists},
		"role":     {registry.UserRequest{Name: "x", Role: "root"}, fleet.ErrInvalid},
		"name":     {registry.UserRequest{Name: "X", Role: "admin"}, fleet.ErrInvalid},
		"the hub":  {registry.UserRequest{Name: "hub", Role: "viewer"}, fleet.ErrExists}, // locks and entries of the audit by it are the hub's own
		"reserved": {registry.UserRequest{Name: "admin", Role: "viewer"}, fleet.ErrExists},
	} {
		if _, err := w.CreateUser(t.Context(), ana, q.r); !errors.Is(err, q.kind) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, token := range map[string]string{"none": "", "other": "towline_u_x", "cut": maria.Token[:40], "longer": maria.Token + "x"} {
		if _, err := w.Bearer(token); !errors.Is(err, fleet.ErrUnknownUser) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if hash := sha256.Sum256([]byte(maria.Token)); w.stored(t, hash[:]) != 1 || w.stored(t, []byte(maria.Token)) != 0 {
		t.Error("the store holds the token, or not its hash")
	}
	w.pass(2 * time.Hour)
	if _, err := w.Bearer(maria.Token); !errors.Is(err, fleet.ErrUnknownUser) || !strings.Contains(err.Error(), "user maria expired 1h ago") {
		t.Errorf("expired: %v", err)
	}
	bob, _ := w.CreateUser(t.Context(), ana, registry.UserRequest{Name: "bob", Role: "admin"})
	if _, err := w.DeleteUser(t.Context(), "bob", ""); err != nil {
		t.Error(err)
	}
	if _, err := w.Bearer(bob.Token); !errors.Is(err, fleet.ErrUnknownUser) {
		t.Errorf("deleted: %v", err)
	}
	if list, err := w.Users(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// stored counts the user records that contain the bytes.
func (w *world) stored(t *testing.T, part []byte) (n int) {
	t.Helper()
	_ = w.store.View(t.Context(), 0, func(r store.Reader) error {
		r.Scan(store.UserPrefix, func(e store.Entry) bool {
			b, err := proto.Marshal(e.Value)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(b), string(part)) {
				n++
			}
			return true
		})
		return nil
	})
	return n
}
