package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// binding has a sync have bindings that the agent evaluates.
func (r *rig) binding(s fleet.Sync, late ...fleet.LateBinding) fleet.Sync {
	r.t.Helper()
	encoded, err := json.Marshal(late)
	if err != nil {
		r.t.Fatal(err)
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	policies := r.store.policies[s.Policies]
	s.Policies = fleet.DigestOf(append(s.Policies.Bytes(), encoded...))
	r.store.late[s.Policies] = late
	if policies != nil {
		r.store.policies[s.Policies] = policies
	}
	return s
}

func (r *rig) fieldOf(kind, name, path string) *fleet.ObjectField {
	return &fleet.ObjectField{Version: "v1", Kind: kind, Namespace: r.ns, Name: name, Path: path}
}

// source makes what a binding reads, which is nobody's.
func (r *rig) source(kind, name, data string) {
	r.t.Helper()
	r.create("v1", strings.ToLower(kind)+"s", r.ns, r.object("apiVersion: v1\nkind: "+kind+"\nmetadata: {name: "+name+", namespace: $NS}\n"+data))
}

func (r *rig) version(name string) string {
	return r.get("v1", "configmaps", name).GetResourceVersion()
}

// TestBindingReadsTheCluster: what refers to a field of an object in the cluster is applied with its value, and anew when that changes;
// what does not refer to it is not touched. What is drifting is corrected to the value.
func TestBindingReadsTheCluster(t *testing.T) {
	r := newRig(t)
	r.source("ConfigMap", "net", `data: {host: one.example, app.properties: "x=1"}`)
	text := "https://${HOST}/${PATH}"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}", url: "${URL}", dotted: "${PROPS}", raw: "$${OTHER}"`), configMap("apart", "k: v")),
		fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "${WHICH}", "data.host")}, fleet.LateBinding{Name: "URL", Value: &text},
		fleet.LateBinding{Name: "PROPS", Object: r.fieldOf("ConfigMap", "net", "data.app.properties")})
	s.Values = map[string]string{"WHICH": "net", "PATH": "shop"}
	r.set([]fleet.Sync{s})
	r.ready(s)
	if host, url, dotted := r.data("uses", "host"), r.data("uses", "url"), r.data("uses", "dotted"); host != "one.example" || url != "https://one.example/shop" || dotted != "x=1" {
		t.Errorf("host %q, url %q, dotted %q", host, url, dotted)
	}
	apart := r.version("apart")
	r.patch("v1", "configmaps", "net", "ana", `{"data":{"host":"two.example"}}`)
	r.eventually("the new value is applied", func() bool { return r.data("uses", "url") == "https://two.example/shop" })
	r.wait("shop", "ready", func(x fleet.SyncStatus) bool { return x.Ready })
	if now := r.version("apart"); now != apart {
		t.Errorf("what does not refer to it was written: version %s, was %s", now, apart)
	}
	r.patch("v1", "configmaps", "uses", "ana", `{"data":{"host":"mine"}}`)
	r.eventually("corrected to the value", func() bool { return r.data("uses", "host") == "two.example" })
}

// TestBindingWaitsForItsSource: while there is no source, what refers to it is not there, and all else is; the status names the binding,
// the object and what is missing.
func TestBindingWaitsForItsSource(t *testing.T) {
	r := newRig(t)
	stays := "eu"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`), configMap("falls", `r: "${REGION}", o: "${OPT:-none}"`), configMap("apart", "k: v")),
		fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host")},
		fleet.LateBinding{Name: "REGION", Object: r.fieldOf("ConfigMap", "net", "data.region"), Default: &stays},
		fleet.LateBinding{Name: "OPT", Object: r.fieldOf("ConfigMap", "net", "data.opt"), Optional: true})
	r.store.how = &fleet.Substitution{}
	r.set([]fleet.Sync{s})
	r.wait("shop", "waits", func(x fleet.SyncStatus) bool {
		return !x.Ready && x.Phase == fleet.PhaseApplying && strings.Contains(x.Message, "${HOST}") && strings.Contains(x.Message, "ConfigMap "+r.ns+"/net does not exist") &&
			len(x.Exceptions) == 1 && x.Exceptions[0].Reason == apply.ReasonBinding
	})
	r.eventually("the rest is applied", func() bool {
		return r.data("apart", "k") == "v" && r.data("falls", "r") == "eu" && r.data("falls", "o") == "none"
	})
	if r.get("v1", "configmaps", "uses") != nil {
		t.Error("an object was applied without the value of its binding")
	}
	r.source("ConfigMap", "net", `data: {other: x}`)
	r.wait("shop", "the field is missed", func(x fleet.SyncStatus) bool { return strings.Contains(x.Message, "net has no data.host") })
	r.patch("v1", "configmaps", "net", "ana", `{"data":{"host":"late.example","region":"us"}}`)
	r.ready(s)
	if host, region := r.data("uses", "host"), r.data("falls", "r"); host != "late.example" || region != "us" {
		t.Errorf("host %q, region %q", host, region)
	}
}

// TestBindingKeepsItsLastValue: a source that goes takes nothing with it, also over a restart of the agent, and the status says so.
func TestBindingKeepsItsLastValue(t *testing.T) {
	r := newRig(t)
	r.source("ConfigMap", "net", `data: {host: one.example}`)
	other := "default.example"
	s := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)),
		fleet.LateBinding{Name: "HOST", Object: r.fieldOf("ConfigMap", "net", "data.host"), Default: &other})
	r.set([]fleet.Sync{s})
	r.ready(s)
	before := r.version("uses")
	gone := func(x fleet.SyncStatus) bool {
		return x.Ready && x.Reason == "BindingSourceGone" && strings.Contains(x.Message, "${HOST}")
	}
	r.delete("v1", "configmaps", "net")
	r.wait("shop", "told", gone)
	r.stop()
	r.start()
	r.set([]fleet.Sync{s})
	r.wait("shop", "told after a restart", gone)
	r.patch("v1", "configmaps", "uses", "ana", `{"data":{"host":"mine"}}`)
	r.eventually("corrected to the last value", func() bool { return r.data("uses", "host") == "one.example" })
	r.source("ConfigMap", "net", `data: {host: two.example}`)
	r.eventually("the value of the new source", func() bool { return r.data("uses", "host") == "two.example" })
	r.wait("shop", "not told any more", func(x fleet.SyncStatus) bool { return x.Ready && x.Reason == "" })
	if before == "" {
		t.Error("not applied")
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.set(nil)
	r.eventually("the values are forgotten", func() bool {
		data, err := r.store.Read(context.Background(), lastsName)
		plain, openErr := r.m.lasts.vault.Open(lastsName, data)
		return err == nil && openErr == nil && !strings.Contains(string(plain), "example")
	})
}

// TestBindingOfWhatTheModuleMakes: an object that refers to a field of another one of the module is applied after that.
func TestBindingOfWhatTheModuleMakes(t *testing.T) {
	r := newRig(t)
	s := r.binding(r.bundle("shop", nil, configMap("uses", `ip: "${IP}", port: "${PORT}"`),
		"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: $NS}\nspec: {ports: [{port: 80}], selector: {app: web}}\n"),
		fleet.LateBinding{Name: "IP", Object: r.fieldOf("Service", "web", "{.spec.clusterIP}")},
		fleet.LateBinding{Name: "PORT", Object: r.fieldOf("Service", "web", "spec.ports[0].port")})
	r.set([]fleet.Sync{s})
	r.ready(s)
	if ip, port := r.data("uses", "ip"), r.data("uses", "port"); strings.Count(ip, ".") != 3 || port != "80" {
		t.Errorf("ip %q, port %q", ip, port)
	}
}

// TestBindingsInACircle: objects that wait for each other are refused by name, and the rest is applied.
func TestBindingsInACircle(t *testing.T) {
	r := newRig(t)
	s := r.binding(r.bundle("shop", nil, configMap("a", `v: "${A}"`), configMap("b", `v: "${B}"`), configMap("c", "k: v")),
		fleet.LateBinding{Name: "A", Object: r.fieldOf("ConfigMap", "b", "data.v")}, fleet.LateBinding{Name: "B", Object: r.fieldOf("ConfigMap", "a", "data.v")})
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
	if x.Reason != apply.ReasonInvalid || !strings.Contains(x.Message, "ConfigMap "+r.ns+"/a → ${A} → ConfigMap "+r.ns+"/b → ${B} → ") {
		t.Errorf("%+v", x)
	}
	r.eventually("the rest is applied", func() bool { return r.data("c", "k") == "v" })
	if r.get("v1", "configmaps", "a") != nil || r.get("v1", "configmaps", "b") != nil {
		t.Error("a part of a circle was applied")
	}
}

// TestBindingOfASecretIsForbidden: who may not read a Secret says what right is wanted, and goes on when it is given.
func TestBindingOfASecretIsForbidden(t *testing.T) {
	r := newRig(t)
	r.source("Secret", "db", `stringData: {password: canary-password}`)
	r.count.upset(func(q *http.Request) error {
		if strings.Contains(q.URL.Path, "/secrets") {
			q.Header.Set("Impersonate-User", "nobody-"+r.ns)
		}
		return nil
	})
	s := r.binding(r.bundle("shop", nil, configMap("uses", `pw: "${PW}"`), configMap("apart", "k: v")),
		fleet.LateBinding{Name: "PW", Object: r.fieldOf("Secret", "db", "data.password")})
	r.set([]fleet.Sync{s})
	r.wait("shop", "failed, with what right is wanted", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseFailed && len(x.Exceptions) == 1 && containsAll(x.Exceptions[0].Message, "${PW}", "Secret", "is forbidden", "grant the agent get, list and watch of secrets")
	})
	r.eventually("the rest is applied", func() bool { return r.data("apart", "k") == "v" })
	r.count.upset(nil)
	r.ready(s)
	if pw := r.data("uses", "pw"); pw != "canary-password" {
		t.Errorf("password %q", pw)
	}
}

func containsAll(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

// TestBindingOfASecretIsNotShown: the value of a Secret is found in no status, log, or file of the state, nor in what is told of drift, of
// what the API server refuses, of a preview and of the live object.
func TestBindingOfASecretIsNotShown(t *testing.T) {
	r := newRig(t)
	r.loud = true
	r.stop()
	r.start()
	r.eventually("the cluster was searched", func() bool { return r.m.searching() == "" })
	const canary = "canary-5f2e-password"
	r.source("Secret", "db", `stringData: {password: `+canary+`}`)
	url := "db://user:${PW}@db"
	late := []fleet.LateBinding{{Name: "PW", Object: r.fieldOf("Secret", "db", "data.password")}, {Name: "URL", Value: &url}}
	s := r.binding(r.bundle("shop", []fleet.Policy{}, configMap("uses", `pw: "${PW}", url: "${URL}"`)), late...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	if got := r.data("uses", "url"); got != "db://user:"+canary+"@db" {
		t.Fatalf("url %q", got)
	}
	r.holdCluster(true)
	r.patch("v1", "configmaps", "uses", "ana", `{"data":{"pw":"other"}}`)
	x := r.wait("shop", "drift is told", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Exceptions[0].Field != "" })
	if x.Exceptions[0].Want != fleet.Masked || x.Exceptions[0].Live != fleet.Masked {
		t.Errorf("want %q, live %q", x.Exceptions[0].Want, x.Exceptions[0].Live)
	}
	r.holdCluster(false)
	r.eventually("corrected", func() bool { return r.data("uses", "pw") == canary })

	next := r.binding(r.bundle("shop", nil, configMap("uses", `pw: "${PW}!", url: "${URL}"`),
		"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: $NS}\nspec: {ports: [{port: 80}], externalName: \"${PW}\", type: \"${PW}\"}\n"), late...)
	p, err := r.m.Preview(context.Background(), next, r.store)
	told, _ := json.Marshal(p)
	if err != nil || !strings.Contains(string(told), fleet.Masked) || strings.Contains(string(told), canary) {
		t.Errorf("%v: preview %s", err, told)
	}
	r.set([]fleet.Sync{next})
	r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && x.Reason == apply.ReasonInvalid })
	live := r.get("v1", "configmaps", "uses").Object
	if err := r.m.Conceal(fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "uses"}, live); err != nil {
		t.Fatal(err)
	}
	if text, _ := json.Marshal(live); bytes.Contains(text, []byte(canary)) {
		t.Errorf("live %s", text)
	}
	r.stop()
	if strings.Contains(r.heard.String(), canary) {
		t.Error("a status or a log line has the value")
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	for name, data := range r.store.files {
		if bytes.Contains(data, []byte(canary)) || bytes.Contains(data, []byte("Y2FuYXJ5LTVmMmUtcGFzc3dvcmQ")) {
			t.Errorf("file %s of the state has the value", name)
		}
	}
}

// sends has the hub send secrets of the project, sealed for the agent. unset are keys of each that are used, too, and have no value.
func (r *rig) sends(secrets map[string]map[string]string, unset ...string) {
	r.t.Helper()
	<-r.m.secrets.loaded
	var list []Sealed
	for name, values := range secrets {
		plain := map[string][]byte{}
		for k, v := range values {
			plain[k] = []byte(v)
		}
		s, err := wire.SealSecret(r.m.lasts.vault.PublicKey(), "default", name, plain)
		if err != nil {
			r.t.Fatal(err)
		}
		list = append(list, Sealed{Project: s.GetProject(), Name: s.GetName(), Sealed: s.GetSealed(), Keys: slices.AppendSeq(slices.Clone(unset), maps.Keys(plain))})
	}
	use, err := r.m.Secrets(context.Background(), list)
	if err == nil {
		use(func() {})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestSecretOfTheHub: what uses a secret waits for its value, is applied with it, and anew when that changes, and nothing else is; a value that
// is not sent any more stays, also over a restart without the hub. It is found in no status, log line or file.
func TestSecretOfTheHub(t *testing.T) {
	r := newRig(t)
	r.loud = true
	r.stop()
	r.start()
	dsn := "db://${PW}@db"
	s := r.binding(r.bundle("shop", nil, secret("uses", `stringData: {dsn: "${DSN}"}`), configMap("apart", "k: v")),
		fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}}, fleet.LateBinding{Name: "DSN", Value: &dsn})
	r.set([]fleet.Sync{s})
	r.wait("shop", "waits", func(x fleet.SyncStatus) bool {
		return strings.Contains(x.Message, "${DSN}: secret db has not come from the hub yet")
	})
	r.eventually("the rest is applied", func() bool { return r.data("apart", "k") == "v" })
	r.sends(map[string]map[string]string{"db": {"user": "x"}}, "password")
	r.wait("shop", "the key is missed", func(x fleet.SyncStatus) bool { return strings.Contains(x.Message, "secret db has no key password") })
	r.sends(map[string]map[string]string{"db": {"password": "canary-one-71"}})
	r.ready(s)
	if got := r.secretData("uses")["dsn"]; got != "db://canary-one-71@db" {
		t.Errorf("dsn %q", got)
	}
	apart := r.version("apart")
	r.sends(map[string]map[string]string{"db": {"password": "canary-two-72"}})
	r.eventually("the new value is applied", func() bool { return r.secretData("uses")["dsn"] == "db://canary-two-72@db" })
	r.wait("shop", "ready", func(x fleet.SyncStatus) bool { return x.Ready })
	if now := r.version("apart"); now != apart {
		t.Errorf("what does not use it was written: version %s, was %s", now, apart)
	}
	r.stop()
	r.start()
	r.set([]fleet.Sync{s})
	r.eventually("known after a restart", func() bool {
		_, err := r.m.secrets.value("default", fleet.SecretKey{Name: "db", Key: "password"})
		return err == nil
	})
	r.patch("v1", "secrets", "uses", "ana", `{"data":{"dsn":"eA=="}}`)
	r.eventually("corrected without the hub", func() bool { return r.secretData("uses")["dsn"] == "db://canary-two-72@db" })
	r.sends(nil)
	r.wait("shop", "told", func(x fleet.SyncStatus) bool { return x.Ready && x.Reason == "BindingSourceGone" })
	r.patch("v1", "secrets", "uses", "ana", `{"data":{"dsn":"eA=="}}`)
	r.eventually("corrected to the last value", func() bool { return r.secretData("uses")["dsn"] == "db://canary-two-72@db" })
	r.stop()
	if strings.Contains(r.heard.String(), "canary-") {
		t.Error("a status or a log line has the value")
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	for name, data := range r.store.files {
		if bytes.Contains(data, []byte("canary-")) || bytes.Contains(data, []byte("Y2FuYXJ5LX")) {
			t.Errorf("file %s of the state has the value", name)
		}
	}
}

// TestClusterDeniesBindings: what the cluster's policy does not let be read, no binding reads.
func TestClusterDeniesBindings(t *testing.T) {
	r := newRig(t)
	r.source("Secret", "db", `stringData: {password: x}`)
	r.accept("denyReads: [secrets]")
	s := r.binding(r.bundle("shop", nil, configMap("uses", `pw: "${PW}"`)), fleet.LateBinding{Name: "PW", Object: r.fieldOf("Secret", "db", "data.password")})
	r.set([]fleet.Sync{s})
	r.wait("shop", "denied", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "DeniedByPolicy" &&
			containsAll(x.Exceptions[0].Message, "denyReads[0]: bindings do not read Secrets here", "${PW}")
	})
	r.acceptAs(Accepts{})
	r.ready(s)
}

// TestBindingOfTheAgentsOwn: no binding reads what is in the agent's namespace.
func TestBindingOfTheAgentsOwn(t *testing.T) {
	r := newRig(t)
	r.source("ConfigMap", "net", `data: {host: x}`)
	r.home = r.ns + "-home"
	f := r.fieldOf("ConfigMap", "net", "data.host")
	f.Namespace = fleet.AgentNamespace
	s := r.binding(r.bundle("shop", nil, configMap("uses", `host: "${HOST}"`)), fleet.LateBinding{Name: "HOST", Object: f})
	r.set([]fleet.Sync{s})
	x := r.wait("shop", "refused", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
	if x.Reason != apply.ReasonProtected || !strings.Contains(x.Message, "belongs to the agent") {
		t.Errorf("%+v", x)
	}
}

// TestBindingOfALaterKind: a kind that the cluster does not have yet is waited for.
func TestBindingOfALaterKind(t *testing.T) {
	r := newRig(t)
	s := r.binding(r.bundle("shop", nil, configMap("uses", `url: "${URL}"`)),
		fleet.LateBinding{Name: "URL", Object: &fleet.ObjectField{Group: r.group(), Version: "v1", Kind: "Database", Namespace: r.ns, Name: "db", Path: "spec.url"}})
	r.set([]fleet.Sync{s})
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return strings.Contains(x.Message, "the cluster has no kind Database of "+r.group()+"/v1")
	})
	r.define("databases", "Database", "v1")
	obj := r.custom("v1", "Database", r.ns, "db")
	obj["spec"] = map[string]any{"url": "db://x"}
	r.eventually("the kind is served", func() bool { return r.lists("v1", "databases") })
	r.create(r.group()+"/v1", "databases", r.ns, obj)
	began := time.Now()
	r.ready(s)
	if took := time.Since(began); took > 30*time.Second || r.data("uses", "url") != "db://x" {
		t.Errorf("after %s: %q", took, r.data("uses", "url"))
	}
}

// TestBindingOfAVersionThatIsNotServed: the kind of what a binding reads is served in another version only. The object is there, so that the default does
// not stand in for its value; nor does a value that was read before stand for good without a word.
func TestBindingOfAVersionThatIsNotServed(t *testing.T) {
	r := newRig(t)
	r.define("databases", "Database", "v1beta1", "v1")
	obj := r.custom("v1", "Database", r.ns, "db")
	obj["spec"] = map[string]any{"url": "db://x"}
	r.create(r.group()+"/v1", "databases", r.ns, obj)
	r.unserve("databases", "v1beta1")
	fallback := "db://default"
	bound := func(version string) fleet.Sync {
		return r.binding(r.bundle("shop", nil, configMap("uses", `url: "${URL}"`)), fleet.LateBinding{Name: "URL", Default: &fallback,
			Object: &fleet.ObjectField{Group: r.group(), Version: version, Kind: "Database", Namespace: r.ns, Name: "db", Path: "spec.url"}})
	}
	s := bound("v1beta1")
	r.set([]fleet.Sync{s})
	got := r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && (x.Ready || strings.Contains(x.Message, "name that version in the binding"))
	})
	if got.Ready || r.get("v1", "configmaps", "uses") != nil {
		t.Errorf("it is %q, by the default: %+v", r.data("uses", "url"), got)
	}
	next := bound("v1")
	r.set([]fleet.Sync{next})
	r.ready(next)
	if got := r.data("uses", "url"); got != "db://x" {
		t.Errorf("it is %q", got)
	}
}
