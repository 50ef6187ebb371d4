package apply

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

func TestAppliersOfAll(t *testing.T) {
	const marks = `"f:metadata":{"f:labels":{"f:towline.dev/hub":{}},"f:annotations":{"f:towline.dev/owner":{}}}`
	entry := func(manager, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(fields)}
	}
	updated := entry("ana", `{"f:data":{"f:a":{},"f:b":{}}}`)
	updated.Operation = metav1.ManagedFieldsOperationUpdate
	deployed := entry("argocd-controller", `{"f:metadata":{"f:labels":{"f:app.kubernetes.io/instance":{}}}}`)
	deployed.Operation = metav1.ManagedFieldsOperationUpdate
	reported := entry("argocd-application-controller", `{"f:status":{".":{},"f:health":{"f:status":{}}},"f:operation":{"f:retry":{}},"f:metadata":{"f:finalizers":{".":{},"v:\"a\"":{}}}}`)
	reported.Operation = metav1.ManagedFieldsOperationUpdate
	unreadable := reported
	unreadable.FieldsV1 = nil
	status := entry("status", `{"f:data":{"f:a":{},"f:b":{}}}`)
	status.Subresource = "status"
	wrote := `{"f:data":{"f:a":{},"f:b":{}},` + marks + `}`
	for name, tc := range map[string]struct {
		wrote   string // by our last write; empty: not known
		entries []metav1.ManagedFieldsEntry
		want    []string
	}{
		"all of it":            {wrote, []metav1.ManagedFieldsEntry{entry("issuer", `{"f:data":{"f:a":{},"f:b":{},"f:c":{}}}`)}, []string{"issuer"}},
		"a part":               {wrote, []metav1.ManagedFieldsEntry{entry("issuer", `{"f:data":{"f:a":{}}}`)}, nil},
		"by an update":         {wrote, []metav1.ManagedFieldsEntry{updated}, nil},
		"deployed, in part":    {wrote, []metav1.ManagedFieldsEntry{deployed}, []string{"argocd-controller"}},
		"reported on":          {wrote, []metav1.ManagedFieldsEntry{reported}, nil},
		"deployed, unreadable": {wrote, []metav1.ManagedFieldsEntry{unreadable}, []string{"argocd-application-controller"}},
		"in a subresource":     {wrote, []metav1.ManagedFieldsEntry{status}, nil},
		"labels alone":         {`{"f:metadata":{"f:labels":{"f:towline.dev/hub":{},"f:team":{}}}}`, []metav1.ManagedFieldsEntry{entry("flux", `{"f:metadata":{"f:labels":{"f:team":{}}}}`)}, []string{"flux"}},
		"marks alone":          {`{` + marks + `}`, []metav1.ManagedFieldsEntry{entry("flux", `{"f:data":{"f:a":{}}}`)}, nil},
		"found, all of it":     {"", []metav1.ManagedFieldsEntry{entry(fleet.FieldManager, wrote), entry("issuer", wrote)}, []string{"issuer"}},
		"found, a part":        {"", []metav1.ManagedFieldsEntry{entry(fleet.FieldManager, wrote), entry("issuer", `{"f:data":{"f:a":{}}}`)}, nil},
		"found, and all taken": {"", []metav1.ManagedFieldsEntry{entry(fleet.FieldManager, `{`+marks+`}`), entry("issuer", `{"f:data":{"f:a":{}}}`)}, []string{"issuer"}},
		"found, and labelled":  {"", []metav1.ManagedFieldsEntry{entry(fleet.FieldManager, `{`+marks+`}`), entry("labeller", `{"f:metadata":{"f:labels":{"f:team":{}}}}`)}, nil},
	} {
		var fields *PathSet
		if tc.wrote != "" {
			var err error
			if fields, err = NewInterner().Parse([]byte(tc.wrote), nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := AppliersOfAll(tc.entries, fields); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}
