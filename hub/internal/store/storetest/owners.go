package storetest

import (
	"errors"
	"strings"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/engine"
	"towline.dev/towline/pkg/fleet"
)

// testOwners writes as one part of the hub what belongs to others.
func testOwners(t *testing.T, open Opener) {
	s := opened(t, open(t), engine.Options{})
	lead, err := s.Campaign(timeout(t), store.Candidate{Instance: "control"})
	if err != nil {
		t.Fatal(err)
	}
	floor := store.FloorKey("c")
	session := store.SessionKey("c")
	rev := put(t, s, session, &storev1.SessionRecord{Epoch: 1})
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, store.ErrNotOwner) {
			t.Errorf("%s: %v", what, err)
			return
		}
		for _, says := range []string{store.FloorPrefix, "leader", "session"} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%s: the error does not say %q: %v", what, says, err)
			}
		}
	}
	foreign := func(change func(store.Writer)) error {
		_, err := s.As(store.Session).Update(timeout(t), func(w store.Writer) error {
			w.Put(store.AckKey("c"), &storev1.AckRecord{Epoch: 1})
			change(w)
			return nil
		})
		return err
	}
	refused("a put", foreign(func(w store.Writer) { w.Put(floor, &storev1.FloorRecord{}) }))
	refused("a delete", foreign(func(w store.Writer) { w.Delete(floor) }))
	fence := store.Fence{Key: session, ModRevision: rev}
	for _, op := range []store.Op{{Key: floor, Value: &storev1.FloorRecord{}}, {Key: floor, Delete: true}} {
		_, err := s.As(store.Session).Batch(timeout(t), fence, []store.Op{{Key: store.AckKey("c"), Value: &storev1.AckRecord{Epoch: 1}}, op})
		refused("a batch", err)
	}
	if err := s.View(timeout(t), 0, func(r store.Reader) error {
		if _, there := r.Get(store.AckKey("c")); there {
			t.Error("a part of what was refused is there")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	// The leader clears what it may not put, and does nothing without its fence.
	put(t, s, store.AckKey("c"), &storev1.AckRecord{Epoch: 1})
	leads := func(fences []store.Fence, change func(store.Writer)) error {
		_, err := s.As(store.Leader).Update(timeout(t), func(w store.Writer) error {
			for _, f := range fences {
				w.Fence(f)
			}
			change(w)
			return nil
		})
		return err
	}
	held := []store.Fence{lead.Fence()}
	if err := leads(held, func(w store.Writer) { w.Put(store.AckKey("c"), &storev1.AckRecord{Epoch: 2}) }); !errors.Is(err, store.ErrNotOwner) {
		t.Errorf("the leader acknowledges: %v", err)
	}
	if err := leads(nil, func(w store.Writer) { w.Put(floor, &storev1.FloorRecord{Generation: 1}) }); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("the leader without its fence: %v", err)
	}
	if err := leads(held, func(w store.Writer) { w.Delete(store.AckKey("c")); w.Put(floor, &storev1.FloorRecord{Generation: 1}) }); err != nil {
		t.Errorf("the leader clears: %v", err)
	}
}
