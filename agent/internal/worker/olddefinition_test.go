package worker

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/testkit/labtest"
)

// A second real API server answers the agent by the definition of a kind that was, for its watches of the store stand still. Nothing is deleted,
// overwritten, or taken for gone by that.
func TestOldDefinitionsOfAnAPIServerThatStandsStill(t *testing.T) {
	standsStill(t, []secondCase{
		{"a field that cannot be changed any more, and can", fieldThatCanBeChangedNow},
		{"a version that is not defined yet", versionUnknownToSecond},
		{"a kind that has namespaces now, in a Namespace", kindThatHasNamespacesNow},
		{"a kind that has no namespaces any more", kindThatHasNoNamespacesAnyMore},
		{"a kind with another plural", kindWithAnotherPlural},
		{"a field that is not defined yet, of an object that is left", fieldOfWhatIsLeft},
		{"a field that is not defined yet, which a policy leaves", fieldThatIsLeft},
		{"a field that is not defined yet, which a policy leaves, of an object of which the record is lost", fieldThatIsLeftWithoutARecord},
		{"a field that is not defined yet, which a policy leaves, of an object that is taken from another tool", fieldThatIsLeftOfWhatIsTaken},
		{"a field that is not defined yet, which a policy leaves, of an object that another module hands over", fieldThatIsLeftOfWhatIsHandedOver},
		{"a field that is not defined yet, of a new object", fieldOfANewObject},
	})
}

// defineAs defines a kind of the rig's own group, of which each version has a structural schema of its spec.
func (r *rig) defineAs(plural, kind, scope string, versions map[string]string, stored string) {
	r.t.Helper()
	var list []string
	for name, spec := range versions {
		list = append(list, fmt.Sprintf(`{"name":%q,"served":true,"storage":%t,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":%s}}}}`,
			name, name == stored, spec))
	}
	slices.Sort(list)
	body := fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":%q},
		"spec":{"group":%q,"scope":%q,"names":{"plural":%q,"kind":%q},"versions":[%s]}}`, plural+"."+r.group(), r.group(), scope, plural, kind, strings.Join(list, ","))
	_, err := r.definitions().Patch(context.Background(), plural+"."+r.group(), types.ApplyPatchType, []byte(body), metav1.PatchOptions{FieldManager: "operator"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.undefine(plural) })
	for name := range versions {
		r.eventually(name+" of the kind is served", func() bool {
			_, err := r.res(r.group()+"/"+name, plural, "").List(context.Background(), metav1.ListOptions{})
			return err == nil
		})
	}
}

func (r *rig) definitions() dynamic.ResourceInterface {
	return r.res("apiextensions.k8s.io/v1", "customresourcedefinitions", "")
}

// undefineNow deletes a definition and waits until it is gone.
func (r *rig) undefineNow(plural string) {
	r.t.Helper()
	r.undefine(plural)
	r.eventually("the definition is gone", func() bool {
		_, err := r.definitions().Get(context.Background(), plural+"."+r.group(), metav1.GetOptions{})
		return err != nil
	})
}

// knownTo waits until another API server serves a kind.
func (r *rig) knownTo(second *labtest.Second, version, plural string) {
	r.t.Helper()
	other := labConfig(r.t)
	other.Host = "https://" + second.Host
	client, err := dynamic.NewForConfig(other)
	if err != nil {
		r.t.Fatal(err)
	}
	r.eventually("it knows the kind", func() bool {
		_, err := client.Resource(gvr(r.group()+"/"+version, plural)).List(context.Background(), metav1.ListOptions{})
		return err == nil
	})
}

const anySpec = `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`

func (r *rig) ofKind(kind, version, metadata, spec string) string {
	return fmt.Sprintf("apiVersion: %s/%s\nkind: %s\nmetadata: {%s}\nspec: {%s}\n", r.group(), version, kind, metadata, spec)
}

func fieldThatCanBeChangedNow(r *rig, second *labtest.Second) {
	size := `{"type":"object","properties":{"size":{"type":"integer"%s}}}`
	r.defineAs("gadgets", "Gadget", "Namespaced", map[string]string{"v1": fmt.Sprintf(size,
		`,"x-kubernetes-validations":[{"rule":"self == oldSelf","message":"size is immutable"}]`)}, "v1")
	r.knownTo(second, "v1", "gadgets")
	r.via(second)
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Gadget"}}, Recreate: fleet.RecreateIfImmutable}}
	s := r.bundle("shop", policies, r.ofKind("Gadget", "v1", "name: a, namespace: $NS", "size: 1"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	uid := r.uidOf(r.group()+"/v1", "gadgets", "a")
	second.Freeze()
	r.defineAs("gadgets", "Gadget", "Namespaced", map[string]string{"v1": fmt.Sprintf(size, "")}, "v1")
	r.eventually("the first takes the change", func() bool {
		_, err := r.res(r.group()+"/v1", "gadgets", r.ns).Patch(context.Background(), "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`),
			metav1.PatchOptions{DryRun: []string{"All"}})
		return err == nil
	})
	next := r.bundle("shop", policies, r.ofKind("Gadget", "v1", "name: a, namespace: $NS", "size: 2"))
	r.set([]fleet.Sync{next})
	r.toldOrDone(next)
	second.Thaw()
	r.applied(next)
	if now := r.uidOf(r.group()+"/v1", "gadgets", "a"); now != uid {
		r.t.Error("the object was deleted and made again for a rule that is not there any more")
	}
}

func versionUnknownToSecond(r *rig, second *labtest.Second) {
	r.defineAs("gizmos", "Gizmo", "Namespaced", map[string]string{"v1": anySpec}, "v1")
	r.knownTo(second, "v1", "gizmos")
	r.via(second)
	s := r.bundle("shop", nil, r.ofKind("Gizmo", "v1", "name: a, namespace: $NS", "size: 1"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	second.Freeze()
	r.defineAs("gizmos", "Gizmo", "Namespaced", map[string]string{"v1": anySpec, "v2": anySpec}, "v1")
	r.patch(r.group()+"/v2", "gizmos", "a", "operator", `{"spec":{"node":"a"}}`)
	next := r.bundle("shop", nil, r.ofKind("Gizmo", "v1", "name: a, namespace: $NS", "size: 2"))
	r.set([]fleet.Sync{next})
	r.toldOrDone(next)
	second.Thaw()
	r.applied(next)
	for _, m := range r.get(r.group()+"/v1", "gizmos", "a").GetManagedFields() {
		if m.Manager == "operator" && m.APIVersion != r.group()+"/v2" {
			r.t.Errorf("what an operator has in v2 is noted in %s", m.APIVersion)
		}
	}
}

func kindThatHasNamespacesNow(r *rig, second *labtest.Second) {
	r.defineAs("widgets", "Widget", "Cluster", map[string]string{"v1": anySpec}, "v1")
	r.knownTo(second, "v1", "widgets")
	r.via(second)
	s := r.bundle("shop", nil, ownNamespace)
	r.set([]fleet.Sync{s})
	r.ready(s)
	second.Freeze()
	r.undefineNow("widgets")
	r.defineAs("widgets", "Widget", "Namespaced", map[string]string{"v1": anySpec}, "v1")
	hers := &unstructured.Unstructured{Object: r.custom("v1", "Widget", r.ns+"-own", "hers")}
	r.eventually("there is one in the namespace", func() bool {
		_, err := r.res(r.group()+"/v1", "widgets", r.ns+"-own").Create(context.Background(), hers, metav1.CreateOptions{})
		return err == nil
	})
	r.t.Cleanup(func() {
		_ = r.res("v1", "namespaces", "").Delete(context.Background(), r.ns+"-own", metav1.DeleteOptions{})
	})
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || strings.Contains(x.Message, behindText)
	})
	second.Thaw()
	x := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if ns := r.namespace(r.ns + "-own"); ns == nil || ns.GetDeletionTimestamp() != nil || !strings.Contains(x.Message, " hers") {
		r.t.Errorf("the namespace went with what somebody else has in it: %+v", x)
	}
}

func kindThatHasNoNamespacesAnyMore(r *rig, second *labtest.Second) {
	r.defineAs("things", "Thing", "Namespaced", map[string]string{"v1": anySpec}, "v1")
	r.knownTo(second, "v1", "things")
	second.Freeze()
	r.undefineNow("things")
	r.defineAs("things", "Thing", "Cluster", map[string]string{"v1": anySpec}, "v1")
	r.removedBySecond(second, "things")
}

func kindWithAnotherPlural(r *rig, second *labtest.Second) {
	r.defineAs("things", "Thing", "Cluster", map[string]string{"v1": anySpec}, "v1")
	r.knownTo(second, "v1", "things")
	second.Freeze()
	r.undefineNow("things")
	r.defineAs("thingies", "Thing", "Cluster", map[string]string{"v1": anySpec}, "v1")
	r.removedBySecond(second, "thingies")
}

// behindText is what is said of a definition that the API server does not know as it is now.
const behindText = " is not known as it is now"

// toldOrDone waits until it is said that the API server is behind, or a sync is applied all the same.
func (r *rig) toldOrDone(s fleet.Sync) {
	r.t.Helper()
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Generation == s.Generation && (len(x.Exceptions) > 0 && strings.Contains(x.Exceptions[0].Message, behindText) || x.Phase == fleet.PhaseApplied)
	})
}

// removedBySecond: what the first API server made is removed by way of the second one, which knows the kind as it was.
func (r *rig) removedBySecond(second *labtest.Second, plural string) {
	s := r.bundle("shop", nil, r.ofKind("Thing", "v1", "name: a-$NS", "size: 1"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	r.via(second)
	r.restart()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	there := func() bool { return r.exists(r.group()+"/v1", plural, "", "a-"+r.ns) }
	x := r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, plural+"."+r.group()+behindText)
	})
	if x.Phase == fleet.PhaseRemoved && there() {
		r.t.Fatal("it is said to be removed, and is there")
	}
	second.Thaw()
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if there() {
		r.t.Error("it is said to be removed, and is there")
	}
}

func fieldOfWhatIsLeft(r *rig, second *labtest.Second) {
	r.fieldUnknownTo(second, nil)
	r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, behindText)
	})
	r.keepsNode()
	second.Thaw()
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	r.keepsNode()
}

var leavesNode = &fleet.IgnoreFields{JSONPointers: []string{"/spec/node"}}

func fieldThatIsLeft(r *rig, second *labtest.Second) {
	policies := []fleet.Policy{{IgnoreFields: leavesNode}}
	r.fieldUnknownTo(second, policies)
	next := r.bundle("shop", policies, r.ofKind("Gizmo", "v1", "name: a, namespace: $NS", "size: 2"))
	r.set([]fleet.Sync{next})
	r.toldOrDone(next)
	r.keepsNode()
	second.Thaw()
	r.applied(next)
	r.keepsNode()
}

func fieldThatIsLeftWithoutARecord(r *rig, second *labtest.Second) {
	policies := []fleet.Policy{{IgnoreFields: leavesNode}}
	r.fieldUnknownTo(second, policies)
	r.loseState()
	r.takesGizmo(second, policies)
}

func fieldThatIsLeftOfWhatIsTaken(r *rig, second *labtest.Second) {
	policies := []fleet.Policy{{IgnoreFields: leavesNode, Prune: fleet.PruneNever}}
	r.fieldUnknownTo(second, policies)
	r.stop()
	r.store.files = map[string][]byte{}
	body := `{"metadata":{"labels":{"towline.dev/hub":null,"app.kubernetes.io/managed-by":"Helm"},"annotations":{"towline.dev/owner":null},"managedFields":[{}]}}`
	r.patch(r.group()+"/v1", "gizmos", "a", "helm", body)
	r.start()
	r.takesGizmo(second, []fleet.Policy{{IgnoreFields: leavesNode, Adopt: fleet.AdoptAlways}})
}

// takesGizmo has a module list the object that an operator has set a field of.
func (r *rig) takesGizmo(second *labtest.Second, policies []fleet.Policy) {
	r.t.Helper()
	next := r.bundle("shop", policies, r.ofKind("Gizmo", "v1", "name: a, namespace: $NS", "size: 2"))
	r.set([]fleet.Sync{next})
	r.toldOrDone(next)
	r.keepsNode()
	second.Thaw()
	r.applied(next)
	r.keepsNode()
}

func fieldThatIsLeftOfWhatIsHandedOver(r *rig, second *labtest.Second) {
	policies := []fleet.Policy{{IgnoreFields: leavesNode, Drift: fleet.DriftReport}}
	r.fieldUnknownTo(second, policies)
	r.patch(r.group()+"/v1", "gizmos", "a", "operator", `{"spec":{"size":5}}`)
	r.set([]fleet.Sync{r.bundle("shop", policies, configMap("rest", "k: v")),
		r.bundle("other", policies, r.ofKind("Gizmo", "v1", "name: a, namespace: $NS", "size: 1"))})
	r.wait("other", "told", func(x fleet.SyncStatus) bool {
		return len(x.Exceptions) > 0 && strings.Contains(x.Exceptions[0].Message, behindText) || x.Phase == fleet.PhaseApplied
	})
	r.keepsNode()
	second.Thaw()
	r.wait("other", "applied", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseApplied })
	r.keepsNode()
}

func fieldOfANewObject(r *rig, second *labtest.Second) {
	r.fieldUnknownTo(second, nil)
	next := r.bundle("shop", nil, r.ofKind("Gizmo", "v1", "name: b, namespace: $NS", "size: 2, node: b"))
	r.set([]fleet.Sync{next})
	x := r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (x.Phase == fleet.PhaseFailed || len(x.Exceptions) > 0 && strings.Contains(x.Exceptions[0].Message, behindText))
	})
	if x.Phase == fleet.PhaseFailed {
		r.t.Errorf("it is said to have failed for a field that is defined: %+v", x)
	}
	second.Thaw()
	r.applied(next)
}

// fieldUnknownTo has an operator set a field of a module's object which comes to its definition when the API server stands still that answers the agent.
func (r *rig) fieldUnknownTo(second *labtest.Second, policies []fleet.Policy) {
	r.t.Helper()
	const spec = `{"type":"object","properties":{"size":{"type":"integer"}%s}}`
	r.defineAs("gizmos", "Gizmo", "Namespaced", map[string]string{"v1": fmt.Sprintf(spec, "")}, "v1")
	r.knownTo(second, "v1", "gizmos")
	r.via(second)
	s := r.bundle("shop", policies, r.ofKind("Gizmo", "v1", "name: a, namespace: $NS", "size: 1"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	second.Freeze()
	r.defineAs("gizmos", "Gizmo", "Namespaced", map[string]string{"v1": fmt.Sprintf(spec, `,"node":{"type":"string"}`)}, "v1")
	r.eventually("the first keeps the field", func() bool {
		r.patch(r.group()+"/v1", "gizmos", "a", "operator", `{"spec":{"node":"a"}}`)
		return r.node() == "a"
	})
}

func (r *rig) node() string {
	node, _, _ := unstructured.NestedString(r.get(r.group()+"/v1", "gizmos", "a").Object, "spec", "node")
	return node
}

func (r *rig) keepsNode() {
	r.t.Helper()
	if r.node() != "a" {
		r.t.Error("what an operator had set in a field is lost: the API server did not know the field")
	}
}

// TestNothingIsDeletedByAnOldDefinition: the API server that answers has not heard of the definition of a kind as it is now. What it refuses is no reason
// to make an object again, and nothing is removed by what it knows of the kind.
func TestNothingIsDeletedByAnOldDefinition(t *testing.T) {
	r := newRig(t)
	r.defineAs("gadgets", "Gadget", "Namespaced", map[string]string{"v1": `{"type":"object","properties":{"size":{"type":"integer",
		"x-kubernetes-validations":[{"rule":"self == oldSelf","message":"size is immutable"}]}}}`}, "v1")
	policies := []fleet.Policy{{Match: fleet.PolicyMatch{Kinds: []string{"Gadget"}}, Recreate: fleet.RecreateIfImmutable}}
	s := r.bundle("shop", policies, r.ofKind("Gadget", "v1", "name: a, namespace: $NS", "size: 1"))
	r.set([]fleet.Sync{s})
	r.applied(s)
	uid := r.uidOf(r.group()+"/v1", "gadgets", "a")
	behind := func(q *http.Request) error {
		if q.Method != http.MethodGet || q.URL.Query().Get("resourceVersion") == "" || !strings.HasSuffix(q.URL.Path, "/customresourcedefinitions/gadgets."+r.group()) {
			return nil
		}
		return inPlace{http.StatusGatewayTimeout, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Timeout: Too large resource version: 9, current: 1",` +
			`"reason":"Timeout","details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"Too large resource version"}],"retryAfterSeconds":1},"code":504}`}
	}
	r.count.upset(behind)
	next := r.bundle("shop", policies, r.ofKind("Gadget", "v1", "name: a, namespace: $NS", "size: 2"))
	r.set([]fleet.Sync{next})
	r.toldOrDone(next)
	if now := r.uidOf(r.group()+"/v1", "gadgets", "a"); now != uid {
		t.Fatal("the object was deleted and made again")
	}
	r.count.upset(nil)
	r.applied(next)
	uid = r.uidOf(r.group()+"/v1", "gadgets", "a")
	r.count.upset(behind)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "told", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || len(x.Extras) == 1 && strings.Contains(x.Extras[0].Message, behindText)
	})
	if now := r.uidOf(r.group()+"/v1", "gadgets", "a"); now != uid {
		t.Fatal("the object was deleted and made again")
	}
	r.count.upset(nil)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.exists(r.group()+"/v1", "gadgets", r.ns, "a") {
		t.Error("it is said to be removed, and is there")
	}
}
