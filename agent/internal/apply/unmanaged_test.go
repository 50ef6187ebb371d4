package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"towline.dev/towline/pkg/fleet"
)

// What an API server that notes no managers has of an object is ours as it is listed, also where a field is called as one is that names the object.
func TestFieldsOfAServerThatNotesNoManagers(t *testing.T) {
	const text = `{"apiVersion":"x.io/v1","kind":"A","metadata":{"name":"a","labels":{"kind":"one","app":"a"}},
		"spec":{"ref":{"apiVersion":"v1","kind":"Secret","name":"s"},"template":{"metadata":{"name":"t","labels":{"app":"a"},"annotations":{}}}}}`
	id := fleet.ObjectID{Group: "x.io", Kind: "A", Name: "a"}
	d, err := NewDesired(id, []byte(text), fleet.DigestOf([]byte(text)), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	read := func() map[string]any {
		obj, err := d.Object()
		if err != nil {
			t.Fatal(err)
		}
		return runtime.DeepCopyJSON(obj)
	}
	paths, base, err := NewInterner().Written(read(), d, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(obj map[string]any){
		"kind of a reference":   func(obj map[string]any) { at(obj, "spec", "ref")["kind"] = "ConfigMap" },
		"version of one":        func(obj map[string]any) { at(obj, "spec", "ref")["apiVersion"] = "v2" },
		"a label called kind":   func(obj map[string]any) { at(obj, "metadata", "labels")["kind"] = "two" },
		"a label of a template": func(obj map[string]any) { at(obj, "spec", "template", "metadata", "labels")["app"] = "b" },
		"a name of a template":  func(obj map[string]any) { at(obj, "spec", "template", "metadata")["name"] = "b" },
	} {
		live := read()
		if paths.Of(live) != base {
			t.Fatalf("the object as it was written differs: %+v, %+v", paths.Of(live), base)
		}
		if change(live); paths.Of(live).Hash == base.Hash {
			t.Errorf("not seen: %s", name)
		}
	}
}

// at is the map that a path leads to.
func at(obj map[string]any, path ...string) map[string]any {
	for _, name := range path {
		obj, _ = obj[name].(map[string]any)
	}
	return obj
}
