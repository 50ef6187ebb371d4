package registry_test

import (
	"context"
	"testing"

	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// between is a store in which something else is committed between what an update reads and its commit, as another hub may.
type between struct {
	store.Store
	then func()
}

func (b *between) Update(ctx context.Context, fn func(store.Writer) error) (int64, error) {
	return b.Store.Update(ctx, func(w store.Writer) error {
		err := fn(w)
		if then := b.then; then != nil {
			b.then = nil
			then()
		}
		return err
	})
}

// TestTokenOfTheSameMoment: another hub makes a token for a cluster in the moment in which this one revokes the cluster, or makes a token for it, so
// that what this one has read does not have it: of a cluster that was revoked, or has a newer token, nobody gets in with that one.
func TestTokenOfTheSameMoment(t *testing.T) {
	for name, word := range map[string]func(*world){
		"revoked": func(w *world) {
			if _, err := w.Revoke(w.t.Context(), ana, "a", "", "stolen"); err != nil {
				w.t.Fatal(err)
			}
		},
		"a newer token": func(w *world) { w.token("a", true) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.join("a", "uid-a")
			b := &between{Store: w.store}
			here, token := w.with(b), ""
			b.then = func() { token = w.token("a", true) }
			word(here)
			if token == "" {
				t.Fatal("nothing happened meanwhile")
			}
			if _, err := w.enroll(token, "uid-a", newKey(t)); err == nil {
				t.Error("the token of the same moment lets an agent in")
			}
		})
	}
}

// TestRevokedAgain: revoking a cluster that is revoked ends the token that was made for it since, however that was made.
func TestRevokedAgain(t *testing.T) {
	for name, made := range map[string]func(*world) string{
		"joined anew":   func(w *world) string { return w.token("a", true) },
		"unlocked anew": func(w *world) string { return w.unlock("a", registry.Unlocking{Reissue: true}).Token },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.join("a", "uid-a")
			if name == "unlocked anew" {
				w.lock("a")
			} else {
				w.revoke("a")
			}
			token := made(w)
			if rec := w.cluster("a"); !rec.GetRevoked() || len(rec.GetCertificates()) > 0 {
				t.Fatalf("is not revoked: %v", rec)
			}
			w.revoke("a")
			if _, err := w.enroll(token, "uid-a", newKey(t)); err == nil {
				t.Error("the token from before the revocation lets an agent in")
			}
		})
	}
}

func (w *world) revoke(c fleet.ClusterName) {
	w.t.Helper()
	if _, err := w.Revoke(w.t.Context(), ana, c, "", "stolen"); err != nil {
		w.t.Fatal(err)
	}
}
