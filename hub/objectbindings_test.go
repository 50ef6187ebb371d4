package hub_test

import (
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/testkit/simagent"
	"towline.dev/towline/pkg/wire"
)

// reads is a module whose ConfigMaps have these data, with bindings that read other ConfigMaps of the namespace shop.
func reads(name string, bindings map[string]string, data map[string]string) *towlinev1.Module {
	files := map[string]string{}
	for object, v := range data {
		files[object+".yaml"] = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"" + object + "\", namespace: shop}\ndata: {v: \"" + v + "\"}\n"
	}
	m := listing(name, "plain")
	m.Spec.Source.Inline.Files = files
	for binding, of := range bindings {
		m.Spec.Bindings = append(m.Spec.Bindings, &towlinev1.Binding{Name: binding, Object: &towlinev1.BindingObject{
			ApiVersion: "v1", Kind: "ConfigMap", Namespace: "shop", Name: of, FieldPath: "data.v"}})
	}
	return m
}

// TestBindingsThatAgentsEvaluate: the hub hands them on, and leaves their placeholders; what could be applied in no cluster is refused by
// name; an agent that does not know them is not blamed and not ready.
func TestBindingsThatAgentsEvaluate(t *testing.T) {
	w := newWorld(t, true)
	w.join("d", nil, nil)
	w.enroll("c", nil)
	w.connectWith("c", simagent.Options{Features: []string{wire.FeatureStatusSeen, wire.FeatureSubstitution}})
	m := reads("late", map[string]string{"A": "net"}, map[string]string{"uses": "x${A}"})
	w.put(m)
	w.awaitTracker("late", "d", "ready", ready)
	w.awaitTracker("late", "c", "said", func(tr *towlinev1.Tracker) bool {
		return tr.GetReason() == "AgentTooOld" && !tr.GetReady() && strings.Contains(tr.GetMessage(), wire.FeatureObjectBindings)
	})
	for says, m := range map[string]*towlinev1.Module{
		"ConfigMap shop/a → ${A} → ConfigMap shop/b → ${B} → ConfigMap shop/a": reads("circle", map[string]string{"A": "b", "B": "a"}, map[string]string{"a": "${A}", "b": "${B}"}),
		"name and namespace cannot hold ${A}":                                  reads("named", map[string]string{"A": "net"}, map[string]string{"x-${A}": "v"}),
	} {
		if _, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error that says %q", m.GetMetadata().GetName(), err, says)
		}
	}
}
