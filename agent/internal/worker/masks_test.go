package worker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// shown is a live ConfigMap as people see it.
func (r *rig) shown(name string) string {
	r.t.Helper()
	live := r.get("v1", "configmaps", name).Object
	if err := r.m.Conceal(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: name}, live); err != nil {
		r.t.Fatal(err)
	}
	text, _ := json.Marshal(live)
	return string(text)
}

// TestSecretOfAHeldObjectIsConcealedAfterARotation: a module is held; the secret gets another value; the object has the one of before still.
func TestSecretOfAHeldObjectIsConcealedAfterARotation(t *testing.T) {
	r := newRig(t)
	const before, after = "canary-before-1a2b", "other-value-9z8y"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db"`)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.set([]fleet.Sync{s})
	r.sends(map[string]map[string]string{"db": {"password": before}})
	r.ready(s)
	if strings.Contains(r.shown("uses"), before) {
		t.Fatal("not concealed at all")
	}
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	r.sends(map[string]map[string]string{"db": {"password": after}})
	r.eventually("the new value is known", func() bool {
		v, ok := r.m.lasts.get(s.Module, keyOfSecret(fleet.SecretKey{Name: "db", Key: "password"}))
		return ok && v.Value == after
	})
	if got := r.shown("uses"); strings.Contains(got, before) {
		t.Errorf("shown: %s", got)
	}
}

// TestSecretOfAKeptObjectIsConcealed: a revision drops a binding, and the object that has its value, which a policy keeps. The value is in force.
func TestSecretOfAKeptObjectIsConcealed(t *testing.T) {
	r := newRig(t)
	const canary = "canary-kept-1a2b"
	r.source("Secret", "db", `stringData: {password: `+canary+`}`)
	r.source("ConfigMap", "net", `data: {host: one.example}`)
	pw := fleet.LateBinding{Name: "PW", Object: r.fieldOf("Secret", "db", "data.password")}
	host := fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host")}
	keep := []fleet.Policy{{Prune: fleet.PruneOnModuleDelete}}
	one := r.bundle("shop", keep, configMap("uses", `url: "db://u:${PW}@db"`), configMap("other", `h: "${HOST}"`))
	one.Policies = fleet.Digest{}
	s := r.binding(one, pw, host)
	r.store.policies[s.Policies] = keep
	r.set([]fleet.Sync{s})
	r.ready(s)
	if strings.Contains(r.shown("uses"), canary) {
		t.Fatal("not concealed at all")
	}
	next := r.binding(r.bundle("shop", nil, configMap("other", `h: "${HOST}"`)), host)
	r.store.policies[next.Policies] = keep
	r.set([]fleet.Sync{next})
	x := r.wait("shop", "kept", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && len(x.Extras) == 1 })
	if got := r.shown("uses"); strings.Contains(got, canary) {
		t.Errorf("shown: %s\nextras %+v", got, x.Extras)
	}
}

// TestPreviewOfAHeldObject: a held module has a revision that does not use a secret any more, and another binding yet. What is live has the secret.
func TestPreviewOfAHeldObject(t *testing.T) {
	r := newRig(t)
	const canary = "canary-preview-1a2b"
	r.source("ConfigMap", "net", `data: {host: one.example}`)
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}}
	host := fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host")}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db", host: "${HOST}"`)), pw, host)
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	next := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://db", host: "${HOST}"`)), host)
	r.set([]fleet.Sync{next})
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Phase == fleet.PhaseHeld })
	p, err := r.m.Preview(context.Background(), next, r.store)
	told, _ := json.Marshal(p)
	if err != nil || strings.Contains(string(told), canary) {
		t.Errorf("%v: preview %s", err, told)
	}
}

// TestConcealWhileTheAgentStarts: a question that comes before the inventory is read.
func TestConcealWhileTheAgentStarts(t *testing.T) {
	r := newRig(t)
	const canary = "canary-start-1a2b"
	pw := fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}}
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db"`)), pw)
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	m, err := New(Options{Config: r.config, Contents: r.store, State: r.store, HubID: r.hub, ClusterUID: "uid-1", Report: func(fleet.SyncStatus) {}})
	if err != nil {
		t.Fatal(err)
	}
	live := r.get("v1", "configmaps", "uses").Object
	if err := m.Conceal(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "uses"}, live); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("%v; the object is told", err)
	}
	if _, _, err := m.Events(t.Context(), s.Module, nil, 1); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("%v; Events are told", err)
	}
	r.start()
}

// TestClusterScopedObjectIsConcealed: the hub asks for an object as the bundle lists it, in the module's namespace; its kind has none.
func TestClusterScopedObjectIsConcealed(t *testing.T) {
	r := newRig(t)
	const canary = "canary-cluster-1a2b"
	defs := r.bundle("defs", nil, scopeCluster())
	r.set([]fleet.Sync{defs})
	r.ready(defs)
	s := r.binding(r.bundle("shop", nil, strings.Replace(zone, "size: 1", "size: 1, dsn: \"db://u:${PW}@db\"", 1)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{defs, s})
	r.ready(s)
	b, err := r.store.Bundle(s.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	id := b.Entries[0].ID
	live, err := r.client.Resource(gvr(r.ns+".example.com/v1", "gadgets")).Get(t.Context(), "z", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.m.Conceal(id, live.Object); err != nil {
		t.Fatal(err)
	}
	if text, _ := json.Marshal(live.Object); strings.Contains(string(text), canary) {
		t.Errorf("%s shown: %s", id, text)
	}
}

// TestSecretOfAnotherModuleIsNotShown: a module reads only what another one has, which put a secret into it.
func TestSecretOfAnotherModuleIsNotShown(t *testing.T) {
	r := newRig(t)
	const canary = "canary-others-1a2b"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db"`)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	other := r.bundle("other", readOnly("uses"), configMap("uses", `url: "db://db"`), configMap("b", "k: v"))
	r.set([]fleet.Sync{s, other})
	r.wait("other", "drifted", func(x fleet.SyncStatus) bool { return x.Generation == other.Generation && len(x.Exceptions) > 0 })
	p, err := r.m.Preview(context.Background(), other, r.store)
	told, _ := json.Marshal(p)
	if err != nil || strings.Contains(string(told), canary) {
		t.Errorf("preview %v: %s", err, told)
	}
	r.stop()
	if at := strings.Index(r.heard.String(), canary); at >= 0 {
		t.Errorf("told: %s", r.heard.String()[max(0, at-600):at+40])
	}
}

// TestSecretInANamespaceIsNotShown: the annotation of a Namespace that is somebody else's has another value.
func TestSecretInANamespaceIsNotShown(t *testing.T) {
	r := newRig(t)
	const canary = "canary-namespace-1a2b"
	_, err := r.client.Resource(gvr("v1", "namespaces")).Patch(context.Background(), r.ns, "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"token":"theirs"}}}`), metav1.PatchOptions{FieldManager: "somebody"})
	if err != nil {
		t.Fatal(err)
	}
	s := r.binding(r.bundle("shop", nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS, annotations: {token: \"${PW}\"}}\n", configMap("a", "k: v")),
		fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied && len(x.Exceptions) == 1
	})
	r.stop()
	if at := strings.Index(r.heard.String(), canary); at >= 0 {
		t.Errorf("told: %s", r.heard.String()[max(0, at-400):at+40])
	}
	if name := r.inState(canary); name != "" {
		t.Errorf("file %s of the state has it", name)
	}
}

// TestHealthDoesNotTellASecret: a controller quotes a field in the status of an object, as many do, and the field has a secret.
func TestHealthDoesNotTellASecret(t *testing.T) {
	r := newRig(t)
	const canary = "canary-health-1a2b"
	s := r.binding(r.bundle("shop", nil, `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NS}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: "nginx:1", args: ["--dsn=db://u:${PW}@db"]}]}
`), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.quotesArguments()
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "not ready", quoted)
	if strings.Contains(x.Exceptions[0].Message, canary) {
		t.Errorf("the status says: %s", x.Exceptions[0].Message)
	}
}

// quotesArguments has the cluster refuse pods with a word about their first argument, which the controllers of workloads repeat.
func (r *rig) quotesArguments() {
	r.t.Helper()
	r.clusterScoped("validatingadmissionpolicies", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: quotes-$NS}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}
  validations: [{expression: "false", messageExpression: "'argument ' + object.spec.containers[0].args[0] + ' is not allowed'"}]
`)
	r.clusterScoped("validatingadmissionpolicybindings", `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: quotes-$NS}
spec: {policyName: quotes-$NS, validationActions: [Deny], matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NS}}}}
`)
	probe := r.object(strings.Replace(pod("probe", ""), "image:", "args: [--probe], image:", 1))
	r.eventually("the policy refuses", func() bool {
		_, err := r.res("v1", "pods", r.ns).Create(context.Background(), &unstructured.Unstructured{Object: probe}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "argument --probe is not allowed")
	})
}

// quoted is what a module says whose pods are refused so.
func quoted(x fleet.SyncStatus) bool {
	return len(x.Exceptions) > 0 && strings.Contains(x.Exceptions[0].Message, "argument --dsn=")
}

// TestEventsDoNotTellASecret: who refuses an object, or what runs by it, quotes a field of it in an Event.
func TestEventsDoNotTellASecret(t *testing.T) {
	r := newRig(t)
	const before, after = "canary-event-1a2b", "other-value-9z8y"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db"`)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.sends(map[string]map[string]string{"db": {"password": before}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.holdCluster(true)
	r.wait("shop", "held", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseHeld })
	r.sends(map[string]map[string]string{"db": {"password": after}})
	r.create("v1", "events", r.ns, map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": "uses.1", "namespace": r.ns},
		"involvedObject": map[string]any{"kind": "ConfigMap", "namespace": r.ns, "name": "uses", "uid": string(r.uidOf("v1", "configmaps", "uses"))},
		"reason":         "Refused", "type": "Warning", "message": "cannot dial db://u:" + before + "@db"})
	told, _, err := r.m.Events(t.Context(), s.Module, nil, 10)
	if err != nil || len(told) != 1 || strings.Contains(told[0].Message, before) || !strings.Contains(told[0].Message, "cannot dial") {
		t.Errorf("%v: %+v", err, told)
	}
}

// TestFormsOfASecretAreConcealed: what others make of a value is not shown either: they trim it, quote it, put it into an address or encode it.
func TestFormsOfASecretAreConcealed(t *testing.T) {
	r := newRig(t)
	const canary = " canary-\"forms\"/1a2b&<c>\n"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "${PW}"`)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	trimmed := strings.TrimSpace(canary)
	forms := map[string]string{"trimmed": "is " + trimmed + " too", "quoted": strings.Trim(strconv.Quote(canary), `"`), "json": strings.Trim(mustJSON(canary), `"`),
		"query": "?p=" + url.QueryEscape(trimmed), "path": "/" + url.PathEscape(trimmed), "inside": base64.StdEncoding.EncodeToString([]byte("user:" + trimmed + "@db")),
		"header": "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+canary)) + " it was", "plain": "nothing"}
	data, _ := json.Marshal(map[string]any{"data": forms, "metadata": map[string]any{"annotations": map[string]any{"said": trimmed}}})
	_, err := r.res("v1", "configmaps", r.ns).Patch(context.Background(), "uses", types.MergePatchType, data, metav1.PatchOptions{FieldManager: "ana"})
	if err != nil {
		t.Fatal(err)
	}
	live := r.get("v1", "configmaps", "uses").Object
	if err := r.m.Conceal(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "uses"}, live); err != nil {
		t.Fatal(err)
	}
	shown := live["data"].(map[string]any)
	for form := range forms {
		if want := fleet.Masked; form != "plain" && shown[form] != want {
			t.Errorf("%s: shown as %v", form, shown[form])
		}
	}
	if shown["plain"] != "nothing" || live["metadata"].(map[string]any)["annotations"].(map[string]any)["said"] != fleet.Masked {
		t.Errorf("shown: %v", live)
	}
}

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// TestWhatIsHiddenCannotBeRead: the key of the agent's values is lost. What an object has is not known, so that none of it is shown.
func TestWhatIsHiddenCannotBeRead(t *testing.T) {
	r := newRig(t)
	const canary = "canary-lost-1a2b"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "db://u:${PW}@db"`)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.store.mu.Lock()
	delete(r.store.files, "vault-key")
	r.store.mu.Unlock()
	r.start()
	r.eventually("begun", func() bool { return r.m.knows() == nil })
	if got := r.shown("uses"); strings.Contains(got, canary) || !strings.Contains(got, `"name":"uses"`) {
		t.Errorf("shown: %s", got)
	}
	if h := r.m.hiddenAbout(s.Module); !h.all {
		t.Error("logs of the module are told")
	}
	if h := r.m.hiddenAbout(fleet.ModuleRef{Project: "default", Name: "other"}); h.all {
		t.Error("logs of another module are not told")
	}
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	if got := r.shown("uses"); strings.Contains(got, canary) {
		t.Errorf("shown: %s", got)
	}
}

// TestLogsDoNotTellASecret: a program prints what it was given, which another module has brought; what cannot be told is not shown at all.
func TestLogsDoNotTellASecret(t *testing.T) {
	r := newRig(t)
	const canary = "canary-log-1a2b3c"
	web, pods := r.webWithPods()
	brings := r.binding(r.bundle("creds", nil, configMap("uses", `url: "db://u:${PW}@db"`)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	log := "2026-07-03T12:00:01.5Z dial db://u:" + canary + "@db: refused\n2026-07-03T12:00:02.5Z " + strings.Repeat("x", 5000) + base64.StdEncoding.EncodeToString([]byte("u:"+canary)) + " the end\n"
	r.stop()
	r.answers(func(q *http.Request) *http.Response {
		if !strings.HasSuffix(q.URL.Path, "/log") {
			return nil
		}
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader(log)), Request: q}
	})
	r.start()
	r.eventually("the agent knows what it has", func() bool { return r.m.knows() == nil })
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{web, brings})
	r.ready(brings)
	pod := fleet.BundleEntry{ID: fleet.ObjectID{Kind: "Pod", Namespace: r.ns, Name: pods[0].GetName()}, Version: "v1"}
	list, _, err := r.m.Logs(t.Context(), pod, fleet.LogQuery{Bytes: 100000, Timestamps: true})
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	got := string(list[0].Data)
	if !strings.HasPrefix(got, "2026-07-03T12:00:01.5Z dial db://u:***@db: refused\n2026-07-03T12:00:02.5Z xxx") || strings.Contains(got, canary) || inBase64([]byte(got), canary) || !strings.HasSuffix(got, " the end\n") {
		t.Errorf("read: %.200s … %s", got, got[max(0, len(got)-80):])
	}
}

// inState names a file of the state that has a text, as it is, in base64, or in a part of the inventory, which is compressed.
func (r *rig) inState(text string) string {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	encoded := base64.StdEncoding.EncodeToString([]byte(text))[:len(text)/3*4]
	for name, data := range r.store.files {
		forms := [][]byte{data}
		if rest, ok := bytes.CutPrefix(data, []byte("towline-inventory/1\n")); ok && len(rest) > 32 {
			if plain, err := wire.Decompress(rest[32:], 64<<20); err == nil {
				forms = append(forms, plain)
			} else {
				r.t.Logf("%s: %v", name, err)
			}
		}
		for _, f := range forms {
			// what is kept as bytes is in base64 once more
			if bytes.Contains(f, []byte(text)) || bytes.Contains(f, []byte(encoded)) || inBase64(f, text) {
				return name
			}
		}
	}
	return ""
}

func inBase64(f []byte, text string) bool {
	for _, m := range regexp.MustCompile(`[A-Za-z0-9+/]{24,}={0,2}`).FindAll(f, -1) {
		if raw, err := base64.StdEncoding.DecodeString(string(m)); err == nil && bytes.Contains(raw, []byte(text)) {
			return true
		}
	}
	return false
}
