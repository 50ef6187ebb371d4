package api

import (
	"errors"
	"testing"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A person who pauses a rollout while a look fetches the source is not overruled by what the look begins, but by a person who asks for it;
// the start says which of the two it is.
func TestFollowBeginsNothingThatWasPausedMeanwhile(t *testing.T) {
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}
	s := storetest.New(t)
	a := newAPIOn(t, s, func(w store.Writer) {
		m := putShop().GetModule()
		m.Metadata.Project, m.Metadata.Uid = ref.Project, "u"
		w.Put(store.ModuleKey(ref), &storev1.ModuleRecord{Module: m})
		w.Put(store.RolloutKey(ref, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Id: "shop/1", Module: "shop", Number: 1, Revision: 1,
			Status: &towlinev1.RolloutStatus{State: string(rollout.Paused), Reason: rollout.ReasonPausedByUser}}})
	})
	n := record.News{Module: ref, UID: "u", Rollout: 1, Fetched: fleet.DigestOf([]byte("x")), Ask: record.Ask{By: record.ByWebhook}}
	if _, err := a.StartFollowed(t.Context(), []record.News{n}); !errors.As(err, new(*record.PausedError)) {
		t.Errorf("by itself: %v", err)
	}
	n.Person, n.Ask.By = true, "ana"
	if numbers, err := a.StartFollowed(t.Context(), []record.News{n}); err != nil || numbers[0] != 2 {
		t.Errorf("asked for: %v, %v", numbers, err)
	}
	if err := s.View(t.Context(), 0, func(r store.Reader) error {
		if ro := rollouts.Get(r, ref, 2); ro.GetUnasked() {
			t.Errorf("nobody asked for %v", ro)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
