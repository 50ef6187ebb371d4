package render

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/manifest"
)

// texter is an engine that returns one text after the other.
type texter struct {
	calls atomic.Int32
	texts []map[string][]byte
	errs  []error
}

// Build implements Engine.
func (b *texter) Build(context.Context, Job) (Built, error) {
	n := int(b.calls.Add(1) - 1)
	return Built{Texts: b.texts[n%len(b.texts)]}, b.errs[n%len(b.errs)]
}

func texts(text string) map[string][]byte { return map[string][]byte{"built": []byte(text)} }

const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\nstringData: {user: admin, password: %s}\n"

// TestBuiltTwice: what is not the same both times is an error that says where, and no value.
func TestBuiltTwice(t *testing.T) {
	one, two := fmt.Sprintf(secret, "canary1"), fmt.Sprintf(secret, "canary2")
	other := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n"
	for name, tt := range map[string]struct{ first, second, want string }{
		"same":        {one, one, ""},
		"other bytes": {one, "# a comment\n" + one, ""},
		"other order": {one + other, other + "---\n" + one, ""},
		"value":       {one, two, "package: built:1: Secret shop/db is another each time it is rendered, at /stringData/password: "},
		"one more":    {one, one + other, "ConfigMap shop/more is there one time it is rendered, and not the next"},
		"one less":    {one + other, one, "ConfigMap shop/more is there one time"},
		"none":        {"", "", "package: renders to no objects; set allowEmpty"},
		"no YAML":     {"a: [", "a: [", "built:1: is not YAML"},
	} {
		e := &texter{texts: []map[string][]byte{texts(tt.first), texts(tt.second)}, errs: []error{nil}}
		objects, _, err := Render(t.Context(), e, nil, Package{Kustomize: &Kustomize{}}, Options{Options: manifest.Options{Namespace: "shop"}})
		switch {
		case tt.want == "" && (err != nil || len(objects) == 0):
			t.Errorf("%s: %v, %v", name, objects, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		case tt.want != "" && (strings.Contains(err.Error(), "canary") || !errors.Is(err, fleet.ErrInvalid)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneOfTwoBuildsFails: its error is the one that is told, whichever it is.
func TestOneOfTwoBuildsFails(t *testing.T) {
	wrong := fleet.Invalid("a.yaml", "is wrong")
	for _, errs := range [][]error{{nil, wrong}, {wrong, nil}, {context.Canceled, wrong}, {wrong, context.Canceled}} {
		e := &texter{texts: []map[string][]byte{texts("")}, errs: errs}
		if _, _, err := Render(t.Context(), e, nil, Package{Kustomize: &Kustomize{}}, Options{}); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%v: got %v", errs, err)
		}
	}
	if _, _, err := Render(t.Context(), nil, nil, Package{Kustomize: &Kustomize{}}, Options{}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("without an engine: %v", err)
	}
	empty := &texter{texts: []map[string][]byte{{}}, errs: []error{nil}}
	if objects, _, err := Render(t.Context(), empty, nil, Package{Kustomize: &Kustomize{}}, Options{AllowEmpty: true}); err != nil || len(objects) != 0 {
		t.Errorf("allowEmpty: %v, %v", objects, err)
	}
}

// breaker is an engine that has a bug.
type breaker struct{}

// Build implements Engine.
func (breaker) Build(context.Context, Job) (Built, error) { panic("a bug") }

// TestABugInABuildIsAnError of it, whichever of the two builds meets it: it must not end the process.
func TestABugInABuildIsAnError(t *testing.T) {
	err := guard.Run(func() error {
		_, _, err := Render(t.Context(), breaker{}, nil, Package{Kustomize: &Kustomize{}}, Options{})
		return err
	})
	if bug := new(guard.Panic); !errors.As(err, &bug) {
		t.Errorf("got %v", err)
	}
}

// TestChartKeepsAnObject: what has the annotation is not deleted, unless a policy says something else of it.
func TestChartKeepsAnObject(t *testing.T) {
	object := func(name, more string) string {
		return "---\napiVersion: v1\nkind: Secret\nmetadata: {name: '" + name + "', namespace: shop, annotations: {helm.sh/resource-policy: " + more + "}}\n"
	}
	text := object("a", "keep") + object("b", "' Keep '") + object("c", "other") + object("d", "keep") +
		"---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: a.b.c, annotations: {helm.sh/resource-policy: keep}}\nspec: {group: b.c, scope: Cluster, names: {kind: A, plural: a}}\n"
	opts := Options{Options: manifest.Options{Namespace: "shop", Declared: []string{"NAME"}}}
	made := func(p Package, text string) []manifest.Object {
		objects, _, err := Render(t.Context(), &texter{texts: []map[string][]byte{texts(text)}, errs: []error{nil}}, nil, p, opts)
		if err != nil {
			t.Fatal(err)
		}
		return objects
	}
	own := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"d"}}, Prune: fleet.PruneOnUpdate}, {Drift: "Report"}}
	policies, err := ChartPolicies(own, made(Package{Helm: &Helm{}}, text))
	for name, want := range map[string]string{"a": fleet.PruneNever, "b": fleet.PruneNever, "c": fleet.PruneOnUpdate, "d": fleet.PruneOnUpdate} {
		if p := fleet.Resolve(policies, fleet.ObjectID{Kind: "Secret", Namespace: "shop", Name: name}, nil); err != nil || p.Prune != want || p.Drift != "Report" {
			t.Errorf("%s: prune %s, want %s: %v", name, p.Prune, want, err)
		}
	}
	if p := fleet.Resolve(policies, fleet.ObjectID{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition", Name: "a.b.c"}, nil); p.Prune != fleet.PruneNever {
		t.Errorf("of a CRD: prune %s", p.Prune)
	}
	// Of a custom kind nobody knows here whether it has namespaces: where it has none, its object goes by no namespace once it is in the cluster.
	custom := "---\napiVersion: b.c/v1\nkind: Zone\nmetadata: {name: z, annotations: {helm.sh/resource-policy: keep}}\n"
	policies, err = ChartPolicies(own, made(Package{Helm: &Helm{}}, custom+object("a", "keep")))
	for id, want := range map[fleet.ObjectID]string{
		{Group: "b.c", Kind: "Zone", Namespace: "shop", Name: "z"}: fleet.PruneNever,
		{Group: "b.c", Kind: "Zone", Name: "z"}:                    fleet.PruneNever,
		{Group: "b.c", Kind: "Zone", Namespace: "web", Name: "z"}:  fleet.PruneOnUpdate,
		{Group: "b.c", Kind: "Zone", Name: "y"}:                    fleet.PruneOnUpdate,
		{Kind: "Secret", Name: "a"}:                                fleet.PruneOnUpdate,
	} {
		if p := fleet.Resolve(policies, id, nil); err != nil || p.Prune != want {
			t.Errorf("%s: prune %s, want %s: %v", id, p.Prune, want, err)
		}
	}
	if plain, err := ChartPolicies(own, made(Package{Kustomize: &Kustomize{}}, text)); err != nil || len(plain) != len(own) {
		t.Errorf("of a kustomization: %v, %v", plain, err)
	}
	named := made(Package{Helm: &Helm{}}, object("x-${NAME}", "keep"))
	if _, err := ChartPolicies(nil, named); err == nil || !strings.Contains(err.Error(), "Secret shop/x-${NAME} has the annotation helm.sh/resource-policy: keep, which cannot be kept to") {
		t.Errorf("a name with a placeholder: %v", err)
	}
	if _, err := ChartPolicies([]fleet.Policy{{Prune: fleet.PruneNever}}, named); err != nil {
		t.Errorf("that a policy keeps: %v", err)
	}
}

// TestHookOfInstallingIsMadeOnce: what Helm makes when a release is installed, and never after that, is not written again, unless a policy says
// something else of it.
func TestHookOfInstallingIsMadeOnce(t *testing.T) {
	events := map[string]string{"a": "pre-install", "b": "post-install, PRE-INSTALL,pre-delete", "c": "pre-install,pre-upgrade", "d": "post-upgrade", "e": "post-install", "f": "pre-install", "g": "x"}
	text := ""
	for name, of := range events {
		text += "---\napiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: shop, annotations: {helm.sh/resource-policy: keep, helm.sh/hook: '" + of + "'}}\n"
	}
	opts := Options{Options: manifest.Options{Namespace: "shop", Declared: []string{"NAME"}}}
	made := func(p Package, text string) []manifest.Object {
		objects, _, err := Render(t.Context(), &texter{texts: []map[string][]byte{texts(text)}, errs: []error{nil}}, nil, p, opts)
		if err != nil {
			t.Fatal(err)
		}
		return objects
	}
	own := []fleet.Policy{{Match: fleet.PolicyMatch{Names: []string{"e"}}, ApplyOnce: &fleet.ApplyOnce{}},
		{Match: fleet.PolicyMatch{Names: []string{"f"}}, ApplyOnce: &fleet.ApplyOnce{Paths: []string{"/data"}}}, {Drift: "Report"}}
	policies, err := ChartPolicies(own, made(Package{Helm: &Helm{}}, text))
	if err != nil {
		t.Fatal(err)
	}
	whole := []string{fleet.OnceAll}
	for name, want := range map[string][]string{"a": whole, "b": whole, "c": nil, "d": nil, "e": {}, "f": {"/data"}, "g": nil} {
		p := fleet.Resolve(policies, fleet.ObjectID{Kind: "Secret", Namespace: "shop", Name: name}, nil)
		if (p.ApplyOnce != nil) != (want != nil) || want != nil && (!slices.Equal(p.ApplyOnce.Paths, want) || p.ApplyOnce.When != "") {
			t.Errorf("%s, %s: %+v, want %v", name, events[name], p.ApplyOnce, want)
		}
		if p.Prune != fleet.PruneNever || p.Drift != "Report" { // two rules of one object, beside what the module says
			t.Errorf("%s: prune %s, drift %s", name, p.Prune, p.Drift)
		}
	}
	if plain, err := ChartPolicies(own, made(Package{Kustomize: &Kustomize{}}, text)); err != nil || len(plain) != len(own) {
		t.Errorf("of a kustomization: %v, %v", plain, err)
	}
	named := made(Package{Helm: &Helm{}}, "apiVersion: v1\nkind: Secret\nmetadata: {name: 'x-${NAME}', annotations: {helm.sh/hook: pre-install}}\n")
	if _, err := ChartPolicies(nil, named); err == nil || !strings.HasSuffix(err.Error(), `such as {match: {kinds: [Secret]}, applyOnce: {paths: ["*"]}}`) {
		t.Errorf("a name with a placeholder: %v", err)
	}
	if _, err := ChartPolicies([]fleet.Policy{{ApplyOnce: &fleet.ApplyOnce{}}}, named); err != nil {
		t.Errorf("of which a policy says it: %v", err)
	}
}

// TestNoErrorShowsAValue of the module, wherever it comes from: the reading of what was rendered quotes it as it stands there.
func TestNoErrorShowsAValue(t *testing.T) {
	const value, number = "canary-value-of-a-module-that-is-longer-than-what-a-message-quotes-of-others-texts-at-once", "1234567890123"
	values := []byte(`{"a":{"b":["` + value + `"]},"n":` + number + `,"lines":"first line\ncanary: second\n","quoted":"a\"canary\"b"}`)
	object := func(meta, rest string) string {
		return "apiVersion: v1\nkind: ConfigMap\nmetadata: {" + meta + "}\n" + rest
	}
	for name, text := range map[string]string{
		"anchor":    object("name: a", "data: {a: *"+value+"}"),
		"key twice": "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"},\"" + value + "\":1,\"" + value + "\":2}",
		"tag":       object("name: a", "data: {a: !"+value+" b}"),
		"name":      object("name: "+value+"_", ""),
		"namespace": object("name: a, namespace: "+value+"_", ""),
		"label":     object("name: a, labels: {a: "+value+"_}", ""),
		"number":    object("name: a, annotations: {"+number+": {}}", ""),
		"line":      object("name: a, annotations: {\"canary: second\": {}}", ""),
		"quoted":    object("name: a, annotations: {'a\"canary\"b': {}}", ""),
		"wave":      object("name: a, annotations: {towline.dev/wave: "+value+"}", ""),
		"twice":     object("name: canary-value", "") + "\n---\n" + object("name: canary-value", ""),
		"engine":    "",
	} {
		e := &texter{texts: []map[string][]byte{texts(text)}, errs: []error{nil}}
		if name == "engine" {
			e.errs[0] = fleet.Errorf(fleet.ErrExhausted, "panic: %q", value)
		}
		vs := values
		if name == "twice" {
			vs = []byte(`{"name":"canary-value"}`)
		}
		for of, h := range map[string]*Helm{"package": {Values: vs}, "override": {Overlays: []Overlay{{Values: vs}}}, "two": {Values: []byte(`{}`), Overlays: []Overlay{{Values: []byte(`{}`)}, {Values: vs}}}} {
			_, _, err := Render(t.Context(), e, nil, Package{Helm: h}, Options{Options: manifest.Options{Namespace: "shop"}})
			if err == nil || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), number) || name != "anchor" && !strings.Contains(err.Error(), fleet.Masked) {
				t.Errorf("%s, values of the %s: %v", name, of, err)
			}
		}
	}
}

// TestFolderOfAChartThatBecameAFile: a symbolic link that was copied as text is a file, which Helm passes over, and what was in the folder would go.
func TestFolderOfAChartThatBecameAFile(t *testing.T) {
	const chart = "apiVersion: v2\nname: web\nversion: 1.0.0\n"
	e := &texter{texts: []map[string][]byte{texts("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")}, errs: []error{nil}}
	for name, tt := range map[string]struct {
		path, text string
		refused    bool
	}{
		"definitions":                   {"charts/web/crds", "../../shared/crds", true},
		"templates":                     {"charts/web/templates", "../../shared/templates", true},
		"charts":                        {"charts/web/charts", "../../shared", true},
		"of a chart in it":              {"charts/web/charts/in/crds", "../../../../shared/crds", true},
		"of a chart beside it":          {"charts/beside/crds", "../../shared/crds", true},
		"definitions below":             {"charts/web/crds/more", "../../../shared/crds", true},
		"definitions of nobody knows":   {"charts/web/crds/more", "../../../../shared/crds", true},
		"definitions that are read":     {"charts/web/crds/more", "v1", false},
		"a file of the chart":           {"charts/web/files/crds", "../../../shared/crds", false},
		"a text beside the definitions": {"charts/web/crds/README", "of the operator", false},
		"a license":                     {"charts/web/crds/LICENSE", "../../../LICENSE", false},
		"of another chart":              {"charts/other/crds", "../../shared/crds", false},
		"outside of charts":             {"docs/templates", "../shared/templates", false},
	} {
		files := map[string][]byte{"charts/web/Chart.yaml": []byte(chart + "dependencies:\n- {name: beside, repository: \"file://../beside\"}\n"), "charts/web/charts/in/Chart.yaml": []byte(chart),
			"charts/web/crds/v1/a.yaml": nil, "charts/beside/Chart.yaml": []byte(chart), "charts/other/Chart.yaml": []byte(chart),
			"shared/crds/a.yaml": nil, "shared/templates/a.yaml": nil, "LICENSE": nil, tt.path: []byte(tt.text)}
		_, _, err := Render(t.Context(), e, files, Package{Helm: &Helm{Path: "charts/web"}}, Options{Options: manifest.Options{Namespace: "shop"}})
		if (err != nil) != tt.refused || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%q is a file", tt.path)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
