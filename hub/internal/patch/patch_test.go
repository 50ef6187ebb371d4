package patch_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/hub/internal/patch"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

const shop = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {tier: front}, annotations: {big: "1"}}
spec:
  replicas: 1
  template:
    spec:
      containers:
      - {name: app, image: "shop:${VERSION}", env: [{name: A, value: a}]}
      - {name: log, image: log:1}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: worker, labels: {tier: back}}
spec: {replicas: 2}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: 'web-${REGION}'}
data: {a: "1"}
---
apiVersion: shop.example/v1
kind: Shop
metadata: {name: main}
spec: {lanes: [{name: a}], limit: 9007199254740993}
`

var opts = manifest.Options{Namespace: "shop", Declared: []string{"VERSION", "REGION", "REPLICAS"}}

func parse(t *testing.T) []manifest.Object {
	t.Helper()
	objects, err := manifest.ParseSet(map[string][]byte{"shop.yaml": []byte(shop)}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func override(patches ...fleet.Patch) []fleet.Override {
	return []fleet.Override{{Selector: &fleet.Selector{}, Patches: patches}}
}

func to(kind, name, text string) fleet.Patch {
	return fleet.Patch{Target: &fleet.PatchTarget{Kind: kind, Name: name}, Text: text}
}

// TestPatches: what each kind of patch makes of the objects, as kubectl patch and kustomize do it.
func TestPatches(t *testing.T) {
	for _, c := range []struct {
		name    string
		patches []fleet.Patch
		has     []string // in the objects, as JSON
		hasNot  []string
	}{
		{"operations", []fleet.Patch{to("Deployment", "web", "- {op: replace, path: /spec/replicas, value: 5}\n- {op: test, path: /metadata/name, value: web}")},
			[]string{`"replicas":5`, `"replicas":2`}, []string{`"replicas":1`}},
		{"a strategic merge keeps the other containers and variables", []fleet.Patch{to("Deployment", "web",
			"spec: {template: {spec: {containers: [{name: app, image: 'shop:9', env: [{name: B, value: b}]}]}}}")},
			[]string{`{"name":"B","value":"b"}`, `{"name":"A","value":"a"}`, `"image":"log:1"`, `"image":"shop:9"`}, []string{"shop:${VERSION}"}},
		{"null removes a field", []fleet.Patch{to("Deployment", "web", "metadata: {annotations: {big: null}}")}, nil, []string{`"big"`}},
		{"a container is left out", []fleet.Patch{to("Deployment", "web", "spec: {template: {spec: {containers: [{name: log, $patch: delete}]}}}")},
			[]string{`"name":"app"`}, []string{"log:1"}},
		{"a list of a kind that is not Kubernetes' own is replaced", []fleet.Patch{to("Shop", "", "spec: {lanes: [{name: b}]}")},
			[]string{`"lanes":[{"name":"b"}]`, "9007199254740993"}, []string{`{"name":"a"}`}},
		{"numbers keep their digits", []fleet.Patch{to("Shop", "", "- {op: add, path: /spec/more, value: 9007199254740995}")},
			[]string{"9007199254740993", "9007199254740995"}, nil},
		{"an object is left out", []fleet.Patch{to("Deployment", "w.*", "$patch: delete")}, []string{"ConfigMap", "Shop"}, []string{"Deployment"}},
		{"one that names itself", []fleet.Patch{{Text: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: worker}\nspec: {replicas: 7}"}},
			[]string{`"replicas":7`, `"replicas":1`}, []string{`"replicas":2`}},
		{"all of a kind", []fleet.Patch{to("Deployment", "", "spec: {replicas: 3}")}, nil, []string{`"replicas":1`, `"replicas":2`}},
		{"a name with a placeholder", []fleet.Patch{to("ConfigMap", "web-${REGION}", "data: {a: '2'}")}, []string{`"a":"2"`}, []string{`"a":"1"`}},
		{"placeholders in a patch", []fleet.Patch{to("Deployment", "worker", "spec: {replicas: '${REPLICAS}'}")}, []string{`"replicas":"${REPLICAS}"`}, nil},
		{"in order", []fleet.Patch{to("Deployment", "web", "metadata: {labels: {tier: back}}"), {Target: &fleet.PatchTarget{Kind: "Deployment",
			Labels: &fleet.Selector{MatchLabels: map[string]string{"tier": "back"}}}, Text: "spec: {replicas: 4}"}},
			[]string{`"replicas":4`}, []string{`"replicas":1`, `"replicas":2`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := parse(t)
			text := texts(before)
			after, err := patch.Apply(t.Context(), &patch.Work{}, before, override(c.patches...), []int32{0}, opts)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.has {
				if !strings.Contains(texts(after), want) {
					t.Errorf("lacks %s: %s", want, texts(after))
				}
			}
			for _, not := range c.hasNot {
				if strings.Contains(texts(after), not) {
					t.Errorf("has %s: %s", not, texts(after))
				}
			}
			if texts(before) != text {
				t.Error("the objects that were given have changed")
			}
		})
	}
}

func texts(objects []manifest.Object) string {
	var all strings.Builder
	for _, o := range objects {
		all.Write(o.Raw)
		all.WriteString("\n")
	}
	return all.String()
}

// TestRefusedPatches: one sentence that names the patch, what is wrong, and what there is.
func TestRefusedPatches(t *testing.T) {
	for _, c := range []struct {
		name  string
		patch fleet.Patch
		says  string
	}{
		{"no such name", to("Deployment", "api", "spec: {}"), "overrides[0].patches[0]: matches no object; objects of kind Deployment: shop/web, shop/worker"},
		{"no such kind", to("StatefulSet", "web", "spec: {}"), "overrides[0].patches[0]: matches no object; kinds that there are: ConfigMap, Deployment, Shop"},
		{"no target", fleet.Patch{Text: "- {op: remove, path: /spec}"}, "overrides[0].patches[0].target: is required for a list of operations"},
		{"no name", fleet.Patch{Text: "spec: {replicas: 1}"}, "overrides[0].patches[0].target: is required, or the patch names its object"},
		{"no operation", to("Deployment", "web", "- {op: set, path: /spec, value: 1}"), `overrides[0].patches[0].patch[0].op: "set" is unknown`},
		{"no path", to("Deployment", "web", "- {op: add, value: 1}"), "overrides[0].patches[0].patch[0].path: is no JSON pointer"},
		{"no value", to("Deployment", "web", "- {op: add, path: /spec/x}"), "overrides[0].patches[0].patch[0].value: is required of add"},
		{"a path that is not there", to("Deployment", "web", "- {op: replace, path: /spec/nope/x, value: 1}"), "overrides[0].patches[0]: Deployment shop/web: "},
		{"a test that fails", to("Deployment", "web", "- {op: test, path: /spec/replicas, value: 9}"), "overrides[0].patches[0]: Deployment shop/web: "},
		{"a text", to("Deployment", "web", "replicas"), "overrides[0].patches[0].patch: is neither a list of operations"},
		{"two values", to("Deployment", "web", "a: 1\n---\nb: 1"), "overrides[0].patches[0].patch: has 2 values, not one"},
		{"bad YAML", to("Deployment", "web", "a: [1"), "overrides[0].patches[0].patch:1"},
		{"bad expression", to("Deployment", "w(", "spec: {}"), "overrides[0].patches[0].target.name: \"w(\" is no regular expression"},
		{"another name", to("Deployment", "web", "- {op: replace, path: /metadata/name, value: x}"), "Deployment shop/web would be another object"},
		{"what no manifest may say", to("Deployment", "web", "metadata: {labels: {towline.dev/hub: x}}"), "label towline.dev/hub is Towline's own"},
		{"an item of a list of a kind that is merged plainly", to("Shop", "main", "spec: {lanes: [{name: a, $patch: delete}]}"), "Shop shop/main: $patch is of a strategic merge"},
		{"what else a strategic merge may say", to("Shop", "main", "spec: {lanes: [{name: b}], $setElementOrder/lanes: [{name: b}]}"), "Shop shop/main: $setElementOrder/lanes is of a strategic merge"},
		{"no map any more", to("Deployment", "web", "- {op: replace, path: /metadata, value: 1}"), "would be another object"},
		{"copies that multiply", to("ConfigMap", ".*", "- {op: add, path: /data/b, value: \""+strings.Repeat("x", 60<<10)+"\"}\n"+
			strings.Repeat("- {op: copy, from: /data, path: /data/c}\n", 20)), "ConfigMap shop/web-${REGION}: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := patch.Apply(t.Context(), &patch.Work{}, parse(t), override(c.patch), []int32{0}, opts)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("says %v, not %s", err, c.says)
			}
		})
	}
}

// TestRefusedPatchShowsNoValue: what is wrong is told by field and path, whatever the library says, which prints all of a map.
func TestRefusedPatchShowsNoValue(t *testing.T) {
	for _, c := range []struct{ patch, says string }{
		{"spec: {template: {spec: {containers: [{nmae: web, image: s3cr3t}]}}}",
			"Deployment shop/web: the patch has no name in spec.template.spec.containers[0], by which the items of that list are told apart"},
		{"spec: {template: {spec: {containers: [{name: web, $patch: delet, image: s3cr3t}]}}}", "Deployment shop/web: the patch cannot be merged: look at its lists"},
		{"spec: {template: {spec: {containers: [s3cr3t]}}}", "Deployment shop/web: "},
		{"spec: {template: {spec: {$setElementOrder/containers: [{name: web}], containers: [{name: s3cr3t}]}}}", "Deployment shop/web: "},
	} {
		_, err := patch.Apply(t.Context(), &patch.Work{}, parse(t), override(to("Deployment", "web", c.patch)), []int32{0}, opts)
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "s3cr3t") {
			t.Errorf("%s: says %v, want %s and no value", c.patch, err, c.says)
		}
	}
}

// FuzzPatch: whatever a patch says, it is applied or refused.
func FuzzPatch(f *testing.F) {
	f.Add("Deployment", "web", "- {op: replace, path: /spec/replicas, value: 5}")
	f.Add("Deployment", ".*", "spec: {template: {spec: {containers: [{name: log, $patch: delete}, {$setElementOrder/env: [a]}]}}}")
	f.Add("Shop", "main", "{spec: {lanes: null}, $patch: replace}")
	f.Fuzz(func(t *testing.T, kind, name, text string) {
		objects, err := manifest.ParseSet(map[string][]byte{"shop.yaml": []byte(shop)}, opts)
		if err != nil {
			t.Fatal(err)
		}
		first, err := patch.Apply(t.Context(), &patch.Work{}, objects, override(to(kind, name, text)), []int32{0}, opts)
		if err != nil {
			return
		}
		second, err := patch.Apply(t.Context(), &patch.Work{}, objects, override(to(kind, name, text)), []int32{0}, opts)
		if err != nil || texts(first) != texts(second) {
			t.Errorf("another result the second time: %v", err)
		}
	})
}

// A patch that names its object is for one: where two have its name, in two namespaces, neither is patched, or left out, by guess.
func TestPatchThatNamesTwo(t *testing.T) {
	objects := parse(t)
	for _, o := range objects {
		if o.ID.Kind == "Deployment" && o.ID.Name == "web" {
			o.ID.Namespace = "edge"
			o.Raw = bytes.ReplaceAll(o.Raw, []byte(`"namespace":"shop"`), []byte(`"namespace":"edge"`))
			objects = append(objects, o)
		}
	}
	const named = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web%s}\n$patch: delete\n"
	_, err := patch.Apply(t.Context(), &patch.Work{}, objects, override(fleet.Patch{Text: fmt.Sprintf(named, "")}), []int32{0}, opts)
	if err == nil || !strings.Contains(err.Error(), "Deployment shop/web and Deployment edge/web have its name: say metadata.namespace") {
		t.Errorf("says %v", err)
	}
	got, err := patch.Apply(t.Context(), &patch.Work{}, objects, override(fleet.Patch{Text: fmt.Sprintf(named, ", namespace: edge")}), []int32{0}, opts)
	if err != nil || len(got) != len(objects)-1 {
		t.Errorf("%d of %d are left: %v", len(got), len(objects), err)
	}
}
