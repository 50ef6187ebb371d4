package session

import (
	"context"
	"errors"
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/hub/internal/bundle"
	"towline.dev/towline/hub/internal/registry"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// unread are contents of which one cannot be read.
type unread struct {
	store.Blobs
	lost fleet.Digest
	why  error
}

func (u unread) Get(ctx context.Context, d fleet.Digest) ([]byte, error) {
	if d == u.lost {
		return nil, u.why
	}
	return u.Blobs.Get(ctx, d)
}

// Which secrets a module uses is read until it can be: a session that left them out would not hear of their next values either. What is damaged
// stays so, and keeps back nothing of the others.
func TestSecretsAreNotLostByAFailedRead(t *testing.T) {
	for why, ends := range map[error]bool{fleet.ErrUnavailable: true, fleet.ErrCorrupt: false} {
		s := newServer(t, &gates{})
		assign(t, s, "web", 1, "[]", "one")
		s.o.Bundles = bundle.New(unread{s.o.Store.Blobs(), fleet.DigestOf([]byte("[]")), fleet.Errorf(why, "etcd does not answer")})
		x := newSession(s, "a", registry.Opened{Epoch: 1}, &agentv1.Hello{SealingKey: []byte("key"), Features: []string{wire.FeatureSecretBindings}})
		x.machine = machine{fresh: true}
		if _, err := x.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := x.sendSecrets(t.Context(), &taker{}); errors.Is(err, why) != ends || (err != nil) != ends {
			t.Errorf("%v: %v", why, err)
		}
	}
}
