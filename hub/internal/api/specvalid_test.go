package api

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
)

// TestStoredPathThatIsTakenNoMoreIsSaid: the path of a field that an older hub took, and that agents fail by, is said at the module, with the field.
func TestStoredPathThatIsTakenNoMoreIsSaid(t *testing.T) {
	a := newDamaged(t, store.RolloutKey(damagedShop, 1)) // the older one: it is beside the point
	object := func(path string) *towlinev1.Binding {
		return &towlinev1.Binding{Name: "IP", Object: &towlinev1.BindingObject{ApiVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", FieldPath: path}}
	}
	for path, says := range map[string]string{
		"status..a..b": "spec.bindings[1].object.fieldPath: IP: ",
		"spec.containers[*]" + strings.Repeat("['a','b']", 4): "spec.bindings[1].object.fieldPath: IP: ",
		"status..ip": "",
	} {
		if _, err := a.o.Store.Update(t.Context(), func(w store.Writer) error {
			rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(damagedShop))
			rec = proto.CloneOf(rec)
			rec.Module.Spec = putShop().GetModule().GetSpec()
			rec.Module.Spec.Bindings = []*towlinev1.Binding{{Name: "A", Value: proto.String("b")}, object(path)}
			w.Put(store.ModuleKey(damagedShop), rec)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		modules, _ := a.rowsOf(t)
		said := ""
		for _, c := range modules["shop"].GetConditions() {
			if c.GetType() == fleet.ConditionSpecValid && c.GetStatus() == fleet.ConditionFalse {
				said = c.GetMessage()
			}
		}
		if !strings.HasPrefix(said, says) || (said == "") != (says == "") {
			t.Errorf("%s: %q", path, said)
		}
	}
}
