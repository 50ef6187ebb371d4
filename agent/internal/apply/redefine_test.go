package apply

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestRedefine(t *testing.T) {
	entry := func(manager, operation, version, fields string) map[string]any {
		var f map[string]any
		if err := json.Unmarshal([]byte(fields), &f); err != nil {
			t.Fatal(err)
		}
		return map[string]any{"manager": manager, "operation": operation, "apiVersion": version, "fieldsV1": f}
	}
	object := func(entries ...any) map[string]any {
		return map[string]any{"metadata": map[string]any{"resourceVersion": "7", "managedFields": entries}}
	}
	live := object(entry("towline", "Apply", "x/v1", `{"f:a":{}}`), entry("op", "Update", "x/v1", `{"f:s":{"f:a":{}},"f:m":{}}`),
		entry("op", "Update", "x/v2", `{"f:s":{".":{},"f:b":{}},"f:m":{"f:k":{}}}`), entry("old", "Update", "x/v0", `{"f:o":{}}`))
	patch, err := Redefine(live, "x/v1", "x/v2")
	if err != nil {
		t.Fatal(err)
	}
	var got []struct{ Value any }
	if err := json.Unmarshal(patch, &got); err != nil {
		t.Fatal(err)
	}
	want := []any{entry("towline", "Apply", "x/v2", `{"f:a":{}}`),
		entry("op", "Update", "x/v2", `{"f:s":{".":{},"f:a":{},"f:b":{}},"f:m":{".":{},"f:k":{}}}`), entry("old", "Update", "x/v0", `{"f:o":{}}`)}
	if !reflect.DeepEqual(got[0].Value, want) || got[1].Value != "7" {
		t.Errorf("patch %s", patch)
	}
	if patch, err := Redefine(object(entry("towline", "Apply", "x/v2", `{}`)), "x/v1", "x/v2"); patch != nil || err != nil {
		t.Errorf("%s %v", patch, err)
	}
}
