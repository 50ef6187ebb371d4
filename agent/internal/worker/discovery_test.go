package worker

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"towline.dev/towline/agent/internal/apply"
	"towline.dev/towline/pkg/fleet"
)

// versions of a kind, the stored one last; one that begins with ! is not served.
func (r *rig) define(plural, kind string, versions ...string) {
	r.t.Helper()
	var list []any
	for i, v := range versions {
		name, unserved := strings.CutPrefix(v, "!")
		list = append(list, map[string]any{"name": name, "served": !unserved, "storage": i == len(versions)-1,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
	}
	r.create("apiextensions.k8s.io/v1", "customresourcedefinitions", "", map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + "." + r.group()},
		"spec": map[string]any{"group": r.group(), "scope": "Namespaced", "versions": list,
			"names": map[string]any{"plural": plural, "kind": kind}}})
	r.t.Cleanup(func() { r.undefine(plural) })
	for _, v := range versions {
		if !strings.HasPrefix(v, "!") {
			r.eventually(kind+" is served in "+v, func() bool { return r.lists(v, plural) })
		}
	}
}

func (r *rig) group() string { return r.ns + ".example.com" }

func (r *rig) lists(version, plural string) bool {
	_, err := r.res(r.group()+"/"+version, plural, r.ns).List(context.Background(), metav1.ListOptions{})
	return err == nil
}

func (r *rig) undefine(plural string) {
	_ = r.client.Resource(gvr("apiextensions.k8s.io/v1", "customresourcedefinitions")).Delete(context.Background(), plural+"."+r.group(), metav1.DeleteOptions{})
}

// grouped reports that the API server lists a version with its group. It does so for a moment longer than it answers for it.
func (r *rig) grouped(group, version string) bool {
	r.t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(labConfig(r.t))
	if err != nil {
		r.t.Fatal(err)
	}
	var is metav1.APIGroup
	err = client.RESTClient().Get().AbsPath("/apis/" + group).Do(context.Background()).Into(&is)
	if err != nil && !apierrors.IsNotFound(err) {
		r.t.Fatal(err)
	}
	return slices.ContainsFunc(is.Versions, func(v metav1.GroupVersionForDiscovery) bool { return v.Version == version })
}

// unserve ends the first version of a kind.
func (r *rig) unserve(plural, version string) {
	r.t.Helper()
	_, err := r.client.Resource(gvr("apiextensions.k8s.io/v1", "customresourcedefinitions")).Patch(context.Background(), plural+"."+r.group(),
		types.JSONPatchType, []byte(`[{"op":"replace","path":"/spec/versions/0/served","value":false}]`), metav1.PatchOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.eventually(version+" is not served any more", func() bool { return !r.lists(version, plural) && !r.grouped(r.group(), version) })
}

// custom is an object of the rig's own group.
func (r *rig) custom(version, kind, namespace, name string) map[string]any {
	return map[string]any{"apiVersion": r.group() + "/" + version, "kind": kind, "metadata": map[string]any{"name": name, "namespace": namespace}}
}

func (r *rig) exists(apiVersion, resource, namespace, name string) bool {
	r.t.Helper()
	_, err := r.res(apiVersion, resource, namespace).Get(context.Background(), name, metav1.GetOptions{})
	return err == nil
}

// answers puts f before the API server; what it returns nil for goes on to it.
func (r *rig) answers(f func(*http.Request) *http.Response) {
	r.config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(q *http.Request) (*http.Response, error) {
			if a := f(q); a != nil {
				return a, nil
			}
			return next.RoundTrip(q)
		})
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

func answer(q *http.Request, code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: q, Body: io.NopCloser(strings.NewReader(body))}
}

func unavailable(q *http.Request) *http.Response {
	return answer(q, http.StatusServiceUnavailable, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"ServiceUnavailable","code":503,
			"message":"the server is currently unable to handle the request"}`)
}

const ownNamespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: $NS-own}\n"

// TestNamespaceWithKindOfAnotherVersion: what is foreign counts in whichever version of its group it is served.
func TestNamespaceWithKindOfAnotherVersion(t *testing.T) {
	r := newRig(t)
	r.define("widgets", "Widget", "v1")
	r.define("alerts", "Alert", "v1alpha1")
	s := r.bundle("shop", nil, ownNamespace, configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.create(r.group()+"/v1alpha1", "alerts", r.ns+"-own", r.custom("v1alpha1", "Alert", r.ns+"-own", "theirs"))
	next := r.bundle("shop", nil, configMap("x", "k: v"))
	r.set([]fleet.Sync{next})
	status := r.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (len(x.Extras) == 1 && x.Extras[0].Reason == "NamespaceNotEmpty" || !r.namespaces(r.ns+"-own"))
	})
	if len(status.Extras) != 1 || !strings.Contains(status.Extras[0].Message, "Alert theirs") {
		t.Errorf("extras %+v", status.Extras)
	}
	if !r.exists(r.group()+"/v1alpha1", "alerts", r.ns+"-own", "theirs") {
		t.Error("a foreign object was deleted with the namespace")
	}
}

func TestLostInventoryFindsKindOfAnotherVersion(t *testing.T) {
	r := newRig(t)
	r.define("widgets", "Widget", "v1")
	r.define("alerts", "Alert", "v1alpha1")
	s := r.bundle("shop", nil, "apiVersion: $NS.example.com/v1alpha1\nkind: Alert\nmetadata: {name: ours, namespace: $NS}\n", configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.store.mu.Lock()
	r.store.files = map[string][]byte{}
	r.store.mu.Unlock()
	r.start()
	next := r.bundle("shop", nil, configMap("x", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "waiting for a confirm", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && x.Waiting() == 1 && strings.Contains(x.Held()[0], "Alert")
	})
}

// TestVersionNotServedAnyMore: an identity has no version, so another one of the kind serves to delete its objects.
func TestVersionNotServedAnyMore(t *testing.T) {
	for _, restart := range []bool{true, false} {
		t.Run(fmt.Sprintf("restart %t", restart), func(t *testing.T) {
			r := newRig(t)
			r.define("things", "Thing", "v1alpha1", "v1")
			thing := "apiVersion: $NS.example.com/v1alpha1\nkind: Thing\nmetadata: {name: g, namespace: $NS}\nspec: {size: 1}\n"
			s := r.bundle("shop", nil, thing, configMap("x", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			if restart {
				r.stop()
			}
			r.unserve("things", "v1alpha1")
			if restart {
				r.start()
			}
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
			if r.exists(r.group()+"/v1", "things", r.ns, "g") {
				t.Error("the module is called removed, and its object is left")
			}
		})
	}
}

// TestKindThatIsGone: the objects of a kind go with its definition, which only a cluster that answers can say.
func TestKindThatIsGone(t *testing.T) {
	r := newRig(t)
	r.define("things", "Thing", "v1")
	r.define("others", "Other", "v2")
	s := r.bundle("shop", nil, "apiVersion: $NS.example.com/v1\nkind: Thing\nmetadata: {name: g, namespace: $NS}\n", configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	var down atomic.Bool
	down.Store(true)
	r.answers(func(q *http.Request) *http.Response {
		if down.Load() && strings.HasPrefix(q.URL.Path, "/apis/"+r.group()) {
			return unavailable(q)
		}
		return nil
	})
	r.start()
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removing without an answer", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoving && slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool {
			return e.ID.Kind == "Thing" && strings.Contains(e.Message, r.group()) && strings.Contains(e.Message, "unable to handle the request")
		})
	})
	if !r.exists(r.group()+"/v1", "things", r.ns, "g") {
		t.Error("deleted without a look")
	}
	r.stop()
	r.undefine("things")
	r.eventually("the kind is gone", func() bool { return !r.lists("v1", "things") })
	down.Store(false)
	r.start()
	r.m.Set(r.current, nil)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
}

// TestKindThatIsServedInNoVersion: its objects are there, though nobody can see them. The server lists the version with
// its group for a moment longer than it answers for it, and what is said then does not stay.
func TestKindThatIsServedInNoVersion(t *testing.T) {
	r := newRig(t)
	r.define("things", "Thing", "v1")
	s := r.bundle("shop", nil, "apiVersion: $NS.example.com/v1\nkind: Thing\nmetadata: {name: g, namespace: $NS}\n", configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.stop()
	r.unserve("things", "v1")
	var listed atomic.Bool
	listed.Store(true)
	r.answers(func(q *http.Request) *http.Response {
		if listed.Load() && q.URL.Path == "/apis/"+r.group() {
			return answer(q, http.StatusOK, fmt.Sprintf(`{"kind":"APIGroup","apiVersion":"v1","name":%q,"versions":[{"groupVersion":%q,"version":"v1"}]}`,
				r.group(), r.group()+"/v1"))
		}
		return nil
	})
	r.start()
	next := r.bundle("shop", nil, configMap("x", "k: v"))
	r.set([]fleet.Sync{next})
	said := func(message string) {
		r.wait("shop", "says "+message, func(x fleet.SyncStatus) bool {
			return x.Generation == next.Generation && x.Ready && len(x.Extras) == 1 && x.Extras[0].Reason == "UnknownKind" &&
				strings.Contains(x.Extras[0].Message, message)
		})
	}
	said("discovery of " + r.group() + "/v1")
	listed.Store(false)
	said("serves no version")
}

// TestDefinitionThatServesNoVersion: foreign objects of the kind cannot be seen and would go with it.
func TestDefinitionThatServesNoVersion(t *testing.T) {
	r := newRig(t)
	s := r.bundle("shop", nil, crd, configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.eventually("the kind is served", func() bool { return r.lists("v1", "gadgets") })
	r.create(r.group()+"/v1", "gadgets", r.ns, r.custom("v1", "Gadget", r.ns, "theirs"))
	r.stop()
	r.unserve("gadgets", "v1")
	r.t.Cleanup(func() { r.undefine("gadgets") })
	r.start()
	next := r.bundle("shop", nil, configMap("x", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready })
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	status := r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if !r.crdExists() || !strings.Contains(status.Message, "serves no version") {
		t.Errorf("the definition is there: %t; %s", r.crdExists(), status.Message)
	}
}

// register has the API server ask a service that is not there for a group of its own.
func (r *rig) register() { r.t.Helper(); r.registerGroup("broken-" + r.group()) }

func (r *rig) registerGroup(group string) {
	r.t.Helper()
	name := "v1." + group
	services := r.client.Resource(gvr("apiregistration.k8s.io/v1", "apiservices"))
	_, err := services.Create(context.Background(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"group": group, "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": r.ns, "name": "nobody"}}}}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.unregister(group) })
	r.eventually("the group is registered", func() bool {
		u, err := services.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		return len(conditions) > 0
	})
}

func (r *rig) unregister(group string) {
	r.t.Helper()
	_ = r.client.Resource(gvr("apiregistration.k8s.io/v1", "apiservices")).Delete(context.Background(), "v1."+group, metav1.DeleteOptions{})
	r.eventually("the group is not listed any more", func() bool { return !r.grouped(group, "v1") })
}

// TestNamespaceThatCannotBeJudged: an API group that is down may hold foreign objects, and the status says which it is
// and what mends it.
func TestNamespaceThatCannotBeJudged(t *testing.T) {
	r := aloneRig(t)
	s := r.bundle("shop", nil, ownNamespace, configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	r.register()
	next := r.bundle("shop", nil, configMap("x", "k: v"))
	r.set([]fleet.Sync{next})
	status := r.wait("shop", "looked at", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && (len(x.Extras) == 1 && x.Extras[0].Reason == "APIUnavailable" || !r.namespaces(r.ns+"-own"))
	})
	for _, want := range []string{"API group broken-" + r.group() + "/v1", "service " + r.ns + "/nobody", "delete APIService v1.broken-" + r.group()} {
		if !strings.Contains(status.Message, want) || !strings.Contains(status.Extras[0].Message, want) {
			t.Errorf("no %q in %q", want, status.Message)
		}
	}
	if status.Reason != "APIUnavailable" {
		t.Errorf("reason %s", status.Reason)
	}
	r.unregister("broken-" + r.group())
	r.m.Set(r.current, nil) // it is looked at again at once
	r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Ready && len(x.Extras) == 0 })
}

// TestNamespaceWithoutMetrics: what an API group shows that only measures keeps no namespace, so the group may be down. That
// Kubernetes itself waits for it is said, and ends when it is back.
func TestNamespaceWithoutMetrics(t *testing.T) {
	r := aloneRig(t) // no namespace of another test would go meanwhile
	s := r.bundle("shop", nil, ownNamespace, configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	group := r.ns + ".metrics.k8s.io"
	r.registerGroup(group)
	next := r.bundle("shop", nil, configMap("x", "k: v"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "terminating, with the reason", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && len(x.Extras) == 1 && x.Extras[0].Reason == "Terminating" && strings.Contains(x.Extras[0].Message, group)
	})
	r.unregister(group)
	r.wait("shop", "pruned", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Ready && len(x.Extras) == 0 })
}

// TestKindOfAnAPIServerThatIsGone: the objects of a kind that an API server of its own has do not go with its registration, also
// where the agent has lost its records of them and found them by their marks.
func TestKindOfAnAPIServerThatIsGone(t *testing.T) {
	for name, lost := range map[string]bool{"known": false, "found": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.stop()
			r.answers(func(q *http.Request) *http.Response {
				if q.URL.Path != "/apis/apiregistration.k8s.io/v1/apiservices/v1."+r.group() {
					return nil
				}
				return answer(q, http.StatusOK, `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","metadata":{"name":"v1.`+r.group()+
					`","uid":"u"},"spec":{"service":{"namespace":"things","name":"server"}}}`)
			})
			r.start()
			r.define("things", "Thing", "v1")
			s := r.bundle("shop", nil, "apiVersion: $NS.example.com/v1\nkind: Thing\nmetadata: {name: g, namespace: $NS}\n", configMap("x", "k: v"))
			r.set([]fleet.Sync{s})
			r.ready(s)
			if lost {
				r.loseState()
				next := r.bundle("shop", nil, configMap("x", "k: v"))
				r.set([]fleet.Sync{next})
				r.wait("shop", "asking", func(x fleet.SyncStatus) bool { return x.Generation == next.Generation && x.Waiting() == 1 })
			}
			r.stop()
			r.undefine("things")
			r.eventually("the kind is gone", func() bool { return !r.lists("v1", "things") })
			r.start()
			r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
			x := r.wait("shop", "removed, or waiting for the API server", func(x fleet.SyncStatus) bool {
				return x.Phase == fleet.PhaseRemoved || x.Phase == fleet.PhaseRemoving && slices.ContainsFunc(x.Extras, func(e fleet.ExtraObject) bool {
					return e.ID.Kind == "Thing" && (e.Reason == "UnknownKind" || lost && e.Reason == "Unsettled") &&
						strings.Contains(e.Message, "(APIService v1."+r.group())
				})
			})
			if x.Phase == fleet.PhaseRemoved {
				t.Error("the module is called removed, and its object may be there still")
			}
			r.set(nil, r.tombstone("shop", fleet.DeleteOrphan))
			r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
		})
	}
}

// TestTerminatingNamespaceSaysWhy: what Kubernetes knows of a namespace that does not go is shown.
func TestTerminatingNamespaceSaysWhy(t *testing.T) {
	r := aloneRig(t) // where kinds come and go beside it, Kubernetes itself says nothing of a namespace for minutes
	s := r.bundle("shop", nil, ownNamespace, configMap("x", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	stuck := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "stuck", "namespace": r.ns + "-own",
		"finalizers": []any{"example.com/wait"}}}
	r.create("v1", "configmaps", r.ns+"-own", stuck)
	defer func() {
		_, _ = r.res("v1", "configmaps", r.ns+"-own").Patch(context.Background(), "stuck", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	}()
	if err := r.client.Resource(gvr("v1", "namespaces")).Delete(context.Background(), r.ns+"-own", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.eventually("Kubernetes knows what holds the namespace", func() bool {
		u, err := r.res("v1", "namespaces", "").Get(context.Background(), r.ns+"-own", metav1.GetOptions{})
		return err == nil && strings.Contains(apply.NamespaceTrouble(u.Object), "NamespaceFinalizersRemaining")
	})
	r.wait("shop", "told why", func(x fleet.SyncStatus) bool {
		return len(x.Extras) == 1 && x.Extras[0].Reason == "Terminating" &&
			strings.Contains(x.Extras[0].Message, "NamespaceFinalizersRemaining") && strings.Contains(x.Extras[0].Message, "example.com/wait")
	})
}
