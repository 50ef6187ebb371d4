package worker

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"towline.dev/towline/pkg/fleet"
)

// ignoring are policies that leave fields as they are.
func ignoring(pointers ...string) []fleet.Policy {
	return []fleet.Policy{{IgnoreFields: &fleet.IgnoreFields{JSONPointers: pointers}}}
}

// leftTo are policies that leave to managers what they hold.
func leftTo(managers ...string) []fleet.Policy {
	return []fleet.Policy{{IgnoreFields: &fleet.IgnoreFields{Managers: managers}}}
}

// sized is a Deployment whose container says what it needs.
func sized(image, cpu string, replicas string) string {
	return strings.NewReplacer("IMAGE", image, "CPU", cpu, "REPLICAS", replicas).Replace(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: $NS}
spec:
  replicas: REPLICAS
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: app, image: IMAGE, resources: {requests: {cpu: CPU}}, ports: [{containerPort: 80}]}
`)
}

// web is what is live of it.
type web struct {
	image, cpu string
	replicas   int64
	paused     bool
}

func (r *rig) web() web {
	r.t.Helper()
	u := r.get("apps/v1", "deployments", "web")
	if u == nil {
		return web{}
	}
	out := web{}
	out.replicas, _, _ = unstructured.NestedInt64(u.Object, "spec", "replicas")
	out.paused, _, _ = unstructured.NestedBool(u.Object, "spec", "paused")
	list, _, _ := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
	app := list[0].(map[string]any)
	out.image, _, _ = unstructured.NestedString(app, "image")
	out.cpu, _, _ = unstructured.NestedString(app, "resources", "requests", "cpu")
	return out
}

func (r *rig) isWeb(want web) {
	r.t.Helper()
	if got := r.web(); got != want {
		r.t.Errorf("it is %+v, want %+v", got, want)
	}
}

// writers change the CPU that the container of a Deployment asks for, as programs of all sorts do.
var writers = map[string]func(r *rig, cpu string){
	"a plain writer": func(r *rig, cpu string) { r.rewrite("web", "vpa", cpu, false) },
	"a writer that applies": func(r *rig, cpu string) {
		body := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"template":{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"` + cpu + `"}}}]}}}}`
		// Without force: it must not be in conflict with anybody.
		if _, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), "web", types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "vpa"}); err != nil {
			r.t.Fatal(err)
		}
	},
}

const cpuPointer = "/spec/template/spec/containers/0/resources"

// dressed changes the image, which is the module's, and waits until it is back: what came before has been seen then.
func (r *rig) dressed(image string) {
	r.t.Helper()
	r.json("kubectl-edit", `{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"other"}`)
	r.eventually("the image is corrected", func() bool { return r.web().image == image })
}

// json sends a JSON patch to the Deployment.
func (r *rig) json(manager, operation string) {
	r.t.Helper()
	body := []byte("[" + operation + "]")
	if _, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), "web", types.JSONPatchType, body, metav1.PatchOptions{FieldManager: manager}); err != nil {
		r.t.Fatal(err)
	}
}

// becomes has the module be another one, and waits until it is applied.
func (r *rig) becomes(policies []fleet.Policy, objects ...string) fleet.Sync {
	r.t.Helper()
	s := r.bundle("shop", policies, objects...)
	r.set([]fleet.Sync{s})
	r.ready(s)
	return s
}

// What a policy ignores is set when the object is made, and is nobody's then: no drift, not written by a later revision nor by the
// correction of another field, nor taken away, also after a restart. Without the policy it is the module's again.
func TestIgnoredFieldsAreNobodys(t *testing.T) {
	config := labConfig(t)
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			policies := ignoring("/spec/replicas", cpuPointer)
			s := r.becomes(policies, sized("nginx:1", "100m", "1"))
			r.isWeb(web{"nginx:1", "100m", 1, false})
			write(r, "300m")
			r.scale("web", 3, "somebody's-scaler")
			r.dressed("nginx:1")
			r.isWeb(web{"nginx:1", "300m", 3, false})
			x := r.wait("shop", "ready after a correction", func(x fleet.SyncStatus) bool { return x.Ready && x.Generation == s.Generation && x.Corrections > 0 })
			if x.States[0].Drift != fleet.DriftInSync || x.Corrections != 1 {
				t.Errorf("what is ignored is drift: %+v", x)
			}
			r.becomes(policies, sized("nginx:2", "200m", "2"))
			r.isWeb(web{"nginx:2", "300m", 3, false})
			r.stop()
			r.start()
			r.becomes(policies, sized("nginx:3", "200m", "2"))
			r.dressed("nginx:3")
			r.isWeb(web{"nginx:3", "300m", 3, false})
			r.becomes(nil, sized("nginx:3", "200m", "2"))
			r.isWeb(web{"nginx:3", "200m", 2, false})
		})
	}
}

// An object that exists gets the policy: its fields stay as they are, be they drifted or as the module said, and a program may have
// them without a conflict.
func TestIgnoredFieldsOfAnObjectThatExists(t *testing.T) {
	r := newRig(t)
	r.becomes(nil, sized("nginx:1", "100m", "1"))
	policies := ignoring("/spec/replicas", "/spec/template/spec/containers/name=app/resources/requests")
	r.becomes(policies, sized("nginx:1", "100m", "1"))
	r.isWeb(web{"nginx:1", "100m", 1, false})
	writers["a writer that applies"](r, "300m")
	r.dressed("nginx:1")
	r.isWeb(web{"nginx:1", "300m", 1, false})
	r.count.take()
	r.becomes(policies, sized("nginx:1", "200m", "2"))
	if counts, _ := r.count.take(); counts["PATCH"] != 0 {
		t.Errorf("a revision that changes nothing but ignored fields is a reason to apply: %v", counts)
	}
	r.isWeb(web{"nginx:1", "300m", 1, false})
	uid := r.uidOf("apps/v1", "deployments", "web")
	r.delete("apps/v1", "deployments", "web")
	r.eventually("it is made again", func() bool {
		u := r.get("apps/v1", "deployments", "web")
		return u != nil && u.GetUID() != uid
	})
	r.dressed("nginx:1")
	r.isWeb(web{"nginx:1", "200m", 2, false})
	writers["a writer that applies"](r, "400m")
	r.dressed("nginx:1")
	r.isWeb(web{"nginx:1", "400m", 2, false})
}

// Somebody changes what is the module's between the apply and the patch that releases what is not: that is drift, and no part of what
// was applied.
func TestIgnoredFieldsOfAnObjectThatChangesAtOnce(t *testing.T) {
	r := newRig(t)
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.Header.Get("Content-Type") == string(types.JSONPatchType) && !strings.Contains(q.URL.RawQuery, "kubectl-edit") && strings.HasSuffix(q.URL.Path, "/deployments/web") {
			once.Do(func() {
				r.json("kubectl-edit", `{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"other"}`)
			})
		}
		return nil
	})
	r.set([]fleet.Sync{r.bundle("shop", ignoring("/spec/replicas"), sized("nginx:1", "100m", "1"))})
	r.eventually("the image is corrected", func() bool {
		u := r.get("apps/v1", "deployments", "web")
		return u != nil && u.GetGeneration() > 2 && r.web().image == "nginx:1"
	})
}

// What no record is left of is known from the object itself: nothing is taken from it, nor written again.
func TestIgnoredFieldsWithoutARecord(t *testing.T) {
	r := newRig(t)
	policies := ignoring("/spec/replicas", cpuPointer)
	s := r.becomes(policies, sized("nginx:1", "100m", "2"))
	r.scale("web", 3, "somebody's-scaler")
	r.loseState()
	r.set([]fleet.Sync{s})
	r.dressed("nginx:1")
	r.isWeb(web{"nginx:1", "100m", 3, false})
	r.becomes(policies, sized("nginx:2", "200m", "1"))
	r.isWeb(web{"nginx:2", "100m", 3, false})
}

// What differs in nothing but ignored fields is adopted, and keeps them.
func TestIgnoredFieldsAreNoDifference(t *testing.T) {
	r := newRig(t)
	theirs := r.object(sized("nginx:1", "300m", "4"))
	r.createAs("terraform", "apps/v1", "deployments", r.ns, theirs)
	r.conflicts(r.bundle("shop", ignoring("/spec/replicas"), sized("nginx:1", "100m", "1")))
	r.becomes(ignoring("/spec/replicas", cpuPointer), sized("nginx:1", "100m", "1"))
	r.isWeb(web{"nginx:1", "300m", 4, false})
}

// An item that a revision brings is made whole, whatever of it is ignored from then on; one that a revision drops goes whole.
func TestIgnoredFieldsComeAndGoWithTheirItem(t *testing.T) {
	r := newRig(t)
	policies := ignoring("/spec/template/spec/containers/*/image", "/spec/template/spec/containers/*/args/0")
	with := func(side string) string {
		return strings.Replace(sized("nginx:1", "100m", "1"), "      containers:\n", "      containers:\n"+side, 1)
	}
	r.becomes(policies, with(""))
	r.becomes(policies, with("      - {name: side, image: side-1, args: [a, b]}\n"))
	containers := func() map[string]string {
		list, _, _ := unstructured.NestedSlice(r.get("apps/v1", "deployments", "web").Object, "spec", "template", "spec", "containers")
		out := map[string]string{}
		for _, x := range list {
			c := x.(map[string]any)
			args, _, _ := unstructured.NestedStringSlice(c, "args")
			out[c["name"].(string)] = c["image"].(string) + " " + strings.Join(args, ",")
		}
		return out
	}
	if got := containers(); !maps.Equal(got, map[string]string{"app": "nginx:1 ", "side": "side-1 a,b"}) {
		t.Fatalf("containers %v", got)
	}
	r.becomes(policies, strings.Replace(with("      - {name: side, image: side-2, args: [c, d]}\n"), "100m", "200m", 1))
	if got := containers(); !maps.Equal(got, map[string]string{"app": "nginx:1 ", "side": "side-1 a,b"}) {
		t.Errorf("containers %v", got)
	}
	r.becomes(policies, with(""))
	if got := containers(); len(got) != 1 || got["side"] != "" {
		t.Errorf("containers %v, though the revision drops one", got)
	}
}

// What a manager of the policy holds is its own for as long as it holds it; what others change is corrected.
func TestFieldsAreLeftToManagers(t *testing.T) {
	config := labConfig(t)
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRigOn(t, rest.CopyConfig(config))
			policies := leftTo("vpa")
			applies := name == "a writer that applies"
			s := r.becomes(policies, sized("nginx:1", "100m", "1"))
			r.stop()
			if applies { // whoever applies takes what is ours with force
				r.applyAs("vpa", `{"spec":{"template":{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"300m"}}}]}}}}`)
			} else {
				write(r, "300m")
			}
			r.forget()
			r.start()
			r.set([]fleet.Sync{s})
			if x := r.ready(s); x.States[0].Drift != fleet.DriftInSync || x.Corrections != 0 {
				t.Errorf("what a manager holds is drift: %+v", x)
			}
			r.dressed("nginx:1")
			r.isWeb(web{"nginx:1", "300m", 1, false})
			write(r, "400m")
			r.becomes(policies, sized("nginx:2", "200m", "1"))
			r.isWeb(web{"nginx:2", "400m", 1, false})
			r.stop()
			r.start()
			s = r.becomes(policies, sized("nginx:3", "200m", "1"))
			r.isWeb(web{"nginx:3", "400m", 1, false})
			if applies {
				r.applyAs("vpa", `{}`)
			} else {
				r.json("bob", `{"op":"replace","path":"/spec/template/spec/containers/0/resources/requests/cpu","value":"500m"}`)
			}
			r.eventually("it is the module's again", func() bool { return r.web() == web{"nginx:3", "200m", 1, false} })
			r.ready(s)
		})
	}
}

// applyAs applies to the Deployment with force.
func (r *rig) applyAs(manager, body string) {
	r.t.Helper()
	force := true
	full := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},` + strings.TrimPrefix(body, "{")
	full = strings.Replace(full, `"},}`, `"}}`, 1)
	if _, err := r.res("apps/v1", "deployments", r.ns).Patch(context.Background(), "web", types.ApplyPatchType, []byte(full), metav1.PatchOptions{FieldManager: manager, Force: &force}); err != nil {
		r.t.Fatal(err)
	}
}

// Wherever an agent is killed: what a policy ignores is there from the first moment on, stays as somebody set it, and is not taken
// away when the module does not list it any more.
func TestKilledAnywhereWithIgnoredFields(t *testing.T) {
	killedAnywhere(t, func(r *rig, live func(lives []life, look func() map[string]string, then func(life))) {
		policies := ignoring("/data/own")
		look := func() map[string]string {
			out := r.ours()
			if u := r.get("v1", "configmaps", "a"); u != nil && out["a"] != "" {
				data, _, _ := unstructured.NestedStringMap(u.Object, "data")
				out["a"] += " " + data["own"]
			}
			return out
		}
		first := r.bundle("shop", nil, configMap("a", "k: v1, own: made"), configMap("b", "k: v1"))
		second := r.bundle("shop", policies, configMap("a", "k: v2, own: made"))
		third := r.bundle("shop", policies, configMap("a", "k: v3, own: other"), configMap("c", "k: v3, own: made"))
		fourth := r.bundle("shop", policies, configMap("a", "k: v4"), configMap("c", "k: v3, own: made"))
		gone := r.tombstone("shop", fleet.DeleteDelete)
		live([]life{
			{"a first revision", func() { r.set([]fleet.Sync{first}) }, map[string]string{"a": "v1 made", "b": "v1"}, "shop", isReady(first)},
			{"the policy", func() { r.set([]fleet.Sync{second}) }, map[string]string{"a": "v2 made"}, "shop", isReady(second)},
			{"an edit by hand", func() {
				r.set([]fleet.Sync{second})
				r.patch("v1", "configmaps", "a", "somebody", `{"data":{"k":"wrong","own":"theirs"}}`)
			}, map[string]string{"a": "v2 theirs"}, "shop", isReady(second)},
			{"another value of it", func() { r.set([]fleet.Sync{third}) }, map[string]string{"a": "v3 theirs", "c": "v3"}, "shop", isReady(third)},
			{"no value of it", func() { r.set([]fleet.Sync{fourth}) }, map[string]string{"a": "v4 theirs", "c": "v3"}, "shop", isReady(fourth)},
			{"the end of the module", func() { r.set(nil, gone) }, map[string]string{}, "shop", isRemoved},
		}, look, func(life) {})
	})
}

// The text of a Secret is ignored where the manifest has it.
func TestIgnoredTextOfASecret(t *testing.T) {
	r := newRig(t)
	policies := ignoring("/stringData/password")
	secret := func(password, rest string) string {
		return "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: $NS}\nstringData: {password: " + password + ", rest: " + rest + "}\n"
	}
	r.becomes(policies, secret("first", "r1"))
	r.patch("v1", "secrets", "s", "rotator", `{"data":{"password":"cm90YXRlZA=="}}`)
	r.becomes(policies, secret("second", "r2"))
	data, _, _ := unstructured.NestedStringMap(r.get("v1", "secrets", "s").Object, "data")
	if !maps.Equal(data, map[string]string{"password": "cm90YXRlZA==", "rest": "cjI="}) {
		t.Errorf("it holds %v", data)
	}
}

// beforeApply does something once, right before an apply to the Deployment is sent.
func (r *rig) beforeApply(force bool, do func()) {
	var once sync.Once
	r.count.upset(func(q *http.Request) error {
		if q.Header.Get("Content-Type") == string(types.ApplyPatchType) && strings.Contains(q.URL.RawQuery, "fieldManager=towline") && strings.HasSuffix(q.URL.Path, "/deployments/web") && (!force || strings.Contains(q.URL.RawQuery, "force=true")) {
			once.Do(do)
		}
		return nil
	})
}

// What others take of an object, by a policy, between the look at it and the apply is left to them, too.
func TestWhatIsTakenMeanwhileIsLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		policies []fleet.Policy
		correct  bool
	}{
		"managers, correction": {leftTo("vpa"), true},
		"managers, revision":   {leftTo("vpa"), false},
		"on drift, correction": {once(fleet.OnceOnDrift, cpuPointer), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			without := func(image, cpu string) string { // replicas, of which an apply depends on the version, too
				return strings.Replace(sized(image, cpu, "1"), "  replicas: 1\n", "", 1)
			}
			r.becomes(tc.policies, without("nginx:1", "100m"))
			hit := make(chan struct{})
			r.beforeApply(tc.correct, func() { writers["a plain writer"](r, "300m"); close(hit) })
			if tc.correct {
				r.dressed("nginx:1")
				r.isWeb(web{"nginx:1", "300m", 1, false})
			} else {
				r.becomes(tc.policies, without("nginx:2", "200m"))
				r.isWeb(web{"nginx:2", "300m", 1, false})
			}
			<-hit
		})
	}
}

// A map that has one holder as a whole is ignored as a whole if a pointer leads into it: what is left of it would take its place.
func TestIgnoredPartOfAMapThatIsUndivided(t *testing.T) {
	r := newRig(t)
	policies := ignoring("/spec/selector/app")
	service := func(port string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: $NS}\nspec: {selector: {app: web, tier: front}, ports: [{port: " + port + "}]}\n"
	}
	is := func(want map[string]string) {
		t.Helper()
		if got, _, _ := unstructured.NestedStringMap(r.get("v1", "services", "web").Object, "spec", "selector"); !maps.Equal(got, want) {
			t.Errorf("it selects %v, not %v", got, want)
		}
	}
	r.becomes(policies, service("80"))
	r.becomes(policies, service("81"))
	is(map[string]string{"app": "web", "tier": "front"})
	r.patch("v1", "services", "web", "rollouts", `{"spec":{"selector":{"hash":"x"}}}`)
	more := map[string]string{"app": "web", "tier": "front", "hash": "x"}
	r.becomes(policies, service("82"))
	is(more)
	r.loseState()
	r.becomes(policies, service("83"))
	is(more)
	r.becomes(ignoring("/spec/selector/hash"), service("84")) // which the module does not list
	is(more)
}

// What is ignored stays when a revision drops the last field of the module beside it: the API server takes away with that what nobody
// has.
func TestIgnoredFieldOutlivesWhatWasBesideIt(t *testing.T) {
	r := newRig(t)
	policies := ignoring("/data/own", "/spec/template/spec/containers/name=app/resources/requests", "/spec/template/metadata/annotations/x")
	with := func(limits, notes string) string {
		web := strings.Replace(sized("nginx:1", "100m", "1"), "requests: {cpu: 100m}", limits+"requests: {cpu: 100m}", 1)
		return strings.Replace(web, "labels: {app: web}}", "labels: {app: web}, annotations: {"+notes+"x: v}}", 1)
	}
	r.becomes(policies, configMap("c", "k: v, own: made"), with("limits: {cpu: 900m}, ", "y: v, "))
	for range 2 { // the second time nothing of the module is beside it any more
		r.becomes(policies, configMap("c", "own: other"), with("", ""))
		notes, _, _ := unstructured.NestedStringMap(r.get("apps/v1", "deployments", "web").Object, "spec", "template", "metadata", "annotations")
		if own, cpu := r.data("c", "own"), r.web().cpu; own != "made" || cpu != "100m" || notes["x"] != "v" || notes["y"] != "" || r.data("c", "k") != "" {
			t.Errorf("own is %q, the CPU %q, annotations %v", own, cpu, notes)
		}
		policies = append(policies, fleet.Policy{}) // a revision of its own
	}
	r.becomes(policies, configMap("c", "own: other, k: again"), with("limits: {cpu: 800m}, ", "y: again, "))
	if r.data("c", "k") != "again" || r.data("c", "own") != "made" {
		t.Errorf("k is %q, own %q", r.data("c", "k"), r.data("c", "own"))
	}
}

// What a manager of the policy holds is left to it, too, where no record is left of the object.
func TestFieldsAreLeftToManagersWithoutARecord(t *testing.T) {
	r := newRig(t)
	policies := leftTo("vpa")
	s := r.becomes(policies, sized("nginx:1", "100m", "1"))
	writers["a plain writer"](r, "300m")
	r.dressed("nginx:1")
	r.loseState()
	r.set([]fleet.Sync{s})
	r.dressed("nginx:1")
	r.isWeb(web{"nginx:1", "300m", 1, false})
	r.becomes(policies, sized("nginx:2", "200m", "1"))
	r.isWeb(web{"nginx:2", "300m", 1, false})
}
