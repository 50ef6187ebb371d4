package worker

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"towline.dev/towline/pkg/fleet"
)

// converter is a webhook that converts objects of a kind: what v1 has as spec.a is spec.b in v2, the version that is stored.
type converter struct {
	down atomic.Bool // it answers nobody
}

func (c *converter) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if c.down.Load() {
		http.Error(w, "the webhook is down", http.StatusServiceUnavailable)
		return
	}
	var review struct {
		Request struct {
			UID     string           `json:"uid"`
			Desired string           `json:"desiredAPIVersion"`
			Objects []map[string]any `json:"objects"`
		} `json:"request"`
	}
	if err := json.NewDecoder(q.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for _, obj := range review.Request.Objects {
		obj["apiVersion"] = review.Request.Desired
		from, to := "a", "b"
		if strings.HasSuffix(review.Request.Desired, "/v1") {
			from, to = to, from
		}
		spec, _ := obj["spec"].(map[string]any)
		if v, ok := spec[from]; ok {
			delete(spec, from)
			spec[to] = v
		}
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": map[string]any{
		"uid": review.Request.UID, "result": map[string]any{"status": "Success"}, "convertedObjects": review.Request.Objects}})
}

// converted defines the kind Thing, with a webhook that converts its objects.
func (r *rig) converted() *converter {
	r.t.Helper()
	c := &converter{}
	server := httptest.NewTLSServer(c)
	r.t.Cleanup(server.Close)
	field := func(version, name string, storage bool) map[string]any {
		return map[string]any{"name": version, "served": true, "storage": storage, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object",
			"properties": map[string]any{"spec": map[string]any{"type": "object", "properties": map[string]any{
				name: map[string]any{"type": "string"}, "more": map[string]any{"type": "string"}}}}}}}
	}
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	r.create("apiextensions.k8s.io/v1", "customresourcedefinitions", "", map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": "things." + r.group()},
		"spec": map[string]any{"group": r.group(), "scope": "Namespaced", "names": map[string]any{"kind": "Thing", "plural": "things"},
			"versions": []any{field("v1", "a", false), field("v2", "b", true)},
			"conversion": map[string]any{"strategy": "Webhook", "webhook": map[string]any{"conversionReviewVersions": []any{"v1"},
				"clientConfig": map[string]any{"url": server.URL, "caBundle": ca}}}}})
	r.t.Cleanup(func() { r.undefine("things") })
	r.eventually("the kind is served", func() bool { return r.lists("v1", "things") && r.lists("v2", "things") })
	return c
}

// thing is a manifest of the kind in a version.
func (r *rig) thing(version, name, spec string) string {
	return "apiVersion: $NS.example.com/" + version + "\nkind: Thing\nmetadata: {name: " + name + ", namespace: $NS}\nspec: {" + spec + "}\n"
}

// field is a field of a thing as a version has it; empty: it has none, or is not there.
func (r *rig) field(version, name, field string) string {
	u := r.get(r.group()+"/"+version, "things", name)
	if u == nil {
		return ""
	}
	v, _, _ := unstructured.NestedString(u.Object, "spec", field)
	return v
}

// An object whose kind has versions that a webhook converts is one object, in whichever version a module lists it: what somebody changes in the
// other one is put back, a module may go on to the newer one, and what it lists no more then goes.
func TestConvertedObject(t *testing.T) {
	r := newRig(t)
	r.converted()
	s := r.bundle("shop", nil, r.thing("v1", "x", "a: one, more: much"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	uid := r.get(r.group()+"/v2", "things", "x").GetUID()
	if got := r.field("v2", "x", "b"); got != "one" {
		t.Fatalf("it is stored with b = %q", got)
	}
	r.patch(r.group()+"/v2", "things", "x", "somebody", `{"spec":{"b":"two"}}`)
	r.eventually("what is changed in the other version is put back", func() bool { return r.field("v1", "x", "a") == "one" })

	next := r.bundle("shop", nil, r.thing("v2", "x", "b: three, more: much"))
	r.set([]fleet.Sync{next})
	r.ready(next)
	if got := r.field("v1", "x", "a"); got != "three" {
		t.Errorf("listed in the newer version a = %q", got)
	}
	r.patch(r.group()+"/v1", "things", "x", "somebody", `{"spec":{"a":"four"}}`)
	r.eventually("what is changed in the older version is put back", func() bool { return r.field("v2", "x", "b") == "three" })

	last := r.bundle("shop", nil, r.thing("v2", "x", "b: three"))
	r.set([]fleet.Sync{last})
	r.ready(last)
	if u := r.get(r.group()+"/v2", "things", "x"); u == nil || u.GetUID() != uid {
		t.Error("it was made anew")
	}
	if got := r.field("v1", "x", "more"); got != "" {
		t.Errorf("a field that is not listed any more stays: %q", got)
	}
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get(r.group()+"/v2", "things", "x") != nil {
		t.Error("it is there when the module is called removed")
	}
}

// While the webhook is away nobody can read in one version what is stored in another. What is not seen is not called fine, nothing is called
// removed, and when it is back all goes on.
func TestConvertedObjectWhoseWebhookIsAway(t *testing.T) {
	r := newRig(t)
	c := r.converted()
	s := r.bundle("shop", nil, r.thing("v1", "x", "a: one"), configMap("q", "k: v"))
	r.set([]fleet.Sync{s})
	r.ready(s)
	c.down.Store(true)
	r.stop()
	r.patch(r.group()+"/v2", "things", "x", "somebody", `{"spec":{"b":"two"}}`)
	r.start()
	next := r.bundle("shop", nil, r.thing("v1", "x", "a: one"), configMap("q", "k: w"))
	r.set([]fleet.Sync{next})
	r.wait("shop", "said what cannot be read", func(x fleet.SyncStatus) bool {
		return x.Generation == next.Generation && !x.Ready && strings.Contains(x.Message, "webhook")
	})
	c.down.Store(false)
	r.ready(next)
	r.eventually("it is as it is listed", func() bool { return r.field("v2", "x", "b") == "one" })
	c.down.Store(true)
	r.set(nil, r.tombstone("shop", fleet.DeleteDelete))
	r.wait("shop", "removed, or waiting", func(x fleet.SyncStatus) bool {
		return x.Phase == fleet.PhaseRemoved || x.Phase == fleet.PhaseRemoving && len(x.Extras) > 0 && strings.Contains(x.Message+x.Extras[0].Message, "webhook")
	})
	c.down.Store(false)
	r.wait("shop", "removed", func(x fleet.SyncStatus) bool { return x.Phase == fleet.PhaseRemoved })
	if r.get(r.group()+"/v2", "things", "x") != nil {
		t.Error("it is there when the module is called removed")
	}
}
