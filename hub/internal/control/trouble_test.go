package control

import (
	"errors"
	"testing"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A revision that cannot be stored fails no rollout, and is no secret either: the hub says why it does not go on, until it
// does.
func TestTroubleOfTheHubIsSaid(t *testing.T) {
	l := newLeader(t)
	healthy := l.o.Store
	l.o.Store, l.o.Source = fullStore{healthy}, oneFile{}
	pending := rolloutRecord(1, string(rollout.Pending))
	pending.Rollout.Revision = 0
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), pending)
	})
	if again := l.runResolve(t.Context(), store.ModuleKey(shop)); again == 0 {
		t.Error("it is not tried again")
	}
	if err := l.Trouble(shop); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("trouble: %v", err)
	}
	l.o.Store = healthy
	if again := l.runResolve(t.Context(), store.ModuleKey(shop)); again != 0 || l.Trouble(shop) != nil {
		t.Errorf("again after %v, trouble %v", again, l.Trouble(shop))
	}
}
