package worker

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/pkg/fleet"
)

// What may not be deleted does not keep everything else of its stage, however much of it there is.
func TestRefusedDeletesKeepNothingElse(t *testing.T) {
	r := newRig(t)
	var objects []string
	for i := range 60 {
		objects = append(objects, configMap(fmt.Sprintf("cm-%02d", i), "k: v"))
	}
	s := r.bundle("shop", nil, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.denyDeletes("oldObject.metadata.name >= 'cm-40'")
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("all others are gone", func() bool { return r.configMaps() <= 20 })
	status := r.wait("shop", "told why the rest stays", func(x fleet.SyncStatus) bool { return len(x.Extras) == 20 && x.Reason != "Removing" })
	if r.configMaps() != 20 {
		t.Errorf("%d are left, 20 are refused: %+v", r.configMaps(), status)
	}
}

func (r *rig) denyDeletes(when string) {
	r.t.Helper()
	name := r.ns + "-deny"
	r.create("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "", map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"failurePolicy": "Fail",
			"matchConstraints": map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": r.ns}},
				"resourceRules": []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"DELETE"}, "resources": []any{"configmaps"}}}},
			"validations": []any{map[string]any{"expression": "!(" + when + ")", "message": "kept by a test"}}}})
	r.create("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", "", map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"policyName": name, "validationActions": []any{"Deny"}}})
	r.t.Cleanup(func() {
		for _, res := range []string{"validatingadmissionpolicybindings", "validatingadmissionpolicies"} {
			_ = r.res("admissionregistration.k8s.io/v1", res, "").Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	})
	r.create("v1", "configmaps", r.ns, r.configMapObject("cm-99-probe", nil, nil))
	r.eventually("deletes are denied", func() bool {
		return r.res("v1", "configmaps", r.ns).Delete(context.Background(), "cm-99-probe", metav1.DeleteOptions{DryRun: []string{"All"}}) != nil
	})
}
