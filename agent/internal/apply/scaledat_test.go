package apply

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestScaledAt(t *testing.T) {
	for name, tc := range map[string]struct {
		manager, subresource, fields string
		want                         []string
	}{
		"elsewhere":      {"kube-controller-manager", "scale", `{"f:spec":{"f:workers":{"f:size":{}}}}`, []string{"spec", "workers", "size"}},
		"replicas":       {"kube-controller-manager", "scale", `{"f:spec":{"f:replicas":{}}}`, nil},
		"a person":       {"kubectl", "scale", `{"f:spec":{"f:size":{}}}`, nil},
		"not by scaling": {"kube-controller-manager", "", `{"f:spec":{"f:size":{}}}`, nil},
		"two fields":     {"x", "scale", `{"f:spec":{"f:size":{},"f:replicas":{}}}`, nil},
		"in a list":      {"x", "scale", `{"f:spec":{"k:{\"name\":\"a\"}":{"f:size":{}}}}`, nil},
		"nothing":        {"x", "scale", `{}`, nil},
	} {
		var fields map[string]any
		if err := json.Unmarshal([]byte(tc.fields), &fields); err != nil {
			t.Fatal(err)
		}
		obj := map[string]any{"metadata": map[string]any{"managedFields": []any{
			map[string]any{"manager": tc.manager, "subresource": tc.subresource, "operation": "Update", "fieldsV1": fields}}}}
		if got := ScaledAt(obj); !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWithout(t *testing.T) {
	const text = `{"apiVersion":"v1","kind":"Pool","metadata":{"name":"p"},"spec":{"image":"a","workers":{"size":2}}}`
	d := &Desired{text: []byte(text)}
	for _, tc := range []struct {
		path []string
		want string
	}{
		{[]string{"spec", "workers", "size"}, `{"apiVersion":"v1","kind":"Pool","metadata":{"name":"p"},"spec":{"image":"a","workers":{}}}`},
		{[]string{"spec", "image", "size"}, text}, {[]string{"spec", "other"}, text}, {nil, text},
	} {
		got, err := d.Without(tc.path)
		if err != nil || string(got.text) != tc.want || got.Content != d.Content {
			t.Errorf("%v: %s %v", tc.path, got.text, err)
		}
	}
	if string(d.text) != text || d.object["spec"].(map[string]any)["workers"].(map[string]any)["size"] != int64(2) {
		t.Errorf("changed: %s %v", d.text, d.object)
	}
}
