package wire

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestFieldsAreRead(t *testing.T) {
	object := map[string]any{"apiVersion": "v1", "data": map[string]any{"host": "h", "app.properties": "x=1", "empty": "", "pw": base64.StdEncoding.EncodeToString([]byte("s3cret")), "raw": "/w=="},
		"spec": map[string]any{"replicas": int64(3), "ratio": 0.5, "on": true, "nothing": nil, "ports": []any{map[string]any{"name": "http", "port": int64(80)}, map[string]any{"name": "tls", "port": int64(443)}}}}
	for _, tc := range []struct{ kind, path, want, says string }{
		{"ConfigMap", "data.host", "h", ""}, {"ConfigMap", ".data.host", "h", ""}, {"ConfigMap", "{.data.host}", "h", ""}, {"ConfigMap", "{data.host}", "h", ""},
		{"ConfigMap", "data.app.properties", "x=1", ""}, {"ConfigMap", `data['app\.properties']`, "x=1", ""}, {"ConfigMap", "data.empty", "", ""},
		{"Service", "spec.replicas", "3", ""}, {"Service", "spec.ratio", "0.5", ""}, {"Service", "spec.on", "true", ""},
		{"Service", "spec.ports[1].port", "443", ""}, {"Service", `spec.ports[?(@.name=="http")].port`, "80", ""},
		{"Secret", "data.pw", "s3cret", ""}, {"Secret", "{.data.pw}", "s3cret", ""}, {"Secret", "data['pw']", "s3cret", ""},
		{"ConfigMap", "data.none", "", "is not there"}, {"Service", "spec.nothing", "", "is not there"}, {"Service", "spec.ports[7].port", "", "is not there"}, {"Service", "status.x.y", "", "is not there"},
		{"Service", "spec.ports[*].port", "", "leads to 2 values"}, {"Service", "spec.ports", "", "is a list"}, {"Service", "spec.ports[0]", "", "is a map"}, {"Service", "spec", "", "is a map"},
		{"Secret", "data.host", "", "is not base64"}, {"Secret", "data.raw", "", "is no text"},
	} {
		p, err := ParseFieldPath(fleet.ObjectField{Version: "v1", Kind: tc.kind}, tc.path)
		if err != nil {
			t.Errorf("%s: %v", tc.path, err)
			continue
		}
		got, err := p.Read(object)
		if got != tc.want || (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s of a %s is %q, %v; want %q, %q", tc.path, tc.kind, got, err, tc.want, tc.says)
		}
		if absent := errors.Is(err, fleet.ErrNotFound); absent != (tc.says == "is not there") {
			t.Errorf("%s: absent is %v", tc.path, absent)
		}
	}
	for _, path := range []string{"", "{}", ".", "{.a}{.b}", "a}", "{range .items[*]}{.x}{end}", "spec.ports[", strings.Repeat("a", 1025)} {
		if _, err := ParseFieldPath(fleet.ObjectField{Version: "v1", Kind: "Service"}, path); err == nil {
			t.Errorf("path %.20q is taken", path)
		}
	}
}

// TestObjectBindingsAreChecked: what could be read in no cluster is refused where it is written, with the path of the field.
func TestObjectBindingsAreChecked(t *testing.T) {
	object := func(apiVersion, kind, namespace, name, path string) *towlinev1.Binding {
		return &towlinev1.Binding{Name: "A", Object: &towlinev1.BindingObject{ApiVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name, FieldPath: path}}
	}
	text := "${A}"
	for says, in := range map[string][]*towlinev1.Binding{
		"[0].object.apiVersion: is required":                  {object("", "Service", "", "web", "spec.x")},
		"[0].object.apiVersion: \"a/b/c\" is no group":        {object("a/b/c", "Service", "", "web", "spec.x")},
		"[0].object.kind: is required":                        {object("v1", "", "", "web", "spec.x")},
		"[0].object.name: is required":                        {object("v1", "Service", "", "", "spec.x")},
		"[0].object.fieldPath: is required":                   {object("v1", "Service", "", "web", "")},
		"[0].object.fieldPath: A: \"spec.x[\" is no JSONPath": {object("v1", "Service", "", "web", "spec.x[")},
		"[0].object.namespace: Node has no namespaces":        {object("v1", "Node", "shop", "web", "spec.x")},
		"namespace towline-system belongs to the agent":       {object("v1", "Secret", "towline-system", "web", "data.x")},
		"A: set exactly one of":                               {{Name: "A", ClusterLabel: "x", Object: &towlinev1.BindingObject{}}},
		"A refers to itself: A → A":                           {object("v1", "Service", "", "web-${A}", "spec.x")},
		"its default refers to a binding that only the agent": {object("v1", "Service", "", "web", "spec.x"), {Name: "B", ClusterLabel: "b", Default: &text}},
	} {
		if _, err := bindings(in, "shop"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v, want one that says %q", err, says)
		}
	}
	got, err := bindings([]*towlinev1.Binding{object("v1", "Service", "", "web", "spec.clusterIP")}, "shop")
	if err != nil || got[0].Object.Namespace != "shop" {
		t.Fatalf("%v: %+v", err, got)
	}
	m := &Module{Bindings: got}
	set := fleet.PolicySet{Bindings: m.Late()}
	content, err := PolicySetContent(set)
	if err != nil {
		t.Fatal(err)
	}
	back, err := PolicySetFromContent(content)
	if err != nil || len(back.Bindings) != 1 || *back.Bindings[0].Object != *got[0].Object || len(Needs(back)) != 1 || Needs(back)[0] != FeatureObjectBindings {
		t.Errorf("%v: %+v", err, back)
	}
}

// TestFieldPathsThatMultiply: a path that finds the same fields again and again is refused, before an object is searched by it.
func TestFieldPathsThatMultiply(t *testing.T) {
	of := fleet.ObjectField{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
	for _, path := range []string{"spec" + strings.Repeat("..a", 20), "{.spec..a..b}", "spec" + strings.Repeat("['a','a','a']", 20), "spec[?(@..a)]..b", "spec.x[*]" + strings.Repeat("['a','a']", 4)} {
		if _, err := ParseFieldPath(of, path); err == nil || !strings.Contains(err.Error(), "again and again") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"status..ip", `{.spec.ports[?(@.name=="a,b")].port}`, "spec.rules[0,1].host", "metadata.annotations['a.b/c']"} {
		if _, err := ParseFieldPath(of, path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
