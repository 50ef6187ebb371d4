package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/health"
)

// crd defines kind Gadget in a group of the rig's own.
var crd = gadgetCRD("x-kubernetes-preserve-unknown-fields: true")

const gadget = "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: g, namespace: $NS}\nspec: {size: 1}\n"

func TestCustomResourceWithItsDefinition(t *testing.T) {
	r := aloneRig(t)
	s := r.bundle("shop", nil, gadget, crd, configMap("a", "k: v"))
	r.count.take()
	r.set([]fleet.Sync{s})
	r.ready(s)
	counts, paths := r.count.take()
	if counts["PATCH"] != 3 {
		t.Errorf("an attempt failed before the kind was there: %v", paths)
	}
	for _, p := range paths {
		if strings.Contains(p, "GET /apis/"+r.ns) {
			t.Errorf("discovery for a kind whose definition we applied: %v", paths)
		}
	}

	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.crdExists() {
		t.Error("the definition is left though nothing foreign uses it")
	}
}

func (r *rig) crdExists() bool {
	_, err := r.client.Resource(gvr("apiextensions.k8s.io/v1", "customresourcedefinitions")).Get(context.Background(), "gadgets."+r.ns+".example.com", metav1.GetOptions{})
	return err == nil
}

// TestUnknownKindDoesNotOutliveItsModule: nothing was ever written of a kind that the cluster does not have.
func TestUnknownKindDoesNotOutliveItsModule(t *testing.T) {
	r := newRig(t)
	unknown := strings.ReplaceAll(gadget, "Gadget", "Gizmo")
	r.set([]fleet.Sync{r.bundle("shop", nil, unknown, configMap("a", "k: v"))})
	told := func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "NoSuchKind" }
	r.wait("shop", "told", told)
	next := r.bundle("shop", nil, configMap("a", "k: v"))
	r.set([]fleet.Sync{next})
	if status := r.ready(next); len(status.Extras) != 0 {
		t.Errorf("what was never there is still listed: %+v", status.Extras)
	}

	r.set([]fleet.Sync{r.bundle("shop", nil, unknown, configMap("a", "k: v"))})
	r.wait("shop", "told", told)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

func TestDefinitionOfAnotherModule(t *testing.T) {
	r := newRig(t)
	user := r.bundle("user", nil, gadget)
	r.set([]fleet.Sync{user})
	status := r.wait("user", "without a kind", func(x fleet.SyncStatus) bool { return len(x.Exceptions) == 1 })
	if e := status.Exceptions[0]; e.Reason != "NoSuchKind" || !strings.Contains(e.Message, "is its CRD part of another module?") {
		t.Errorf("exception %+v", e)
	}
	def := r.bundle("def", nil, crd)
	r.set([]fleet.Sync{user, def})
	r.ready(def)
	r.ready(user)

	r.create(r.ns+".example.com/v1", "gadgets", r.ns, map[string]any{"apiVersion": r.ns + ".example.com/v1", "kind": "Gadget",
		"metadata": map[string]any{"name": "theirs", "namespace": r.ns}})
	r.set([]fleet.Sync{user}, r.tombstone("def", fleet.DeleteDelete))
	r.wait("def", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !r.crdExists() {
		t.Error("a definition that others use was deleted, and all of its objects with it")
	}
}

func TestNamespaces(t *testing.T) {
	r := newRig(t)
	own := "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-own}\n"
	used := "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS}\n"
	inOwn := strings.ReplaceAll(configMap("a", "k: v"), "$NS", "$NS-own")
	s := r.bundle("shop", nil, inOwn, own, used, configMap("b", "k: v"), strings.ReplaceAll(deployment("web", 1), "$NS", "$NS-own"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	ns, err := r.client.Resource(gvr("v1", "namespaces")).Get(context.Background(), r.ns, metav1.GetOptions{})
	if err != nil || ns.GetLabels()[fleet.HubLabel] != "" {
		t.Errorf("an existing namespace was taken: %v %v", ns.GetLabels(), err)
	}

	r.create("v1", "configmaps", r.ns+"-own", map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "theirs", "namespace": r.ns + "-own"}})
	next := r.bundle("shop", nil, used, configMap("b", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "not empty", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Extras) == 1 && x.Extras[0].Reason == "NamespaceNotEmpty" && strings.Contains(x.Extras[0].Message, "ConfigMap theirs")
	})
	if err := r.res("v1", "configmaps", r.ns+"-own").Delete(context.Background(), "theirs", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.namespaces(r.ns+"-own") || !r.namespaces(r.ns) {
		t.Error("our namespace stays, or the one that we used went")
	}
}

func TestNamespaceThatComesLater(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, strings.ReplaceAll(configMap("a", "k: v"), "$NS", "$NS-later"), configMap("b", "k: v"))
	r.set([]fleet.Sync{s})
	r.wait("shop", "without a namespace", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) == 1 && x.Exceptions[0].Reason == "NoSuchNamespace" && r.get("v1", "configmaps", "b") != nil
	})
	r.create("v1", "namespaces", "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": r.ns + "-later"}})
	r.ready(s)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

func TestImmutableField(t *testing.T) {
	r := newRig(t)
	job := "apiVersion: batch/v1\nkind: Job\nmetadata: {name: once, namespace: $NS}\nspec: {suspend: true, template: {spec: {restartPolicy: Never, containers: [{name: c, image: \"x:1\"}]}}}\n"
	s := r.bundle("shop", nil, job)
	r.set([]fleet.Sync{s})
	status := r.ready(s)
	if status.States[0].Health != fleet.HealthSuspended {
		t.Errorf("a suspended job is %+v", status.States[0])
	}
	changed := strings.Replace(job, "x:1", "x:2", 1)
	next := r.bundle("shop", nil, changed)
	r.set([]fleet.Sync{next})
	status = r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && x.Generation == next.Generation })
	if status.Reason != "Immutable" || !strings.Contains(status.Message, "recreate: IfImmutable") {
		t.Errorf("status %+v", status)
	}
	uid := r.get("batch/v1", "jobs", "once").GetUID()
	third := r.bundle("shop", []fleet.Policy{{Recreate: fleet.RecreateIfImmutable}}, changed)
	r.set([]fleet.Sync{third})
	r.ready(third)
	if r.get("batch/v1", "jobs", "once").GetUID() == uid {
		t.Error("not recreated")
	}
}

func TestConflictGovernsOnlyNewFields(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v1"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.patch("v1", "configmaps", "a", "ana", `{"data":{"extra":"hers"}}`)
	next := r.bundle("shop", nil, configMap("a", "k: v2, extra: ours"))
	r.set([]fleet.Sync{next})
	status := r.wait("shop", "in conflict", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed && x.Generation == next.Generation })
	wantDrift(t, status, fleet.ObjectException{Field: "/data/extra", Want: `"ours"`, Live: `"hers"`, ChangedBy: "ana", Seen: 1})
	if got := r.data("a", "k"); got != "v1" {
		t.Errorf("k is %s", got)
	}
	forced := r.bundle("shop", []fleet.Policy{{Conflict: fleet.ConflictForce}}, configMap("a", "k: v2, extra: ours"))
	r.set([]fleet.Sync{forced})
	r.ready(forced)
	if r.data("a", "extra") != "ours" {
		t.Error("not forced")
	}
}

func TestValues(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: 'in ${CLUSTER}, not ${HOME}'"), configMap("b", "k: v"))
	s.Values = map[string]string{"CLUSTER": "prod-1"}
	r.set([]fleet.Sync{s})
	r.ready(s)
	if got := r.data("a", "k"); got != "in prod-1, not ${HOME}" {
		t.Errorf("k is %q", got)
	}
	r.count.take()
	r.gen++
	s.Generation, s.Values = r.gen, map[string]string{"CLUSTER": "prod-2"}
	r.set([]fleet.Sync{s})
	r.ready(s)
	if counts, paths := r.count.take(); counts["PATCH"] != 1 || r.data("a", "k") != "in prod-2, not ${HOME}" {
		t.Errorf("one object uses the value; requests %v, k is %q", paths, r.data("a", "k"))
	}
}

// TestSubstitutedValues: placeholders that are more than ${NAME} make objects that the API server takes, and that are not drift.
func TestSubstitutedValues(t *testing.T) {
	r := newRig(t)
	r.store.how = &fleet.Substitution{Types: map[string]fleet.BindingType{"N": fleet.BindingInteger, "ON": fleet.BindingBoolean}}
	web := strings.Replace(deployment("web", 1), "replicas: 1", "replicas: '${N:-3}'\n  paused: '${ON}'", 1)
	s := r.bundle("shop", nil, web, configMap("a", `k: '${REGION:-eu} $${REGION} ${N:-3} ${HOME:-x}'`),
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: script, namespace: $NS, annotations: {towline.dev/substitute: disabled}}\ndata: {k: '${REGION:-us}'}")
	s.Values = map[string]string{"REGION": "", "N": "", "ON": "true"}
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
	if got, script := r.data("a", "k"), r.data("script", "k"); got != "eu ${REGION} 3 ${HOME:-x}" || script != "${REGION:-us}" {
		t.Errorf("a is %q, script %q", got, script)
	}
	spec := r.get("apps/v1", "deployments", "web").Object["spec"].(map[string]any)
	if spec["replicas"] != int64(3) || spec["paused"] != true {
		t.Errorf("replicas %v, paused %v", spec["replicas"], spec["paused"])
	}
	r.count.take()
	r.gen++
	s.Generation, s.Values = r.gen, map[string]string{"REGION": "us", "N": "", "ON": "true"}
	r.set([]fleet.Sync{s})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && x.Phase == fleet.PhaseApplied })
	if _, paths := r.count.take(); r.data("a", "k") != "us ${REGION} 3 ${HOME:-x}" || slices.ContainsFunc(paths, func(p string) bool { return strings.HasPrefix(p, "PATCH") && !strings.Contains(p, "/configmaps/a") }) {
		t.Errorf("a is %q; requests %v", r.data("a", "k"), paths)
	}
}

func TestUnknownFieldIsRefused(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, strings.Replace(deployment("web", 1), "spec:\n", "spec:\n  replcas: 2\n", 1), configMap("a", "k: v"))
	r.set([]fleet.Sync{s})
	status := r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseFailed })
	if status.Reason != "Invalid" || !strings.Contains(status.Message, "replcas") || r.get("v1", "configmaps", "a") == nil {
		t.Errorf("status %+v", status)
	}
}

func TestWaves(t *testing.T) {
	r := newRig(t)
	wave := func(name, wave string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: $NS, annotations: {towline.dev/wave: '" + wave + "'}}\n"
	}
	s := r.bundle("shop", nil, wave("a", "2"), wave("b", "0"), wave("c", "-1"), wave("d", "1"))
	r.count.take()
	r.set([]fleet.Sync{s})
	r.ready(s)
	_, paths := r.count.take()
	var order string
	for _, p := range paths {
		if strings.HasPrefix(p, "PATCH") {
			order += p[len(p)-1:]
		}
	}
	if order != "cbda" {
		t.Errorf("applied in the order %s", order)
	}
}

// TestStatusOfACustomResource: a kind with a status subresource has a controller that has something to say; one without
// has none to wait for.
func TestStatusOfACustomResource(t *testing.T) {
	r := newRig(t)
	withStatus := crd + "    subresources: {status: {}}\n"
	bare := strings.NewReplacer("gadgets", "widgets", "Gadget", "Widget").Replace(crd)
	widget := strings.NewReplacer("Gadget", "Widget").Replace(gadget)
	s := r.bundle("shop", nil, withStatus, bare, gadget, widget)
	r.set([]fleet.Sync{s})
	got := r.wait("shop", "no status", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && x.Reason == health.ReasonNoStatus
	})
	if got.Ready || !strings.Contains(got.Message, "Gadget") {
		t.Errorf("%+v", got)
	}

	r.patch(r.ns+".example.com/v1", "gadgets", "g", "controller", `{"status":{"phase":"Failed","message":"no power"}}`, "status")
	r.wait("shop", "failed", func(x fleet.SyncStatus) bool { return !x.Ready && strings.Contains(x.Message, "no power") })
	r.patch(r.ns+".example.com/v1", "gadgets", "g", "controller", `{"status":{"phase":"Running"}}`, "status")
	r.ready(s)

	// After a restart, and with a definition that is discovered, it is the same.
	r.patch(r.ns+".example.com/v1", "gadgets", "g", "controller", `{"status":null}`, "status")
	r.stop()
	r.start()
	r.set([]fleet.Sync{s})
	r.wait("shop", "no status", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseApplied && x.Reason == health.ReasonNoStatus
	})
}

// strictCRD defines kind Gadget with a schema that keeps what it knows only.
func strictCRD(fields string) string {
	return gadgetCRD(fmt.Sprintf("properties: {spec: {type: object, properties: {%s}}}", fields))
}

// gadgetCRD defines kind Gadget in a group of the rig's own, with more about its schema.
func gadgetCRD(schema string) string {
	return fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gadgets.$NS.example.com}
spec:
  group: $NS.example.com
  scope: Namespaced
  names: {kind: Gadget, plural: gadgets}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, %s}}
`, schema)
}

// A kind whose definition loses a field drops what the module says of it, and the API server sends no event of that: it
// ends the watches of the kind. The object is not called Synced then.
func TestFieldThatTheKindDoesNotHaveAnyMore(t *testing.T) {
	r := newRig(t)
	r.colored()
	r.dropColor()
	r.wait("shop", "told", func(x fleet.SyncStatus) bool { return x.States[0].Sync != fleet.SyncSynced })
}

// The watch that ends may have shown something newer than the definition: another object that somebody writes at that
// time. The API server lets a watch begin there, without a list.
func TestFieldThatTheKindDoesNotHaveAnyMoreWhileOthersAreWritten(t *testing.T) {
	r := newRig(t)
	r.colored()
	watched := time.NewTimer(1500 * time.Millisecond) // one that has just begun is followed by a list in any case
	defer watched.Stop()
	<-watched.C
	r.dropColor()
	r.patch(r.ns+".example.com/v1", "gadgets", "h", "ana", `{"metadata":{"annotations":{"seen":"by ana"}}}`)
	r.wait("shop", "told", func(x fleet.SyncStatus) bool { return x.States[0].Sync != fleet.SyncSynced })
}

// colored applies module shop with Gadget g, which has a color, and Gadget h.
func (r *rig) colored() {
	r.t.Helper()
	r.clusterScoped("customresourcedefinitions", strictCRD("size: {type: integer}, color: {type: string}"))
	g := "apiVersion: $NS.example.com/v1\nkind: Gadget\nmetadata: {name: g, namespace: $NS}\nspec: {size: 1, color: red}\n"
	r.set([]fleet.Sync{r.bundle("shop", nil, g, strings.NewReplacer("name: g", "name: h", ", color: red", "").Replace(g))})
	r.wait("shop", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
}

// dropColor takes the field out of the definition, and waits until the API server does not show it any more.
func (r *rig) dropColor() {
	r.t.Helper()
	_, err := r.res("apiextensions.k8s.io/v1", "customresourcedefinitions", "").Patch(context.Background(), "gadgets."+r.ns+".example.com", types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color"}]`), metav1.PatchOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.eventually("the field is dropped", func() bool {
		u := r.get(r.ns+".example.com/v1", "gadgets", "g")
		if u == nil {
			return false
		}
		spec, _ := u.Object["spec"].(map[string]any)
		return spec["color"] == nil
	})
}

// The webhook that converts objects of a kind is the module's own, and goes before the definition does. Whether there are
// objects of somebody else can be seen all the same, in the version that they are stored in.
func TestDefinitionWhoseConversionIsGone(t *testing.T) {
	r := newRig(t)
	version := func(name string, storage bool) string {
		return fmt.Sprintf("{name: %s, served: true, storage: %t, schema: {openAPIV3Schema: {type: object}}}", name, storage)
	}
	s := r.bundle("shop", nil, "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.$NS.example.com}\n"+
		"spec: {group: $NS.example.com, scope: Namespaced, names: {kind: Thing, plural: things}, versions: ["+version("v1alpha1", false)+", "+version("v1", true)+
		"], conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: \"https://127.0.0.1:1/convert\"}}}}\n")
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.t.Cleanup(func() {
		_ = r.res("apiextensions.k8s.io/v1", "customresourcedefinitions", "").Delete(context.Background(), "things."+r.group(), metav1.DeleteOptions{})
	})
	hers := r.custom("v1", "Thing", r.ns, "hers")
	r.eventually("the kind takes objects", func() bool {
		_, err := r.res(r.group()+"/v1", "things", r.ns).Create(context.Background(), &unstructured.Unstructured{Object: hers}, metav1.CreateOptions{})
		return err == nil
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	status := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !strings.Contains(status.Message, "hers") || !r.exists(r.group()+"/v1", "things", r.ns, "hers") {
		t.Errorf("status %+v", status)
	}
}

// What an API server makes up for each answer, as a ComponentStatus, cannot be written: a module that lists one fails by it, and is removed
// like any other.
func TestModuleOfWhatIsNotKeptIsRemoved(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, configMap("a", "k: v"), "apiVersion: v1\nkind: ComponentStatus\nmetadata: {name: etcd-0}\n",
		"apiVersion: authentication.k8s.io/v1\nkind: TokenReview\nmetadata: {name: x}\nspec: {token: x}\n")
	r.set([]fleet.Sync{s})
	r.wait("shop", "said of both", func(x fleet.SyncStatus) bool { return x.Generation == s.Generation && len(x.Exceptions) == 2 })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get("v1", "configmaps", "a") != nil {
		t.Error("the rest of it stays")
	}
}
