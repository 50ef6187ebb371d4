package worker

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
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
			r.used("count/jobs.batch", "2")
			return jobOf("a:2")
		}},
		{"two quotas, one of which is only full", "batch/v1", "jobs", "once", jobOf("a:1"), "quota", func(r *rig) string {
			r.create("batch/v1", "jobs", r.ns, r.object(strings.ReplaceAll(jobOf("b:1"), "once", "other")))
			for _, full := range []string{"p", "q", "r", "s"} {
				hard := "2"
				if full == "q" {
					hard = "1"
				}
				r.quotaOf(full, "count/jobs.batch", hard)
				r.usedOf(full, "count/jobs.batch", "2")
			}
			return jobOf("a:2")
		}},
		{"a full quota of claims, and one of their storage", "v1", "persistentvolumeclaims", "data", claimOf("ReadWriteOnce", "1Gi"), "requests.storage", func(r *rig) string {
			for _, full := range []string{"p", "q", "r", "s"} {
				r.quotaOf(full, "persistentvolumeclaims", "1")
				r.usedOf(full, "persistentvolumeclaims", "1")
			}
			r.quotaOf("storage", "requests.storage", "3Gi")
			r.usedOf("storage", "requests.storage", "1Gi")
			return claimOf("ReadWriteMany", "5Gi")
		}},
		{"a policy that names the object", "batch/v1", "jobs", "once", jobOf("a:1"), "not to come back", func(r *rig) string {
			r.forbidsOnce()
			return jobOf("a:2")
		}},
		{"a webhook that knows one of the name", "batch/v1", "jobs", "once", jobOf("a:1"), "in another cluster", func(r *rig) string {
			r.denies(batchv1.SchemeGroupVersion.WithResource("jobs"), "Job", "CREATE", "once", metav1.Status{Code: http.StatusConflict,
				Reason: metav1.StatusReasonAlreadyExists, Message: "jobs.batch \"once\" already exists in another cluster", Details: &metav1.StatusDetails{Kind: "jobs", Name: "once"}})
			return jobOf("a:2")
		}},
		{"a quota that counts only the new one", "v1", "pods", "web", pod("web", ""), "exceeded quota", func(r *rig) string {
			r.clusterScoped("priorityclasses", "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high-$NS}\nvalue: 5\n")
			r.eventually("who admits pods has heard of the class", func() bool {
				other := &unstructured.Unstructured{Object: r.object(pod("other", "priorityClassName: high-$NS, "))}
				_, err := r.res("v1", "pods", r.ns).Create(context.Background(), other, metav1.CreateOptions{})
				return err == nil
			})
			r.quota("pods", "1", map[string]any{"scopeName": "PriorityClass", "operator": "In", "values": []any{"high-" + r.ns}})
			r.used("pods", "1")
			return pod("web", "priorityClassName: high-$NS, ")
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
			policies := append(slices.Clone(recreate), fleet.Policy{Match: fleet.PolicyMatch{Kinds: []string{"PersistentVolumeClaim"}}, Recreate: fleet.RecreateIfImmutable})
			a := r.bundle("shop", policies, tc.before)
			r.set([]fleet.Sync{a})
			r.applied(a)
			uid := r.uidOf(tc.apiVersion, tc.resource, tc.object)
			b := r.bundle("shop", policies, tc.after(r))
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

func claimOf(mode, size string) string {
	return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: $NS}\nspec: {storageClassName: none, accessModes: [" + mode + "], resources: {requests: {storage: " + size + "}}}\n"
}

func pod(name, more string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", namespace: $NS}\nspec: {" + more + "containers: [{name: main, image: \"a:1\"}]}\n"
}

// quota limits the rig's namespace.
func (r *rig) quota(resource, hard string, scopes ...any) {
	r.t.Helper()
	r.quotaOf("q", resource, hard, scopes...)
}

// quotaOf is quota under a name.
func (r *rig) quotaOf(name, resource, hard string, scopes ...any) {
	r.t.Helper()
	spec := map[string]any{"hard": map[string]any{resource: hard}}
	if len(scopes) > 0 {
		spec["scopeSelector"] = map[string]any{"matchExpressions": scopes}
	}
	r.create("v1", "resourcequotas", r.ns, map[string]any{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": name}, "spec": spec})
	r.eventually("the quota counts", func() bool {
		_, found, _ := unstructured.NestedString(r.get("v1", "resourcequotas", name).Object, "status", "used", resource)
		return found
	})
}

// used waits until the quota counts so many.
func (r *rig) used(resource, want string) {
	r.t.Helper()
	r.usedOf("q", resource, want)
}

// usedOf is used of a quota by its name. A quota is counted when it is made, and then once in minutes; who counts may not have heard yet of
// what was made just before. Then it is made again.
func (r *rig) usedOf(name, resource, want string) {
	r.t.Helper()
	again := time.Now().Add(time.Second)
	r.eventually("the quota has counted "+want, func() bool {
		q := r.get("v1", "resourcequotas", name)
		used, _, _ := unstructured.NestedString(q.Object, "status", "used", resource)
		if used != want && time.Now().After(again) {
			again = time.Now().Add(time.Second)
			r.delete("v1", "resourcequotas", name)
			r.create("v1", "resourcequotas", r.ns, map[string]any{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": name}, "spec": q.Object["spec"]})
		}
		return used == want
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
