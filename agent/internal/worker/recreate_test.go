package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

func volume(class string) string {
	return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: $NS}\nspec: {accessModes: [ReadWriteOnce], storageClassName: " + class + ", resources: {requests: {storage: 1Gi}}}\n"
}

func statefulSet(service string) string {
	return strings.ReplaceAll(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: $NS}
spec:
  replicas: 0
  serviceName: SERVICE
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: main, image: "db:1"}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`, "SERVICE", service)
}

func jobOf(image string) string {
	return "apiVersion: batch/v1\nkind: Job\nmetadata: {name: once, namespace: $NS}\nspec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: \"" + image + "\"}]}}}\n"
}

var recreate = []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}

func (r *rig) uidOf(apiVersion, resource, name string) types.UID {
	r.t.Helper()
	u := r.get(apiVersion, resource, name)
	if u == nil {
		r.t.Fatalf("%s %s is gone", resource, name)
	}
	return u.GetUID()
}

// failed waits until the sync has failed.
func (r *rig) failed(s fleet.Sync) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(s.Module.Name, "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && x.Generation == s.Generation })
}

func (r *rig) applied(s fleet.Sync) fleet.SyncStatus {
	r.t.Helper()
	return r.wait(s.Module.Name, "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied && x.Generation == s.Generation })
}

// What nobody can bring back is recreated only by a policy that names the kind.
func TestKindsWithDataAreRecreatedByNameOnly(t *testing.T) {
	for _, tc := range []struct{ name, apiVersion, resource, kind, before, after string }{
		{"data", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", volume("fast"), volume("slow")},
		{"db", "apps/v1", "statefulsets", "StatefulSet", statefulSet("one"), statefulSet("two")},
	} {
		t.Run(tc.kind, func(t *testing.T) {
			r := newRig(t)
			a := r.bundle("shop", recreate, tc.before)
			r.set([]fleet.Sync{a})
			r.applied(a)
			uid := r.uidOf(tc.apiVersion, tc.resource, tc.name)
			b := r.bundle("shop", recreate, tc.after)
			r.set([]fleet.Sync{b})
			if status := r.failed(b); status.Reason != "Immutable" || !strings.Contains(status.Message, "{match: {kinds: ["+tc.kind+"]}, recreate: IfImmutable}") {
				t.Errorf("status %+v", status)
			}
			if u := r.get(tc.apiVersion, tc.resource, tc.name); u == nil || u.GetUID() != uid || u.GetDeletionTimestamp() != nil {
				t.Fatal("deleted under a policy that does not name the kind")
			}
			c := r.bundle("shop", []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{tc.kind}}, Recreate: fleet.RecreateIfImmutable}}, tc.after)
			r.set([]fleet.Sync{c})
			r.applied(c)
			if r.uidOf(tc.apiVersion, tc.resource, tc.name) == uid {
				t.Error("not recreated under a policy that names the kind")
			}
		})
	}
}

// thing is a kind of which the plural can be another one.
func thing(plural string) string {
	return "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.$NS.example.com}\nspec: {group: $NS.example.com, scope: " + plural +
		", names: {kind: Thing, plural: things}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}\n"
}

func TestDefinitionInUseIsNotRecreated(t *testing.T) {
	r := newRig(t)
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"CustomResourceDefinition"}}, Recreate: fleet.RecreateIfImmutable}}
	instance := "apiVersion: $NS.example.com/v1\nkind: Thing\nmetadata: {name: a, namespace: $NS}\n"
	a := r.bundle("shop", policies, thing("Namespaced"), instance)
	r.set([]fleet.Sync{a})
	r.ready(a)
	held := r.bundle("shop", policies, thing("Cluster"), instance)
	r.set([]fleet.Sync{held})
	if status := r.failed(held); !strings.Contains(status.Message, "would go with it: "+r.ns+"/a") {
		t.Errorf("status %+v", status)
	}
	if _, err := r.res(r.ns+".example.com/v1", "things", r.ns).Get(context.Background(), "a", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	alone := r.bundle("shop", policies, thing("Cluster"))
	r.set([]fleet.Sync{alone})
	r.failed(alone)
	r.delete(r.ns+".example.com/v1", "things", "a")
	b := r.bundle("shop", policies, thing("Cluster"), configMap("x", "k: v"))
	r.set([]fleet.Sync{b})
	r.ready(b)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

// no is a policy that refuses new Jobs of an image.
const no = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-$NS}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [batch], apiVersions: [v1], operations: [CREATE], resources: [jobs]}]}
  validations: [{expression: "object.spec.template.spec.containers.all(c, c.image != 'x:2')", message: "image x:2 is not allowed"}]
`

const noBinding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-$NS}
spec: {policyName: no-$NS, validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}}
`

// deniesImage has admission refuse new Jobs of the image x:2.
func (r *rig) deniesImage() {
	r.t.Helper()
	r.clusterScoped("validatingadmissionpolicies", no)
	r.clusterScoped("validatingadmissionpolicybindings", noBinding)
	r.eventually("the policy refuses", func() bool {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "batch/v1", "kind": "Job", "metadata": map[string]any{"name": "probe"},
			"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "c", "image": "x:2"}}}}}}}
		_, err := r.res("batch/v1", "jobs", r.ns).Create(context.Background(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "not allowed")
	})
}

// Nothing is deleted for an object that the server would refuse.
func TestNothingIsDeletedForAnInvalidObject(t *testing.T) {
	r := newRig(t)
	a := r.bundle("shop", recreate, deployment("web", 1), jobOf("x:1"))
	r.set([]fleet.Sync{a})
	r.ready(a)
	web, once := r.uidOf("apps/v1", "deployments", "web"), r.uidOf("batch/v1", "jobs", "once")

	b := r.bundle("shop", recreate, strings.Replace(deployment("web", 1), "selector: {matchLabels: {app: web}}", "selector: {matchLabels: {app: web2}}", 1), jobOf("x:1"))
	r.set([]fleet.Sync{b})
	if status := r.failed(b); status.Reason != "Invalid" || r.uidOf("apps/v1", "deployments", "web") != web {
		t.Errorf("one cause of two is immutability: %+v", status)
	}

	r.deniesImage()
	c := r.bundle("shop", recreate, deployment("web", 1), jobOf("x:2"))
	r.set([]fleet.Sync{c})
	status := r.failed(c)
	if status.Reason != "Immutable" || !strings.Contains(status.Message, "nothing was deleted") || !strings.Contains(status.Message, "image x:2 is not") {
		t.Errorf("status %+v", status)
	}
	if r.uidOf("batch/v1", "jobs", "once") != once {
		t.Error("deleted, though the server refuses the new one")
	}
	d := r.bundle("shop", recreate, deployment("web", 1), jobOf("x:3"))
	r.set([]fleet.Sync{d})
	r.ready(d)
	if r.uidOf("batch/v1", "jobs", "once") == once {
		t.Error("not recreated, though the server takes the new one")
	}
}

// What the old object holds, the new one may have: its place in a quota, an address, a port.
func TestRecreateTakesThePlaceOfTheOldObject(t *testing.T) {
	r := newRig(t)
	service := "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: $NS}\nspec: {type: NodePort, clusterIP: %s, selector: {app: web}, ports: [{port: 80, nodePort: %d}]}\n"
	r.create("v1", "services", r.ns, map[string]any{"apiVersion": "v1", "kind": "Service", "metadata": map[string]any{"name": "probe"},
		"spec": map[string]any{"type": "NodePort", "ports": []any{map[string]any{"port": int64(80)}}}})
	probe := r.get("v1", "services", "probe")
	ip, _, _ := unstructured.NestedString(probe.Object, "spec", "clusterIP")
	ports, _, _ := unstructured.NestedSlice(probe.Object, "spec", "ports")
	port := ports[0].(map[string]any)["nodePort"].(int64)
	r.delete("v1", "services", "probe")
	a := r.bundle("shop", recreate, jobOf("x:1"), strings.Replace(fmt.Sprintf(service, "null", port), ", clusterIP: null", "", 1))
	r.set([]fleet.Sync{a})
	r.ready(a)
	r.create("v1", "resourcequotas", r.ns, map[string]any{"apiVersion": "v1", "kind": "ResourceQuota", "metadata": map[string]any{"name": "q"},
		"spec": map[string]any{"hard": map[string]any{"count/jobs.batch": "1", "services": "1"}}})
	r.used("count/jobs.batch", "1")
	once, web := r.uidOf("batch/v1", "jobs", "once"), r.uidOf("v1", "services", "web")
	b := r.bundle("shop", recreate, jobOf("x:2"), fmt.Sprintf(service, ip, port))
	r.set([]fleet.Sync{b})
	r.ready(b)
	if r.uidOf("batch/v1", "jobs", "once") == once || r.uidOf("v1", "services", "web") == web {
		t.Error("not recreated")
	}
}

// dying keeps what the store had when an object was deleted, and lets no write through after that.
type dying struct {
	next  http.RoundTripper
	store *memory
	mu    sync.Mutex
	files map[string][]byte // nil: nothing was deleted yet
}

func (d *dying) RoundTrip(q *http.Request) (*http.Response, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files != nil && q.Method == http.MethodPatch {
		return nil, errors.New("connection reset")
	}
	if q.Method == http.MethodDelete {
		d.store.mu.Lock()
		d.files = maps.Clone(d.store.files)
		d.store.mu.Unlock()
	}
	return d.next.RoundTrip(q)
}

// The agent died between the delete and the create; that the object is gone is nobody's drift.
func TestCrashWithinARecreation(t *testing.T) {
	r := newRig(t)
	r.stop()
	cut := &dying{store: r.store}
	var back atomic.Bool
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		cut.next = next
		return roundTrip(func(q *http.Request) (*http.Response, error) {
			if back.Load() {
				return next.RoundTrip(q)
			}
			return cut.RoundTrip(q)
		})
	})
	r.start()
	policies := []fleet.Policy{{Recreate: fleet.RecreateIfImmutable, Drift: fleet.DriftReport}}
	a := r.bundle("shop", policies, jobOf("x:1"))
	r.set([]fleet.Sync{a})
	r.ready(a)
	r.set([]fleet.Sync{r.bundle("shop", policies, jobOf("x:2"))})
	r.eventually("the old one is deleted", func() bool { return r.get("batch/v1", "jobs", "once") == nil })
	r.stop()
	r.store.mu.Lock()
	r.store.files = cut.files
	r.store.mu.Unlock()
	back.Store(true)
	r.start()
	a = r.again(a)
	r.set([]fleet.Sync{a})
	r.ready(a)
	if r.get("batch/v1", "jobs", "once") == nil {
		t.Error("not created again")
	}
}

// A recreation stops for a newer word, as a deletion does.
func TestRecreationStopsForANewerWord(t *testing.T) {
	r := newRig(t)
	a := r.bundle("shop", recreate, jobOf("x:1"))
	r.set([]fleet.Sync{a})
	r.ready(a)
	uid := r.uidOf("batch/v1", "jobs", "once")
	b := r.bundle("shop", recreate, jobOf("x:2"))
	back := r.bundle("shop", recreate, jobOf("x:1"))
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.URL.Query().Get("dryRun") != "" {
			once.Do(func() { r.set([]fleet.Sync{back}) })
		}
		return nil
	})
	r.set([]fleet.Sync{b})
	r.ready(back)
	if r.uidOf("batch/v1", "jobs", "once") != uid {
		t.Error("deleted for a revision that was taken back before")
	}
}

// A StatefulSet that is recreated leaves its claims.
func TestClaimsOutliveARecreation(t *testing.T) {
	r := newRig(t)
	set := func(size string) string {
		o := strings.Replace(statefulSet("one"), "  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}\n", "", 1)
		o = strings.Replace(o, "replicas: 0", "replicas: 1", 1)
		return strings.Replace(o, "1Gi", size, 1)
	}
	s := r.bundle("shop", recreate, set("1Gi"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.eventually("a claim is made", func() bool { return r.get("v1", "persistentvolumeclaims", "data-db-0") != nil })
	claim, uid := r.uidOf("v1", "persistentvolumeclaims", "data-db-0"), r.uidOf("apps/v1", "statefulsets", "db")
	s = r.bundle("shop", recreate, set("2Gi"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	if r.uidOf("apps/v1", "statefulsets", "db") == uid {
		t.Error("not made again")
	}
	if u := r.get("v1", "persistentvolumeclaims", "data-db-0"); u == nil || u.GetUID() != claim || u.GetDeletionTimestamp() != nil {
		t.Error("the claim went")
	}
}
