package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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

// deny has an admission policy deny what is done to objects of the rig's namespace, or to that, until its end.
func (r *rig) deny(operation, resource, when string) (end func()) {
	r.t.Helper()
	name := r.ns + "-deny"
	r.create("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "", map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"failurePolicy": "Fail",
			"matchConstraints": map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{"kubernetes.io/metadata.name": r.ns}},
				"resourceRules": []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{operation}, "resources": []any{resource}}}},
			"validations": []any{map[string]any{"expression": "!(" + when + ")", "message": "kept by a test"}}}})
	r.create("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", "", map[string]any{
		"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"policyName": name, "validationActions": []any{"Deny"}}})
	end = func() {
		for _, res := range []string{"validatingadmissionpolicybindings", "validatingadmissionpolicies"} {
			_ = r.res("admissionregistration.k8s.io/v1", res, "").Delete(context.Background(), name, metav1.DeleteOptions{})
		}
	}
	r.t.Cleanup(end)
	return end
}

func (r *rig) denyDeletes(when string) {
	r.t.Helper()
	r.deny("DELETE", "configmaps", when)
	r.create("v1", "configmaps", r.ns, r.configMapObject("cm-99-probe", nil, nil))
	r.eventually("deletes are denied", func() bool {
		return r.res("v1", "configmaps", r.ns).Delete(context.Background(), "cm-99-probe", metav1.DeleteOptions{DryRun: []string{"All"}}) != nil
	})
}

// A policy of the cluster denies each change of a Namespace that a module uses. The rest of the module is applied and removed, the status names what is
// denied, nothing is called removed with the module's label on the Namespace, and all goes on when the denial ends.
func TestUsedNamespaceThatMayNotBeChanged(t *testing.T) {
	r := newRig(t)
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS, labels: {team: a}}\n"
	s := r.bundle("shop", nil, namespace, configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	end := r.deny("UPDATE", "namespaces", "true")
	label := func(dry ...string) (team string, err error) {
		u, err := r.res("v1", "namespaces", "").Patch(context.Background(), r.ns, types.MergePatchType, []byte(`{"metadata":{"annotations":{"probe":"x"}}}`), metav1.PatchOptions{DryRun: dry})
		if err != nil {
			u, _ = r.res("v1", "namespaces", "").Get(context.Background(), r.ns, metav1.GetOptions{})
		}
		return u.GetLabels()["team"], err
	}
	r.eventually("changes are denied", func() bool { _, err := label("All"); return err != nil })
	denied := func(generation uint64, phase fleet.SyncPhase) {
		t.Helper()
		r.wait("shop", "told what is denied", func(x fleet.SyncStatus) bool {
			return x.Generation == generation && x.Phase == phase && strings.Contains(x.Message, "Namespace "+r.ns+": ") && strings.Contains(x.Message, "kept by a test")
		})
		if team, _ := label("All"); team != "a" {
			t.Errorf("the label is %q", team)
		}
	}
	s = r.bundle("shop", nil, configMap("a", "k: w"))
	r.set([]fleet.Sync{s})
	denied(s.Generation, fleet.PhaseApplied)
	gone := r.tombstone("shop", fleet.DeleteDelete)
	r.set(nil, gone)
	denied(gone.Generation, fleet.PhaseRemoving)
	r.eventually("the rest is gone", func() bool { return r.get("v1", "configmaps", "a") == nil })
	end()
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if team, err := label("All"); team != "" || err != nil {
		t.Errorf("the label is %q, %v", team, err)
	}
}
