package api

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A module that another program is to assign is the hub's until that put has a revision: its rollout takes verbs.
func TestModuleThatIsToBeExternal(t *testing.T) {
	var shop fleet.ModuleRef
	a := newAPI(t, func(w store.Writer) {
		shop = putModule(w, "default", "shop", func(m *storev1.ModuleRecord) {
			m.Module.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		})
		putRollout(w, shop, 1, 1, "Progressing")
		putRollout(w, shop, 2, 0, "Pending")
		w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
	})
	ctx, stays := a.leaves(t)
	_, _ = a.PauseRollout(ctx, &towlinev1.PauseRolloutRequest{Module: "shop"}) // nobody leads, so nobody answers
	stays()
	if _, err := a.o.Store.Barrier(t.Context()); err != nil {
		t.Fatal(err)
	}
	_ = a.o.Store.View(t.Context(), 0, func(r store.Reader) error {
		if _, found := r.Get(store.VerbKey(shop, 1, 1)); !found {
			t.Error("the rollout that runs does not take the verb")
		}
		return nil
	})
}

// A module that another program assigned, and that is to be the hub's: until that put has a revision nobody decides, so that a verb
// is refused at once.
func TestModuleThatIsToBeTheHubsTakesNoVerb(t *testing.T) {
	var shop fleet.ModuleRef
	a := newAPI(t, func(w store.Writer) {
		shop = putModule(w, "default", "shop", nil)
		putRollout(w, shop, 1, 1, "Succeeded")
		ro, _, _ := store.Get[*storev1.RolloutRecord](w, store.RolloutKey(shop, 1))
		ro = proto.CloneOf(ro)
		ro.Rollout.Strategy = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		w.Put(store.RolloutKey(shop, 1), ro)
		putRollout(w, shop, 2, 0, "Failed")
	})
	_, err := a.PauseRollout(t.Context(), &towlinev1.PauseRolloutRequest{Module: "shop"})
	if !errors.Is(err, fleet.ErrPrecondition) || !strings.Contains(err.Error(), "rollout shop/1: another program assigned its revision") {
		t.Errorf("paused: %v", err)
	}
}
