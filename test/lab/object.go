package lab

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Label names an object for people: version, kind, namespace and name.
func Label(o *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s %s/%s", o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName())
}

// AsWanted says what of the desired object the live one lacks, and whether it carries our marks.
func AsWanted(want, got *unstructured.Unstructured) error {
	desired := want.DeepCopy()
	if err := storedData(desired); err != nil {
		return err
	}
	if at := differs("", plain(desired.Object), plain(got.Object)); at != "" {
		return fmt.Errorf("%s: %s is not as wanted", Label(want), at)
	}
	if got.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%s: is being deleted", Label(want))
	}
	if got.GetLabels()["towline.dev/hub"] == "" || got.GetAnnotations()["towline.dev/owner"] == "" {
		return fmt.Errorf("%s: lacks our marks: %v %v", Label(want), got.GetLabels(), got.GetAnnotations())
	}
	return nil
}

// storedData turns stringData into data, as the server does.
func storedData(o *unstructured.Unstructured) error {
	words, found, err := unstructured.NestedStringMap(o.Object, "stringData")
	if err != nil || !found {
		return err
	}
	delete(o.Object, "stringData")
	for k, v := range words {
		if err := unstructured.SetNestedField(o.Object, base64.StdEncoding.EncodeToString([]byte(v)), "data", k); err != nil {
			return err
		}
	}
	return nil
}

// plain gives numbers one type.
func plain(v any) any {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	var out any
	if err := json.Unmarshal(data, &out); err != nil {
		panic(err)
	}
	return out
}

// differs is the path of the first value of want that got has not.
func differs(path string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			return path
		}
		for _, k := range slices.Sorted(maps.Keys(want)) {
			if at := differs(path+"/"+k, want[k], got[k]); at != "" {
				return at
			}
		}
		return ""
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return path
		}
		for i := range want {
			if at := differs(fmt.Sprintf("%s/%d", path, i), want[i], got[i]); at != "" {
				return at
			}
		}
		return ""
	case nil:
		return ""
	}
	if !reflect.DeepEqual(want, got) {
		return path
	}
	return ""
}
