package api

import (
	"testing"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// A catalog is deleted with its modules while no hub leads, and another Kubernetes cluster takes the name of one of their clusters before one does:
// what they had there is of the one before, also where a person deletes one of them in between. Of one that had taken the name before it is not.
func TestModulesAreDeletedAsOfTheWordAboutTheirCatalog(t *testing.T) {
	shop := fleet.ModuleRef{Project: fleet.DefaultProject, Name: "shop"}
	for name, tt := range map[string]struct{ takenBefore, byHand, elsewhere bool }{
		"taken after":                          {false, false, true},
		"taken after, and deleted by a person": {false, true, true},
		"taken before":                         {true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			x := newCatalogAPI(t)
			if _, err := x.ApplyCatalog(t.Context(), x.look, x.plan("shop", "1")); err != nil {
				t.Fatal(err)
			}
			write := func(change func(w store.Writer)) {
				t.Helper()
				if _, err := x.s.Update(t.Context(), func(w store.Writer) error { change(w); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			write(func(w store.Writer) {
				w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: &agentv1.Sync{Module: shop.String(), Generation: record.NextGeneration(w)}})
			})
			taken := func() {
				write(func(w store.Writer) {
					rec := &storev1.ClusterRecord{Uid: "another"}
					record.TakeName(w, "a", rec)
					w.Put(store.ClusterKey("a"), rec)
				})
			}
			if tt.takenBefore {
				taken()
			}
			if _, err := x.DeleteCatalog(t.Context(), &towlinev1.DeleteCatalogRequest{Name: x.look.Ref.Name, Cascade: true}); err != nil {
				t.Fatal(err)
			}
			if !tt.takenBefore {
				taken()
			}
			if tt.byHand {
				if _, err := x.DeleteModule(t.Context(), &towlinev1.DeleteModuleRequest{Name: "shop"}); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.DropCatalog(t.Context(), x.look); err != nil {
				t.Fatal(err)
			}
			at, err := x.s.Barrier(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := x.s.View(t.Context(), at, func(r store.Reader) error {
				m, _, _ := store.Get[*storev1.ModuleRecord](r, store.ModuleKey(shop))
				d, _, _ := store.Get[*storev1.DesiredRecord](r, store.DesiredKey("a", shop))
				if m.GetDeleting() == "" {
					t.Fatalf("the module is not deleted: %v", m)
				}
				if got := record.Elsewhere(d, record.DeletedTakes(r, shop, m), record.Anew(r, "a")); got != tt.elsewhere {
					t.Errorf("what it had is of the cluster before: %t, want %t", got, tt.elsewhere)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}
