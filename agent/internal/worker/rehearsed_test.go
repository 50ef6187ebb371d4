package worker

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// What is to take the place of an object may be refused for what only its own name has. Nothing is deleted then.
func TestNothingIsDeletedThatCannotComeBack(t *testing.T) {
	service := func(address string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: $NS}\nspec: {" + address + "ports: [{port: 80}]}\n"
	}
	for _, tc := range []struct {
		name, apiVersion, resource, object, before, says string
		after                                            func(*rig) string
	}{
		{"a quota below what is there", "batch/v1", "jobs", "once", jobOf("a:1"), "exceeded quota", func(r *rig) string {
			r.create("batch/v1", "jobs", r.ns, r.object(strings.ReplaceAll(jobOf("b:1"), "once", "other")))
			r.quota("count/jobs.batch", "1")
			return jobOf("a:2")
		}},
		{"a policy that names the object", "batch/v1", "jobs", "once", jobOf("a:1"), "not to come back", func(r *rig) string {
			r.forbidsOnce()
			return jobOf("a:2")
		}},
		{"an address out of range", "v1", "services", "web", service(""), "range", func(*rig) string {
			return service("clusterIP: 192.0.2.1, ")
		}},
		{"an address that another one has", "v1", "services", "web", service(""), "allocated", func(r *rig) string {
			r.create("v1", "services", r.ns, r.object(strings.ReplaceAll(service(""), "web", "other")))
			ip, _, _ := unstructured.NestedString(r.get("v1", "services", "other").Object, "spec", "clusterIP")
			return service("clusterIP: " + ip + ", ")
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t)
			a := r.bundle("shop", recreate, tc.before)
			r.set([]fleet.Sync{a})
			r.applied(a)
			uid := r.uidOf(tc.apiVersion, tc.resource, tc.object)
			b := r.bundle("shop", recreate, tc.after(r))
			r.set([]fleet.Sync{b})
			status := r.failed(b)
			if u := r.get(tc.apiVersion, tc.resource, tc.object); u == nil || u.GetUID() != uid || u.GetDeletionTimestamp() != nil {
				t.Errorf("was deleted; status %+v", status)
			}
			if status.Reason != "Immutable" || !strings.Contains(status.Message, tc.says) {
				t.Errorf("status %+v", status)
			}
		})
	}
}

// quota limits the rig's namespace, and waits until what is there is counted.
func (r *rig) quota(resource, hard string) {
	r.t.Helper()
	r.create("v1", "resourcequotas", r.ns, map[string]any{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": "q"},
		"spec": map[string]any{"hard": map[string]any{resource: hard}}})
	r.eventually("the quota is counted", func() bool {
		used, _, _ := unstructured.NestedString(r.get("v1", "resourcequotas", "q").Object, "status", "used", resource)
		return used != ""
	})
}

// forbidsOnce has the cluster refuse a Job of one name.
func (r *rig) forbidsOnce() {
	r.t.Helper()
	r.clusterScoped("validatingadmissionpolicies", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: once-$NS}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}]}
  validations: [{expression: "object.metadata.name != 'once'", message: it is not to come back}]
`)
	r.clusterScoped("validatingadmissionpolicybindings", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: once-$NS}
spec: {policyName: once-$NS, validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}}
`)
	r.eventually("the policy refuses", func() bool {
		_, err := r.res("batch/v1", "jobs", r.ns).Create(context.Background(), &unstructured.Unstructured{Object: r.object(jobOf("a:2"))}, metav1.CreateOptions{DryRun: []string{"All"}})
		return err != nil && strings.Contains(err.Error(), "not to come back")
	})
}
