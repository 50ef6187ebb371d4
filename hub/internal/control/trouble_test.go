package control

import (
	"context"
	"errors"
	"testing"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// fullOfRecords takes no record.
type fullOfRecords struct{ store.Store }

func (fullOfRecords) Update(context.Context, func(store.Writer) error) (int64, error) {
	return 0, fleet.Errorf(fleet.ErrExhausted, "the store is full")
}

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
		w.Put(rolloutKey(shop, pending), pending)
	})
	if again := l.runResolve(t.Context(), store.ModuleKey(shop)); again == 0 {
		t.Error("it is not tried again")
	}
	if err := l.Trouble(shop); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("trouble: %v", err)
	}
	l.o.Store = healthy
	if again := l.runResolve(t.Context(), store.ModuleKey(shop)); again != 0 {
		t.Errorf("again after %v", again)
	}
	// The revision cannot be written: what was made of the source is kept until it can.
	l.o.Store = fullOfRecords{healthy}
	if again := l.runModule(t.Context(), store.ModuleKey(shop)); again == 0 || !errors.Is(l.Trouble(shop), fleet.ErrExhausted) {
		t.Errorf("again after %v, trouble %v", again, l.Trouble(shop))
	}
	if l.resolver.entries[store.ModuleKey(shop)] != nil {
		t.Error("the source is made again for a store that is full")
	}
	l.o.Store = healthy
	if again := l.runModule(t.Context(), store.ModuleKey(shop)); again != 0 || l.Trouble(shop) != nil {
		t.Errorf("again after %v, trouble %v", again, l.Trouble(shop))
	}
	l.read(func(r store.Reader) {
		if _, cut := r.Get(store.RevisionKey(shop, 1)); !cut {
			t.Error("there is no revision")
		}
	})
}
