package truth

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/test/lab"
)

// home is the namespace of all objects; the test makes it.
const home = "truth"

// custom is the version of the kinds that the test defines.
const custom = "truth.example.com/v1"

// id is an object of the pool.
type id struct{ kind, name string }

func (x id) String() string { return x.kind + " " + x.name }

// set is what a module lists: the value of each object.
type set map[id]string

func sorted(s set) []id {
	return slices.SortedFunc(maps.Keys(s), func(a, b id) int { return strings.Compare(a.String(), b.String()) })
}

// shape is how the objects of a kind are made.
type shape struct {
	apiVersion string
	cluster    bool                  // without a namespace
	spec       func(v string) string // beside metadata, in YAML
	edit       func(v string) string // what somebody else changes of ours, as a merge patch
}

func number(v string) int {
	n := 0
	for _, c := range v {
		n = n*7 + int(c)
	}
	return n%1000 + 1
}

var shapes = map[string]shape{
	"ConfigMap": {"v1", false,
		func(v string) string {
			if number(v)%2 == 0 {
				return fmt.Sprintf("data: {value: %q, even: %q}", v, v)
			}
			return fmt.Sprintf("data: {value: %q}", v)
		},
		func(v string) string { return fmt.Sprintf(`{"data":{"value":%q}}`, v) }},
	"Secret": {"v1", false,
		func(v string) string {
			if number(v)%2 == 0 {
				return fmt.Sprintf("stringData: {value: %q, even: %q}", v, v)
			}
			return fmt.Sprintf("stringData: {value: %q}", v)
		},
		func(v string) string { return fmt.Sprintf(`{"stringData":{"value":%q}}`, v) }},
	"Service": {"v1", false,
		func(v string) string {
			return fmt.Sprintf("spec: {selector: {app: %q}, ports: [{name: http, port: %d}]}", v, number(v))
		},
		func(v string) string { return fmt.Sprintf(`{"spec":{"selector":{"app":%q}}}`, v) }},
	"Deployment": {"apps/v1", false,
		func(v string) string {
			return fmt.Sprintf("spec: {replicas: 1, selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, "+
				"spec: {containers: [{name: main, image: %q}]}}}", "example.com/a:"+v)
		},
		func(v string) string { return fmt.Sprintf(`{"spec":{"replicas":%d}}`, 2+number(v)%3) }},
	"NetworkPolicy": {"networking.k8s.io/v1", false,
		func(v string) string {
			return fmt.Sprintf("spec: {podSelector: {}, policyTypes: [Ingress], ingress: [{ports: [{port: %d}]}]}", number(v))
		},
		func(v string) string { return fmt.Sprintf(`{"spec":{"podSelector":{"matchLabels":{"app":%q}}}}`, v) }},
	"Widget": {custom, false,
		func(v string) string { return fmt.Sprintf("spec: {size: %d}", number(v)) },
		func(v string) string { return fmt.Sprintf(`{"spec":{"size":%d}}`, number(v)+2000) }},
	"Gadget": {custom, true,
		func(v string) string { return fmt.Sprintf("spec: {size: %d}", number(v)) },
		func(v string) string { return fmt.Sprintf(`{"spec":{"size":%d}}`, number(v)+2000) }},
}

var kinds = slices.Sorted(maps.Keys(shapes))

// manifest is an object as a module lists it.
func (x id) manifest(value string) string {
	s := shapes[x.kind]
	return fmt.Sprintf("---\napiVersion: %s\nkind: %s\nmetadata: {name: %s}\n%s\n", s.apiVersion, x.kind, x.name, s.spec(value))
}

// wanted is the object as it is to be in a cluster.
func (x id) wanted(value string) *unstructured.Unstructured {
	return x.parsed(shapes[x.kind].spec(value))
}

// parsed is the object with what stands beside its metadata in YAML.
func (x id) parsed(spec string) *unstructured.Unstructured {
	out := parse(fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\n%s\n", shapes[x.kind].apiVersion, x.kind, x.name, spec))
	if !shapes[x.kind].cluster {
		out.SetNamespace(home)
	}
	return out
}

func (w *world) live(c *lab.Cluster, x id) (*unstructured.Unstructured, error) {
	return c.Get(w.T.Context(), shapes[x.kind].apiVersion, x.kind, home, x.name)
}

// module is what was put last.
type module struct {
	objects set
	ring    string // its placement; empty: every cluster
	policy  string // one of policies, for all of its objects
	// since are the versions put since the last quiet point, and the one before them.
	since []version
}

// policies that modules have.
var policies = map[string]map[string]string{"": {}, "reports": {"drift": "Report"}, "keeps": {"prune": "Never"}}

// version is one put of a module; nil objects are a delete.
type version struct {
	objects set
	ring    string
}

func (m *module) text(name string) string {
	var files strings.Builder
	for _, x := range sorted(m.objects) {
		files.WriteString(x.manifest(m.objects[x]))
	}
	selector := map[string]any{}
	if m.ring != "" {
		selector["matchLabels"] = map[string]any{"ring": m.ring}
	}
	data, err := json.Marshal(map[string]any{"apiVersion": "towline.dev/v1", "kind": "Module", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"namespace": home, "source": map[string]any{"inline": map[string]any{"files": map[string]any{"a.yaml": files.String()}}},
			"policies": []any{policies[m.policy]}, "placement": map[string]any{"selector": selector}}})
	if err != nil {
		panic(err)
	}
	return string(data)
}

// prepare makes the namespace and the custom kinds, as somebody else.
func (w *world) prepare(ctx context.Context, c *lab.Cluster) {
	w.Must(c.Create(ctx, parse(`{apiVersion: v1, kind: Namespace, metadata: {name: truth}}`)))
	for _, kind := range []string{"Widget", "Gadget"} {
		w.Must(c.Create(ctx, definition(kind)))
	}
	w.Must(lab.Poll(ctx, func() error {
		for _, kind := range []string{"Widget", "Gadget"} {
			resource, err := c.Resource(custom, kind, home)
			if err != nil {
				return err
			}
			if _, err := resource.List(ctx, listAll); err != nil {
				return err
			}
		}
		return nil
	}))
}

// definition is that of a custom kind.
func definition(kind string) *unstructured.Unstructured {
	scope := "Namespaced"
	if shapes[kind].cluster {
		scope = "Cluster"
	}
	return parse(fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[1]ss.truth.example.com}
spec:
  group: truth.example.com
  names: {plural: %[1]ss, kind: %[2]s, listKind: %[2]sList}
  scope: %[3]s
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer}}}, status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}
`, strings.ToLower(kind), kind, scope))
}

func parse(text string) *unstructured.Unstructured {
	out := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &out.Object); err != nil {
		panic(err)
	}
	return out
}
