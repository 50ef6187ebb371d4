package api

import (
	"errors"
	"strings"
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

// A person who pauses a rollout after a catalog has planned what it puts is not overruled by that: the put fails, and is planned anew.
// Somebody who asks for the look overrules it.
func TestCatalogPutsNothingThatWasPausedMeanwhile(t *testing.T) {
	ref := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}
	look := record.CatalogLook{Ref: fleet.ModuleRef{Project: fleet.DefaultProject, Name: "team"}, UID: "u", Generation: 1}
	s := storetest.New(t)
	a := newAPIOn(t, s, func(w store.Writer) {
		w.Put(store.CatalogKey(look.Ref), &storev1.CatalogRecord{Catalog: &towlinev1.Catalog{Metadata: &towlinev1.Metadata{Name: "team", Project: ref.Project, Uid: "u", Generation: 1}}})
	})
	apply := func(person bool, text string, meanwhile func()) (record.CatalogDone, error) {
		look.Person, look.Files = person, []record.CatalogFile{{At: "shop.yaml:1", Module: putShop().GetModule()}}
		look.Files[0].Module.Spec.Source.Inline.Files["a.yaml"] = text
		plan, err := a.PlanCatalog(t.Context(), look)
		if err != nil || len(plan.Puts) != 1 {
			t.Fatalf("planned %v, %v", plan, err)
		}
		meanwhile()
		return a.ApplyCatalog(t.Context(), look, plan)
	}
	if _, err := apply(false, "a", func() {}); err != nil {
		t.Fatal(err)
	}
	pause := func() {
		if _, err := s.Update(t.Context(), func(w store.Writer) error {
			w.Delete(store.StartKey(ref, 1))
			w.Put(store.RolloutKey(ref, 1), &storev1.RolloutRecord{Rollout: &towlinev1.Rollout{Id: "shop/1", Module: "shop", Number: 1, Revision: 1,
				Status: &towlinev1.RolloutStatus{State: string(rollout.Paused), Reason: rollout.ReasonPausedByUser}}})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := apply(false, "b", pause)
	if !errors.Is(err, fleet.ErrConflict) || !strings.Contains(err.Error(), "rollout shop/1 was paused meanwhile") {
		t.Errorf("not a conflict: %v", err)
	}
	newest := func() (n int64) {
		if err := s.View(t.Context(), 0, func(r store.Reader) error {
			n = rollouts.Newest(r, ref)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := newest(); n != 1 {
		t.Errorf("rollout %d began", n)
	}
	if done, err := apply(true, "b", func() {}); err != nil || len(done.Configured) != 1 || newest() != 2 {
		t.Errorf("somebody asks: %v, %v", done, err)
	}
}
