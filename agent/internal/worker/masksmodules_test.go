package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// bindsPW is a module that puts the password of the hub's secret db into a ConfigMap.
func (r *rig) bindsPW(module, name string) fleet.Sync {
	return r.binding(r.bundle(module, nil, configMap(name, `url: "db://u:${PW}@db"`)), fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
}

// says has an Event stand about an object.
func (r *rig) saysOf(name, message string) {
	r.t.Helper()
	r.create("v1", "events", r.ns, map[string]any{"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": fmt.Sprintf("%s.%d", name, time.Now().UnixNano()), "namespace": r.ns},
		"involvedObject": map[string]any{"kind": "ConfigMap", "namespace": r.ns, "name": name, "uid": string(r.uidOf("v1", "configmaps", name))},
		"reason":         "Refused", "type": "Warning", "message": message})
}

// told are the messages of the Events about a module.
func (r *rig) told(s fleet.Sync) string {
	r.t.Helper()
	list, _, err := r.m.Events(r.t.Context(), s.Module, nil, 100)
	if err != nil {
		r.t.Fatal(err)
	}
	text, _ := json.Marshal(list)
	return string(text)
}

// TestSecretInAWatchedObjectIsConcealed: a module watches an object that somebody else makes, as an operator does of what the module brings. It
// repeats a value that the module binds; so does one of another module.
func TestSecretInAWatchedObjectIsConcealed(t *testing.T) {
	r := newRig(t)
	const canary = "canary-watched-1a2b"
	s := r.bindsPW("creds", "uses")
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	web := r.bundle("web", nil, configMap("web", `k: v`))
	r.set([]fleet.Sync{s, web})
	r.ready(s)
	r.ready(web)
	r.source("ConfigMap", "made", `data: {said: "cannot dial db://u:`+canary+`@db"}`)
	r.patch("v1", "configmaps", "web", "operator", `{"data":{"said":"cannot dial db://u:`+canary+`@db"}}`)
	for _, name := range []string{"made", "web"} {
		if got := r.shown(name); strings.Contains(got, canary) || !strings.Contains(got, `"name":"`+name+`"`) {
			t.Errorf("shown: %s", got)
		}
	}
}

// TestSecretsOfWhatWasFoundAreConcealed: the state goes, and the hub cannot tell the value of a secret any more. What the objects have that are
// found is not known, and before they are, it is not known that there is anything.
func TestSecretsOfWhatWasFoundAreConcealed(t *testing.T) {
	r := newRig(t)
	const canary = "canary-found-1a2b"
	s := r.bindsPW("shop", "uses")
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.blind("configmaps")
	r.loseState()
	r.eventually("begun", func() bool { return r.m.knows() == nil })
	id := fleet.ObjectID{Kind: "ConfigMap", Namespace: r.ns, Name: "uses"}
	if err := r.m.Conceal(id, r.get("v1", "configmaps", "uses").Object); !errors.Is(err, fleet.ErrUnavailable) {
		t.Errorf("%v; the object is told before it is found", err)
	}
	r.count.upset(nil)
	<-r.m.secrets.loaded
	use, err := r.m.Secrets(t.Context(), []Sealed{{Project: "default", Name: "db", Problem: "secret db cannot be read"}})
	if err != nil {
		t.Fatal(err)
	}
	use(func() {})
	r.set([]fleet.Sync{s})
	r.wait("shop", "waits", func(x fleet.SyncStatus) bool { return strings.Contains(x.Message, "cannot be read") })
	r.eventually("searched", func() bool { return r.m.searching() == "" })
	if got := r.shown("uses"); strings.Contains(got, canary) || !strings.Contains(got, `"name":"uses"`) {
		t.Errorf("shown: %s", got)
	}
	r.sends(map[string]map[string]string{"db": {"password": "canary-later-1a2b"}})
	r.ready(s)
	if got := r.shown("uses"); !strings.Contains(got, `"url":"***"`) {
		t.Errorf("shown: %s", got)
	}
}

// TestEventsDoNotTellASecretOfAnotherModule: one module brings a value, the object of another one uses it, and an Event about that quotes it. So
// does one from before the value was replaced, also after a restart.
func TestEventsDoNotTellASecretOfAnotherModule(t *testing.T) {
	r := newRig(t)
	const before, after = "canary-event-1a2b", "other-value-9z8y"
	creds, web := r.bindsPW("creds", "uses"), r.bundle("web", nil, configMap("web", `k: v`))
	r.sends(map[string]map[string]string{"db": {"password": before}})
	r.set([]fleet.Sync{creds, web})
	r.ready(creds)
	r.ready(web)
	r.saysOf("web", "cannot dial db://u:"+before+"@db")
	is := func(when string) {
		t.Helper()
		if got := r.told(web); strings.Contains(got, before) || strings.Contains(got, after) || !strings.Contains(got, "cannot dial") {
			t.Errorf("%s: %s", when, got)
		}
	}
	is("in force")
	r.sends(map[string]map[string]string{"db": {"password": after}})
	r.eventually("replaced", func() bool { return strings.Contains(r.data("uses", "url"), after) })
	r.ready(creds)
	r.saysOf("web", "cannot dial db://u:"+after+"@db")
	is("replaced")
	r.restart()
	r.m.Set(r.current, nil)
	r.eventually("begun", func() bool { return r.m.knows() == nil })
	is("after a restart")
	r.set([]fleet.Sync{web})
	r.wait("creds", "stray", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseStray })
	is("without its module")
}

// TestWordsOfAnotherProjectAreShown: the secrets of one project are words that another one uses, or has listed to see which of them are masked. What
// it has not listed itself, and is long enough to be no word, is masked when a controller repeats it.
func TestWordsOfAnotherProjectAreShown(t *testing.T) {
	r := newRig(t)
	const listed, canary = "guessed-value-1a2b", "canary-project-1a2b"
	values := map[string]string{"env": "prod", "port": "8080", "stage": "production", "guess": listed, "password": canary}
	var late []fleet.LateBinding
	for key := range values {
		late = append(late, fleet.LateBinding{Name: strings.ToUpper(key), Secret: &fleet.SecretKey{Name: "db", Key: key}})
	}
	creds := r.binding(r.bundle("creds", nil, configMap("uses", `env: "${ENV}", port: "${PORT}", stage: "${STAGE}", guess: "${GUESS}", url: "db://u:${PASSWORD}@db"`)), late...)
	of := func(objects ...string) fleet.Sync {
		s := r.bundle("web", nil, objects...)
		s.Module.Project = "other"
		s.Values = map[string]string{"STAGE": "production"}
		return s
	}
	web := of(configMap("web", `env: prod, port: "8080", stage: "in ${STAGE}", guess: `+listed))
	r.sends(map[string]map[string]string{"db": values})
	r.set([]fleet.Sync{creds, web})
	r.ready(creds)
	r.eventually("the other project's module is ready", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.statuses[web.Module].Ready
	})
	r.patch("v1", "configmaps", "web", "operator", `{"data":{"said":"prod 8080 production `+listed+` db://u:x@db","cannot":"dial db://u:`+canary+`@db"}}`)
	got := r.shown("web")
	for _, field := range []string{`"env":"prod"`, `"port":"8080"`, `"stage":"in production"`, `"guess":"` + listed + `"`, `"said":"prod 8080 production ` + listed + ` db://u:x@db"`, `"cannot":"***"`} {
		if !strings.Contains(got, field) {
			t.Errorf("no %s in %s", field, got)
		}
	}
	if got := r.shown("uses"); strings.Count(got, `"***"`) != len(values) {
		t.Errorf("its own: %s", got)
	}
	r.saysOf("web", "prod 8080 production "+listed+": db://u:"+canary+"@db")
	if got := r.told(web); !strings.Contains(got, "prod 8080 production "+listed+": db://u:***@db") {
		t.Errorf("events: %s", got)
	}
	next := of(configMap("web", `env: "8080", port: prod, stage: `+canary+`, guess: is-no-value`))
	p, err := r.m.Preview(t.Context(), next, r.store)
	told, _ := json.Marshal(p)
	if err != nil || strings.Contains(string(told), fleet.Masked) || !strings.Contains(string(told), canary) || !strings.Contains(string(told), listed) {
		t.Errorf("%v: preview %s", err, told)
	}
}

// TestValueThatIsReadOutOfAnObjectIsConcealed: a module puts a short value into its object, which a module of another project reads it from.
func TestValueThatIsReadOutOfAnObjectIsConcealed(t *testing.T) {
	r := newRig(t)
	const short = "pw1a2b"
	creds := r.bindsPW("creds", "uses")
	r.sends(map[string]map[string]string{"db": {"password": short}})
	web := r.bundle("web", nil, configMap("web", `to: "${URL}"`))
	web.Module.Project = "other"
	web = r.binding(web, fleet.LateBinding{Name: "URL", Object: r.fieldOf("ConfigMap", "uses", "data.url")})
	r.set([]fleet.Sync{creds, web})
	r.ready(creds)
	r.eventually("it is read", func() bool { return r.data("web", "to") == "db://u:"+short+"@db" })
	if got := r.shown("web"); !strings.Contains(got, `"to":"***"`) {
		t.Errorf("shown: %s", got)
	}
	p, err := r.m.Preview(t.Context(), r.again(web), r.store)
	if told, _ := json.Marshal(p); err != nil || strings.Contains(string(told), short) {
		t.Errorf("%v: preview %s", err, told)
	}
}

// TestFieldsDoNotTellTheValuesOfTheirKeys: a list is keyed by what a binding reads, and a field in it drifts, is corrected, or is somebody else's.
func TestFieldsDoNotTellTheValuesOfTheirKeys(t *testing.T) {
	r := newRig(t)
	const canary = "canary_field_1a2b"
	with := func(name, env string) string {
		return strings.Replace(deployment(name, 1), `image: "nginx:1"`, `image: "nginx:1", env: [`+env+`]`, 1)
	}
	named := func(s fleet.Sync) fleet.Sync {
		return r.binding(s, fleet.LateBinding{Name: "PW", Secret: &fleet.SecretKey{Name: "db", Key: "password"}})
	}
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"drifts"}}, Drift: fleet.DriftReport}}
	set := func(web string) fleet.Sync {
		s := r.bundle("shop", policies, with("drifts", `{name: "${PW}", value: mine}`), with("corrected", `{name: "${PW}", value: mine}`), with("web", web))
		given := r.store.policies[s.Policies]
		s = named(s)
		r.store.policies[s.Policies] = given
		r.set([]fleet.Sync{s})
		return s
	}
	r.sends(map[string]map[string]string{"db": {"password": canary}})
	s := set("")
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
	env := func(name, list string) {
		r.patch("apps/v1", "deployments", name, "operator", `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"nginx:1","env":[`+list+`]}]}}}}`)
	}
	env("drifts", "")
	env("corrected", "")
	env("web", `{"name":"`+canary+`","value":"theirs"}`)
	s = set(`{name: "${PW}", value: mine}`)
	x := r.wait("shop", "in conflict, and drifting", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && x.Phase == fleet.PhaseFailed && len(x.Exceptions) >= 2
	})
	told, _ := json.Marshal(x)
	if strings.Contains(string(told), canary) || strings.Count(string(told), "env") < 2 {
		t.Errorf("told: %s", told)
	}
	r.eventually("an Event says what was corrected", func() bool {
		list, err := r.res("v1", "events", r.ns).List(t.Context(), metav1.ListOptions{})
		text, _ := json.Marshal(list)
		if strings.Contains(string(text), canary) {
			t.Fatalf("events: %s", text)
		}
		return err == nil && strings.Contains(string(text), "changed back")
	})
}

// TestReplacedValuesAreForgotten: an hour after it was replaced a value is shown, and is kept no more.
func TestReplacedValuesAreForgotten(t *testing.T) {
	var l lasts
	ref := fleet.ModuleRef{Project: "default", Name: "shop"}
	l.put(ref, "a", lastValue{Value: "one", Secret: true})
	l.put(ref, "a", lastValue{Value: "two", Secret: true})
	l.put(ref, "b", lastValue{Value: "plain"})
	l.put(ref, "b", lastValue{Value: "other"})
	now := time.Now()
	if got := l.hidden(now)[ref.String()]; len(got) != 2 {
		t.Errorf("hidden: %q", got)
	}
	if got := l.hidden(now.Add(replacedFor + time.Second))[ref.String()]; len(got) != 1 || got[0] != "two" {
		t.Errorf("an hour later: %q", got)
	}
	if got := l.hidden(now)[ref.String()]; len(got) != 1 {
		t.Errorf("kept: %q", got)
	}
}

// BenchmarkConceal: a thousand values, and an object of a megabyte.
func BenchmarkConceal(b *testing.B) {
	var values []string
	for i := range 1000 {
		values = append(values, fmt.Sprintf("value-%d-of-some-length", i))
	}
	data := map[string]any{}
	for i := range 1000 {
		data[fmt.Sprint(i)] = strings.Repeat("nothing to see here ", 50)
	}
	b.Run("build", func(b *testing.B) {
		for b.Loop() {
			apply.HiddenValues(values).Scrubber()
		}
	})
	s := apply.HiddenValues(values).Scrubber()
	for of, h := range map[string]hides{"own": {own: []*apply.Scrubber{s}}, "others": {others: s}} {
		for _, field := range []string{"spec", "status"} {
			b.Run(of+"/"+field, func(b *testing.B) {
				for b.Loop() {
					h.conceal(map[string]any{field: data})
				}
			})
		}
	}
}
