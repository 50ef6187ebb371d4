package worker

import (
	"context"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
)

const denyAll = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: $NS}\nspec: {podSelector: {}, policyTypes: [Ingress, Egress]}\n"

const hook = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: hook-$NS}
webhooks:
- name: a.example.com
  namespaceSelector: {}
  objectSelector: {matchLabels: {never: ever}}
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
  clientConfig: {url: "https://127.0.0.1:1/x"}
  rules: [{apiGroups: [x.example.com], apiVersions: [v1], resources: [xs], operations: [CREATE]}]
`

// A selector that is empty selects everything. Somebody who puts labels into one takes the field from us.
func TestEmptySelectorsAreKept(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, denyAll, hook)
	r.set([]fleet.Sync{s})
	r.ready(s)
	hooks, name := r.res("admissionregistration.k8s.io/v1", "validatingwebhookconfigurations", ""), "hook-"+r.ns
	t.Cleanup(func() { _ = hooks.Delete(context.Background(), name, metav1.DeleteOptions{}) })

	r.patch("networking.k8s.io/v1", "networkpolicies", "deny", "ana", `{"spec":{"podSelector":{"matchLabels":{"nothing":"here"}}}}`)
	r.eventually("the policy selects every pod again", func() bool {
		selector, found, _ := unstructured.NestedMap(r.get("networking.k8s.io/v1", "networkpolicies", "deny").Object, "spec", "podSelector")
		return found && len(selector) == 0
	})
	narrow := `[{"op":"replace","path":"/webhooks/0/namespaceSelector","value":{"matchLabels":{"a":"b"}}}]`
	if _, err := hooks.Patch(context.Background(), name, types.JSONPatchType, []byte(narrow), metav1.PatchOptions{FieldManager: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.eventually("the webhook selects every namespace again", func() bool {
		u, err := hooks.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		list, _, _ := unstructured.NestedSlice(u.Object, "webhooks")
		selector, found := list[0].(map[string]any)["namespaceSelector"].(map[string]any)
		return found && len(selector) == 0
	})
	r.wait("shop", "ready after 2 corrections", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 2 })
}

func TestDriftInsideAnEmptyFieldIsReported(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", []fleet.Policy{{Drift: fleet.DriftReport}}, denyAll)
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("networking.k8s.io/v1", "networkpolicies", "deny", "ana", `{"spec":{"podSelector":{"matchLabels":{"a":"b"}}}}`)
	status := r.wait("shop", "drifted", func(x fleet.SyncStatus) bool { return x.States[0].Drift == fleet.DriftDrifted })
	wantDrift(t, status, fleet.ObjectException{Field: "/spec/podSelector", Want: "{}", Live: `{"matchLabels":{"a":"b"}}`, ChangedBy: "ana", Seen: 1})
	r.patch("networking.k8s.io/v1", "networkpolicies", "deny", "ana", `{"spec":{"podSelector":{"matchLabels":null}}}`)
	r.wait("shop", "as wanted again", func(x fleet.SyncStatus) bool { return x.Ready && x.States[0].Drift == fleet.DriftInSync })
}

const empties = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NS, annotations: {}}
spec:
  replicas: 1
  strategy: {}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      securityContext: {}
      affinity: {}
      nodeSelector: {}
      tolerations: []
      initContainers: []
      volumes: [{name: tmp, emptyDir: {}}]
      containers: [{name: main, image: "nginx:1", resources: {}, securityContext: {}, env: [], volumeMounts: [{name: tmp, mountPath: /tmp}]}]
`

// What the server or others put into a field that we leave empty, and that may have several owners, is theirs.
func TestFieldsInsideAnEmptyOneAreOthers(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, empties)
	r.set([]fleet.Sync{s})
	r.ready(s)
	theirs := `{"spec":{"strategy":{"rollingUpdate":{"maxSurge":3}},"template":{"spec":{"securityContext":{"runAsUser":7},
		"volumes":[{"name":"tmp","emptyDir":{"medium":"Memory"}},{"name":"more","emptyDir":{}}],
		"containers":[{"name":"main","env":[{"name":"A","value":"b"}],"resources":{"limits":{"cpu":"1"}},"securityContext":{"privileged":true}}]}}}}`
	if _, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), "web", types.StrategicMergePatchType, []byte(theirs), metav1.PatchOptions{FieldManager: "ana"}); err != nil {
		t.Fatal(err)
	}
	r.patch("apps/v1", "deployments", "web", "ana", `{"spec":{"template":{"spec":{"nodeSelector":{"disk":"ssd"}}}}}`)
	r.eventually("what is ours as a whole is empty again", func() bool {
		_, found, _ := unstructured.NestedMap(r.get("apps/v1", "deployments", "web").Object, "spec", "template", "spec", "nodeSelector")
		return !found
	})
	r.wait("shop", "ready after 1 correction", func(x fleet.SyncStatus) bool { return x.Ready && x.Corrections == 1 })
	text, err := r.get("apps/v1", "deployments", "web").MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"maxSurge":3`, `"runAsUser":7`, `"medium":"Memory"`, `"cpu":"1"`, `"privileged":true`, `"name":"A"`, `"name":"more"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s of somebody else is gone", want)
		}
	}
}

// What managedFields do not say is ours counts as somebody else's when the module goes.
func TestOwnershipThatWasTakenIsTakenBack(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v, extra: v"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.m.Freeze(true, "so that both changes come as one")
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"extra":"other"}}`)
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"extra":"v"}}`)
	r.patch("v1", "configmaps", "b", "ana", `{"metadata":{"managedFields":[{}]}}`)
	r.m.Freeze(false, "")
	for _, name := range []string{"a", "b"} {
		r.eventually("the fields are ours again", func() bool {
			for _, m := range r.get("v1", "configmaps", name).GetManagedFields() {
				if m.Manager == fleet.FieldManager && m.Operation == metav1.ManagedFieldsOperationApply {
					return strings.Contains(m.FieldsV1.String(), "f:extra") == (name == "a")
				}
			}
			return false
		})
	}
	r.ready(s)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") != nil || r.get("v1", "configmaps", "b") != nil {
		t.Error("objects of ours are left")
	}
}

// losing has the answers to writes lost on the way, while it is on.
type losing struct {
	next http.RoundTripper
	on   atomic.Bool
}

func (l *losing) RoundTrip(q *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(q)
	if err != nil || q.Method != http.MethodPatch || !l.on.Load() {
		return resp, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return answer(q, http.StatusGatewayTimeout, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"timeout","reason":"Timeout","code":504}`), nil
}

// losingRig is a rig of which the answers to writes can get lost.
func losingRig(t *testing.T) (*rig, *losing) {
	r, l := newRig(t), &losing{}
	r.stop()
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper { l.next = next; return l })
	r.start()
	return r, l
}

// again is the same sync under a newer generation.
func (r *rig) again(s fleet.Sync) fleet.Sync {
	r.gen++
	s.Generation = r.gen
	return s
}

func TestRollbackAfterALostAnswer(t *testing.T) {
	for name, policy := range map[string]string{"correct": fleet.DriftCorrect, "report": fleet.DriftReport} {
		t.Run(name, func(t *testing.T) {
			r, answers := losingRig(t)
			policies := []fleet.Policy{{Drift: policy}}
			a := r.bundle("shop", policies, configMap("a", "k: one"), configMap("b", "k: one"))
			r.set([]fleet.Sync{a})
			r.ready(a)
			answers.on.Store(true)
			r.set([]fleet.Sync{r.bundle("shop", policies, configMap("a", "k: one, extra: new"), configMap("b", "k: two"))})
			r.eventually("the newer revision is committed", func() bool { return r.data("a", "extra") == "new" && r.data("b", "k") == "two" })
			answers.on.Store(false)
			a = r.again(a)
			r.set([]fleet.Sync{a})
			if status := r.ready(a); r.data("a", "extra") != "" || r.data("b", "k") != "one" || status.Corrections != 0 {
				t.Errorf("extra is %q, k of b is %q, status %+v", r.data("a", "extra"), r.data("b", "k"), status)
			}
		})
	}
}

// The agent died after its write was committed and before it noted so; meanwhile the module went back.
func TestRollbackAfterACrash(t *testing.T) {
	for name, policy := range map[string]string{"correct": fleet.DriftCorrect, "report": fleet.DriftReport} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			policies := []fleet.Policy{{Drift: policy}}
			a := r.bundle("shop", policies, configMap("a", "k: one"), configMap("b", "k: one"))
			r.set([]fleet.Sync{a})
			r.ready(a)
			r.stop()
			r.store.mu.Lock()
			before := maps.Clone(r.store.files)
			r.store.mu.Unlock()
			r.start()
			b := r.bundle("shop", policies, configMap("a", "k: one, extra: new"), configMap("b", "k: two"))
			r.set([]fleet.Sync{b})
			r.ready(b)
			r.stop()
			r.store.mu.Lock()
			r.store.files = before
			r.store.mu.Unlock()
			r.start()
			a = r.again(a)
			r.set([]fleet.Sync{a})
			if status := r.ready(a); r.data("a", "extra") != "" || r.data("b", "k") != "one" || status.Corrections != 0 {
				t.Errorf("extra is %q, k of b is %q, status %+v", r.data("a", "extra"), r.data("b", "k"), status)
			}
		})
	}
}
