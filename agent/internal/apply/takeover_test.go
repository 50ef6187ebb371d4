package apply

import (
	"encoding/json"
	"reflect"
	"testing"
)

func parsed(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTakeOver(t *testing.T) {
	const ours = `{"f:metadata":{"f:labels":{"f:app":{}}},"f:spec":{"f:list":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}},"f:empty":{},"f:map":{"f:x":{}}}}`
	const theirs = `{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}},"f:labels":{".":{},"f:app":{},"f:theirs":{}}},
		"f:spec":{"f:list":{".":{},"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{},"f:default":{}},"k:{\"name\":\"b\"}":{".":{},"f:name":{}}},
			"f:empty":{".":{},"f:inside":{}},"f:map":{".":{},"f:x":{}},"f:default":{}}}`
	const rest = `{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}},"f:labels":{"f:theirs":{}}},
		"f:spec":{"f:list":{"k:{\"name\":\"b\"}":{".":{},"f:name":{}}},"f:default":{}}}`
	const without = `{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}},"f:labels":{"f:theirs":{}}},
		"f:spec":{"f:list":{"k:{\"name\":\"a\"}":{"f:default":{}},"k:{\"name\":\"b\"}":{".":{},"f:name":{}}},"f:empty":{".":{},"f:inside":{}},"f:default":{}}}`
	for _, tc := range []struct {
		name, manager, operation, subresource, fields string
		everyone                                      bool
		want                                          string // their fields afterwards; empty: as before
		noted                                         bool   // kubectl's note is left
	}{
		{"kubectl apply", "kubectl-client-side-apply", "Update", "", theirs, false, rest, false},
		{"helm", "helm", "Update", "", theirs, false, rest, true},
		{"all that it had is ours", "kubectl-edit", "Update", "", ours, false, "none", false},
		{"nothing of it is ours", "kubectl-edit", "Update", "", `{"f:spec":{"f:map":{"f:y":{}}}}`, false, "", true},
		{"a controller", "operator", "Update", "", theirs, false, without, true},
		{"a controller that has something in an item of ours", "operator", "Update", "", `{"f:spec":{"f:list":{"k:{\"name\":\"a\"}":{"f:default":{}}}}}`, false, "", true},
		{"what kubectl has in an item of ours", "kubectl-edit", "Update", "", `{"f:spec":{"f:list":{"k:{\"name\":\"a\"}":{"f:default":{}}}}}`, false, "", true},
		{"whoever had it before", "operator", "Update", "", theirs, true, rest, true},
		{"server-side apply before", "kubectl", "Apply", "", theirs, true, without, false},
		{"server-side apply since", "kubectl", "Apply", "", theirs, false, "", true},
		{"another agent", "towline/b", "Apply", "", theirs, true, "", true},
		{"scale", "kubectl", "Update", "scale", theirs, true, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			live := noted(t, `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}"}}}`, ours)
			meta := live["metadata"].(map[string]any)
			meta["resourceVersion"] = "7"
			own := meta["managedFields"].([]any)
			entry := map[string]any{"manager": tc.manager, "operation": tc.operation, "fieldsV1": parsed(t, tc.fields)}
			if tc.subresource != "" {
				entry["subresource"] = tc.subresource
			}
			meta["managedFields"] = append(own, entry)
			raw, err := TakeOver(live, tc.everyone, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want == "" {
				if raw != nil {
					t.Errorf("patch %s", raw)
				}
				return
			}
			var patch []map[string]any
			if err := json.Unmarshal(raw, &patch); err != nil {
				t.Fatal(err)
			}
			entries := patch[0]["value"].([]any)
			if tc.want == "none" {
				if len(entries) != len(own) {
					t.Errorf("entries %v", entries)
				}
			} else if got := entries[len(own)].(map[string]any)["fieldsV1"]; !reflect.DeepEqual(got, any(parsed(t, tc.want))) {
				t.Errorf("left %v", got)
			}
			if patch[1]["value"] != "7" || (len(patch) == 2) != tc.noted {
				t.Errorf("patch %s", raw)
			}
		})
	}
}
