package apply

import (
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// carrying is an object of another kind with a Secret in it.
func carrying(password, note string) map[string]any {
	secret := map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "db", "annotations": map[string]any{"note": note}},
		"stringData": map[string]any{"password": password}}
	return map[string]any{"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork", "metadata": map[string]any{"name": "w"},
		"spec": map[string]any{"note": note, "workload": map[string]any{"manifests": []any{secret}}}}
}

// Drift, previews and conflicts name the fields of a Secret that another object carries, and none of their values.
func TestValuesOfACarriedSecretAreNotShown(t *testing.T) {
	desired, live := carrying("swordfish", "one"), carrying("hunter22", "two")
	text := func(v any) string { return fmt.Sprintf("%+v", v) }
	told := map[string]string{"a preview": text(Changes(live, desired)), "a difference": text(Difference(desired["spec"].(map[string]any)["workload"], live["spec"].(map[string]any)["workload"])),
		"a list that grows": text(Changes(map[string]any{"spec": []any{}}, map[string]any{"spec": []any{carrying("swordfish", "a")}})),
		"a text":            text(Changes(map[string]any{"a": ""}, map[string]any{"a": "kind: Secret\nstringData: {p: swordfish}\n"}))}
	set := func(fields string) *PathSet {
		p, err := NewInterner().Parse([]byte(fields), nil)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	paths := set(`{"f:spec":{"f:note":{},"f:workload":{"f:manifests":{"i:0":{"f:stringData":{"f:password":{}}}}}}}`)
	whole := set(`{"f:spec":{"f:workload":{"f:manifests":{}}}}`)
	missing := paths.Missing(nil, live)
	told["fields that others have"] = text(missing)
	told["a list that others have"] = text(whole.Missing(nil, live))
	told["what is overwritten"] = text(set(`{"f:spec":{"f:workload":{"f:manifests":{"i:0":{"f:stringData":{"f:password":{}}}}}}}`).changed(live, desired, "", false))
	for _, f := range missing {
		told["what is wanted of "+f.Pointer] = f.In(desired)
	}
	for what, text := range told {
		for _, value := range []string{"swordfish", "hunter22"} {
			if strings.Contains(text, value) {
				t.Errorf("%s tells %s: %s", what, value, text)
			}
		}
		if !strings.Contains(text, fleet.Masked) && !strings.HasPrefix(what, "a list") && what != "what is wanted of /spec/note" {
			t.Errorf("%s tells nothing: %s", what, text)
		}
	}
	if !strings.Contains(told["a preview"], "/spec/note") || !strings.Contains(told["a preview"], "two") {
		t.Errorf("what is no Secret is hidden: %s", told["a preview"])
	}
}

// The API server's words about what carries a Secret may repeat its values.
func TestValuesOfACarriedSecretAreScrubbed(t *testing.T) {
	h := HiddenOf(carrying("swordfish", "a-note-of-it"), map[string]any{"kind": "HelmRelease", "spec": map[string]any{"valuesFrom": []any{map[string]any{"kind": "Secret", "name": "named-here"}}}})
	if got, want := h.Scrub("refused: swordfish, not a-note-of-it, nor named-here"), "refused: ***, not a-note-of-it, nor named-here"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if HiddenOf(map[string]any{"kind": "HelmRelease", "spec": []any{map[string]any{"kind": "Secret", "name": "a"}}}).Any() || !HiddenOf(carrying("a", "b")).Any() {
		t.Error("what names a Secret is not told from what carries one")
	}
}

// The parameters of a Template go into the Secrets in it, and the items of a SecretList need not say what they are.
func TestValuesOfWhatIsNoSecretByItselfAreNotShown(t *testing.T) {
	template := func(value string) map[string]any {
		return map[string]any{"apiVersion": "template.openshift.io/v1", "kind": "Template", "objects": []any{map[string]any{"apiVersion": "v1", "kind": "Secret",
			"metadata": map[string]any{"name": "a"}, "stringData": map[string]any{"p": "${P}"}}}, "parameters": []any{map[string]any{"name": "P", "value": value}}}
	}
	list := func(value string) map[string]any {
		return map[string]any{"apiVersion": "a.b/v1", "kind": "Holder", "spec": map[string]any{"apiVersion": "v1", "kind": "SecretList",
			"items": []any{map[string]any{"metadata": map[string]any{"name": "a"}, "stringData": map[string]any{"p": value}}}}}
	}
	for fields, of := range map[string]func(string) map[string]any{
		`{"f:parameters":{"i:0":{"f:value":{}}}}`:                           template,
		`{"f:parameters":{}}`:                                               template,
		`{"f:spec":{"f:items":{"i:0":{"f:stringData":{"f:p":{}}}}}}`:        list,
		`{"f:spec":{"f:items":{}}}`:                                         list,
		`{"f:spec":{"f:items":{"i:0":{"f:stringData":{".":{},"f:p":{}}}}}}`: list,
	} {
		desired, live := of("swordfish"), of("hunter22")
		p, err := NewInterner().Parse([]byte(fields), nil)
		if err != nil {
			t.Fatal(err)
		}
		missing := p.Missing(nil, live)
		told := fmt.Sprintf("%+v %+v %+v %+v %+v", Changes(live, desired), Difference(desired, live), missing, missing[0].In(desired), p.changed(live, desired, "", false))
		if strings.Contains(told, "swordfish") || strings.Contains(told, "hunter22") || !strings.Contains(told, fleet.Masked) {
			t.Errorf("%s: %s", fields, told)
		}
		if got := HiddenOf(live).Scrub("not hunter22"); got != "not ***" {
			t.Errorf("%s: what the API server says: %s", fields, got)
		}
	}
}
