package packager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
	"towline.dev/towline/pkg/testkit/otherstest"
)

// worker is the argument with which the test's own program is a process of a pool.
const worker = "render-worker"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == worker {
		Isolate()
		if err := child.Serve(child.Limits{}, Build); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func pool(t testing.TB, limits child.Limits) *child.Pool {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	p, err := child.NewPool(child.Options{Command: []string{self, worker}, Limits: limits})
	must(t, err)
	t.Cleanup(p.Close)
	return p
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// filesOf reads a folder as a source would.
func filesOf(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	must(t, fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		out[name] = data
		return err
	}))
	return out
}

// parse reads what a tool printed.
func parse(t *testing.T, text []byte, namespace string) []manifest.Object {
	t.Helper()
	objects, err := manifest.ParseSet(map[string][]byte{"reference": text}, manifest.Options{Namespace: namespace})
	must(t, err)
	return objects
}

// same compares objects.
func same(t *testing.T, got, want []manifest.Object) {
	t.Helper()
	if len(want) == 0 {
		t.Error("the reference has no objects")
	}
	byID := map[fleet.ObjectID]manifest.Object{}
	for _, o := range want {
		byID[o.ID] = o
	}
	for _, o := range got {
		w, there := byID[o.ID]
		switch {
		case !there:
			t.Errorf("%s is not in the reference", o.ID.Short())
		case !bytes.Equal(o.Raw, w.Raw) || o.Version != w.Version:
			t.Errorf("%s is\n%s\nwant\n%s", o.ID.Short(), o.Raw, w.Raw)
		}
		delete(byID, o.ID)
	}
	for id := range byID {
		t.Errorf("%s is missing", id.Short())
	}
}

// kustomizeBuild is what `kustomize build` prints: of the program that TOWLINE_KUSTOMIZE names, else of the library on the disk.
func kustomizeBuild(t *testing.T, dir string) []byte {
	t.Helper()
	if program := os.Getenv("TOWLINE_KUSTOMIZE"); program != "" {
		out, err := exec.CommandContext(t.Context(), program, "build", dir).Output()
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatalf("%s", exit.Stderr)
		}
		must(t, err)
		return out
	}
	openapi.ResetOpenAPI() // what a build before it left behind
	built, err := krusty.MakeKustomizer(options()).Run(filesys.MakeFsOnDisk(), dir)
	must(t, err)
	text, err := built.AsYaml()
	must(t, err)
	return text
}

func kustomized(ctx context.Context, engine render.Engine, files map[string][]byte, k render.Kustomize, opts render.Options) ([]manifest.Object, error) {
	objects, _, err := render.Render(ctx, engine, files, render.Package{Kustomize: &k}, opts)
	return objects, err
}

// TestKustomizationsAsKustomizeBuildsThem: those of the project, which use what kustomize has, and those of others.
func TestKustomizationsAsKustomizeBuildsThem(t *testing.T) {
	p := pool(t, child.Limits{})
	check := func(t *testing.T, dir string, paths ...string) {
		files := filesOf(t, dir)
		for _, at := range paths {
			t.Run(at, func(t *testing.T) {
				got, err := kustomized(t.Context(), p, files, render.Kustomize{Path: at}, render.Options{Options: manifest.Options{Namespace: "default"}})
				must(t, err)
				same(t, got, parse(t, kustomizeBuild(t, filepath.Join(dir, at)), "default"))
			})
		}
	}
	t.Run("own", func(t *testing.T) {
		// The schema of the second must not reach the third.
		check(t, "testdata/kustomize", "overlays/prod", "openapi", "without-schema", "overlays/prod")
	})
	t.Run("of others", func(t *testing.T) {
		dir := otherstest.Dir(t)
		overlays := "manifests/overlays/"
		check(t, filepath.Join(dir, "metrics-server"), overlays+"release", overlays+"release-ha", overlays+"release-ha-1.21+", overlays+"test", overlays+"test-ha")
		check(t, filepath.Join(dir, "metallb"), "config/native", "config/frr", "config/frr-k8s-external", "config/prometheus-native")
		check(t, filepath.Join(dir, "external-dns"), "kustomize")
		check(t, filepath.Join(dir, "traefik"), "traefik/crds")
		check(t, filepath.Join(dir, "flux-example"), "apps/production", "apps/staging", "infrastructure/controllers", "infrastructure/configs")
	})
}

// TestComponentsAreAdded to those of the kustomization, behind them.
func TestComponentsAreAdded(t *testing.T) {
	files := filesOf(t, "testdata/kustomize")
	got, err := kustomized(t.Context(), pool(t, child.Limits{}), files, render.Kustomize{Path: "overlays/prod", Components: []string{"../../components/tls"}}, render.Options{Options: manifest.Options{Declared: []string{"CLUSTER"}}})
	must(t, err)
	find := func(kind, name string) manifest.Object {
		i := slices.IndexFunc(got, func(o manifest.Object) bool { return o.ID.Kind == kind && o.ID.Name == name })
		if i < 0 {
			t.Fatalf("no %s %s", kind, name)
		}
		return got[i]
	}
	service := find("Service", "prod-web-v2")
	if !strings.Contains(string(service.Raw), `"targetPort":8443`) {
		t.Errorf("the component is not in %s", service.Raw)
	}
	if web := find("Deployment", "prod-web-v2"); !strings.Contains(string(web.Raw), `"replicas":3`) || !slices.Equal(web.Placeholders, []string{"CLUSTER"}) || !strings.Contains(string(web.Raw), "$${NOT}") {
		t.Errorf("placeholders %v in %s", web.Placeholders, web.Raw)
	}
	if _, changed := files["overlays/prod/kustomization.yaml"]; !changed || bytes.Contains(files["overlays/prod/kustomization.yaml"], []byte("tls")) {
		t.Error("the files of the source were changed")
	}
}

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"

// outOfBounds is a replacement that cannot be made, of what a field of a Secret has.
func outOfBounds(field string) string {
	return "replacements: [{source: {kind: Secret, fieldPath: " + field + ", options: {delimiter: ':', index: 5}}, targets: [{select: {kind: Secret}, fieldPaths: [data.c]}]}]\n"
}

// TestKustomizationThatSaysTheSameTwice: what says nothing else the second time drops nothing, and neither do labels in other letters.
func TestKustomizationThatSaysTheSameTwice(t *testing.T) {
	files := map[string][]byte{"a.yaml": []byte("# one\n---\n---\n" + configMap + "...\n---\n" + strings.Replace(configMap, "name: a", "name: b", 1) + "---\n\napiVersion: v1\nkind: List\nitems: []\n---\n"), "kustomization.yaml": []byte("kind: Kustomization\nresources: &r [a.yaml]\nnamespace: x\nkind: Kustomization\nresources: *r\n" +
		"commonLabels: {App: a, app: b}\nnamespace: \"x\"\n---\n# nothing more\n")}
	if _, err := Build(render.Job{Files: files, Kustomize: &render.Kustomize{}}); err != nil {
		t.Error(err)
	}
	files["kustomization.yaml"] = []byte("resources: []\ncomponents:\npatches: []\nresources: [a.yaml]\npatches: [{patch: '{apiVersion: v1, kind: ConfigMap, metadata: {name: a, labels: {a: b}}}'}]\ncomponents: []\n")
	if _, err := Build(render.Job{Files: files, Kustomize: &render.Kustomize{}}); err != nil {
		t.Errorf("nothing the first time: %v", err)
	}
}

// TestWhatAKustomizationIsRefused: each error names the file, what of it is meant, and what to do.
func TestWhatAKustomizationIsRefused(t *testing.T) {
	k := func(text string) map[string]string { return map[string]string{"kustomization.yaml": text} }
	with := func(files map[string]string, more ...string) map[string]string {
		out := maps.Clone(files)
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	function := "apiVersion: example.com/v1\nkind: Setter\nmetadata:\n  name: set\n  annotations:\n    config.kubernetes.io/function: |\n      %s\n"
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: canary-value}\n"
	for name, tt := range map[string]struct {
		files map[string]string
		k     render.Kustomize
		want  string
	}{
		"remote file":       {files: k("resources: [https://user:canary@example.com/a.yaml]"), want: `kustomization.yaml: resources[0]: "https://***@example.com/a.yaml" is remote`},
		"remote base":       {files: k("resources:\n- github.com/org/repo//base?ref=v1"), want: `kustomization.yaml: resources[0]: "github.com/org/repo//base?ref=v1" is remote`},
		"remote base, ssh":  {files: k("resources:\n- git@example.com:org/repo.git//base"), want: `is remote`},
		"remote component":  {files: k("components:\n- ssh://git@example.com/org/repo"), want: `kustomization.yaml: components[0]: "ssh://***@example.com/org/repo" is remote`},
		"remote in a base":  {files: with(k("resources: [base]"), "base/kustomization.yml", "bases:\n- git::https://example.com/r"), want: `base/kustomization.yml: resources[0]: "git::https://example.com/r" is remote`},
		"remote patch":      {files: with(k("resources: [a.yaml]\npatches: [{path: https://example.com/p.yaml}]"), "a.yaml", configMap), want: `kustomization.yaml: patches: "https://example.com/p.yaml" is remote`},
		"remote generator":  {files: k("configMapGenerator: [{name: a, files: [\"k=https://example.com/a\"]}]"), want: `kustomization.yaml: configMapGenerator a: "https://example.com/a" is remote`},
		"remote schema":     {files: k("openapi: {path: https://example.com/s.json}"), want: `kustomization.yaml: openapi: "https://example.com/s.json" is remote`},
		"helm":              {files: k("helmCharts: [{name: a, repo: https://example.com}]"), want: "kustomization.yaml: helmCharts are refused"},
		"helm globals":      {files: k("helmGlobals: {chartHome: charts}"), want: "helmCharts are refused"},
		"helm of old":       {files: k("helmChartInflationGenerator: [{chartName: a}]"), want: "helmCharts are refused"},
		"helm generator":    {files: with(k("generators: [h.yaml]"), "h.yaml", "apiVersion: builtin\nkind: HelmChartInflationGenerator\nmetadata: {name: h}\nname: x\n"), want: "h.yaml: HelmChartInflationGenerator is refused"},
		"plugin":            {files: with(k("generators: [p.yaml]"), "p.yaml", "apiVersion: someteam.example.com/v1\nkind: Gen\nmetadata: {name: g}\n"), want: "p.yaml: someteam.example.com/v1 Gen is a plugin of one's own"},
		"container":         {files: with(k("transformers: [f.yaml]"), "f.yaml", fmt.Sprintf(function, "container: {image: x}")), want: "f.yaml: Setter set is a function (annotation config.kubernetes.io/function), which would run a container here"},
		"exec":              {files: with(k("validators: [f.yaml]"), "f.yaml", fmt.Sprintf(function, "exec: {path: ./run}")), want: "would run a program here"},
		"starlark":          {files: with(k("transformers: [f.yaml]"), "f.yaml", fmt.Sprintf(function, "starlark: {path: a.star, name: a}")), want: "would run a script here"},
		"inline function":   {files: k("transformers:\n- |-\n  " + strings.ReplaceAll(fmt.Sprintf(function, "container: {image: x}"), "\n", "\n  ")), want: "kustomization.yaml: Setter set is a function"},
		"in a folder":       {files: with(k("transformers: [t]"), "t/kustomization.yaml", "resources: [f.yaml]", "t/f.yaml", fmt.Sprintf(function, "container: {image: x}")), want: "t/f.yaml: Setter set is a function"},
		"not there":         {files: k("resources: [a.yaml]"), want: `kustomization.yaml: resources[0]: "a.yaml" is no file or folder of the source`},
		"above":             {files: with(k("resources: [../../../etc]")), want: `resources[0]: "../../../etc" is no file or folder of the source`},
		"absolute":          {files: k("resources: [/etc/passwd]"), want: `"/etc/passwd" is no file or folder of the source`},
		"file above":        {files: map[string]string{"o/kustomization.yaml": "resources: [../a.yaml]", "a.yaml": configMap}, k: render.Kustomize{Path: "o"}, want: "security; file 'a.yaml' is not in or below 'o'"},
		"cycle":             {files: map[string]string{"a/kustomization.yaml": "resources: [../b]", "b/kustomization.yaml": "resources: [../a]"}, k: render.Kustomize{Path: "a"}, want: "a/kustomization.yaml: "},
		"unknown field":     {files: k("resuorces: [a.yaml]"), want: `kustomization.yaml: invalid Kustomization: json: unknown field "resuorces"`},
		"list twice":        {files: with(k("resources: [a.yaml]\nnamespace: x\nresources: [b.yaml]"), "a.yaml", configMap, "b.yaml", configMap), want: `kustomization.yaml: line 3 has "resources", which line 1 has with another value`},
		"other letters":     {files: with(k("Resources: [a.yaml]\nresources: [b.yaml]"), "a.yaml", configMap, "b.yaml", configMap), want: `kustomization.yaml: line 2 has "resources", which line 1 has with another value`},
		"twice in a base":   {files: with(k("resources: [base]"), "base/kustomization.yaml", "components: [c]\ncomponents: [d]", "base/c/kustomization.yaml", "", "base/d/kustomization.yaml", ""), want: `base/kustomization.yaml: line 2 has "components"`},
		"nothing, last":     {files: with(k("resources: [a.yaml]\nresources: []"), "a.yaml", configMap), want: `kustomization.yaml: line 2 has "resources", which line 1 has with another value`},
		"nothing, and two":  {files: with(k("resources: []\nresources: [a.yaml]\nresources: [b.yaml]"), "a.yaml", configMap, "b.yaml", configMap), want: `kustomization.yaml: line 3 has "resources", which line 2 has with another value`},
		"nothing, small":    {files: with(k("resources: []\nResources: [a.yaml]"), "a.yaml", configMap), want: `kustomization.yaml: line 2 has "Resources", which line 1 has with another value`},
		"twice below":       {files: k("configMapGenerator:\n- name: a\n  literals: [a=1]\n  literals: [b=1]"), want: `kustomization.yaml: line 4 has "literals", which line 3 has`},
		"second document":   {files: with(k("resources: [a.yaml]\n---\n# more\nresources: [b.yaml]\n"), "a.yaml", configMap, "b.yaml", configMap), want: `kustomization.yaml: has more than the document that begins in line 1`},
		"behind an end":     {files: with(k("resources: [a.yaml]"), "a.yaml", configMap+"---\n"+configMap+"...\n# more\n"+configMap), want: "a.yaml:5: is followed by what kustomize does not read"},
		"nothing":           {files: with(k("resources: [a.yaml]"), "a.yaml", configMap+"--- # more\r\n\r\n{}\r\n"), want: "a.yaml:6: is {}, which says nothing"},
		"list of nothing":   {files: with(k("resources: [a.yaml]"), "a.yaml", configMap+"---\napiVersion: v1\nitems: null\nkind: List\n"), want: "a.yaml:5: is a List whose items are null"},
		"list of a kind":    {files: with(k("resources: [a.yaml]"), "a.yaml", "apiVersion: v1\nkind: ConfigMapList\nitems:\n"), want: "a.yaml:1: is a List whose items are null"},
		"no YAML":           {files: k("resources: [a"), want: "kustomization.yaml: invalid Kustomization: "},
		"empty":             {files: k(""), want: "kustomization.yaml: kustomization.yaml is empty"},
		"broken resource":   {files: with(k("resources: [a.yaml]"), "a.yaml", "a: [\n"), want: "kustomization.yaml: "},
		"patch for nothing": {files: with(k("resources: [a.yaml]\npatches: [{path: p.yaml}]"), "a.yaml", configMap, "p.yaml", strings.Replace(configMap, "name: a", "name: b", 1)), want: "no matches for Id"},
		"twice":             {files: with(k("resources: [a.yaml, b.yaml]"), "a.yaml", configMap, "b.yaml", configMap), want: "may not add resource with an already registered id"},
		"literal":           {files: k("secretGenerator: [{name: a, literals: [canary-literal]}]"), want: "kustomization.yaml: "},
		"literals":          {files: k("secretGenerator: [{name: a, literals: [a=canary-one, a=canary-two]}]"), want: "kustomization.yaml: "},
		"patch of text":     {files: with(k("resources: [a.yaml]\npatches: [{patch: 'canary: [canary-text', target: {kind: Secret}}]"), "a.yaml", secret), want: "kustomization.yaml: "},
		"patch for another": {files: with(k("resources: [a.yaml]\npatches:\n- patch: '"+`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"b"},"stringData":{"a":"canary-patch"}}`+"'"), "a.yaml", secret), want: "no matches for Id"},
		"patch that fails":  {files: with(k("resources: [a.yaml]\npatches: [{patch: '"+`[{"op":"test","path":"/stringData/a","value":"canary-test"},{"op":"remove","path":"/stringData/b"}]`+"', target: {kind: Secret}}]"), "a.yaml", secret), want: "kustomization.yaml: "},
		"anchor":            {files: with(k("resources: [a.yaml]"), "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: *canary-anchor}\n"), want: "kustomization.yaml: "},
		"made into base64":  {files: with(k("secretGenerator: [{name: a, literals: [a=canary-of-it], files: [b=c.txt]}]\n"+outOfBounds("data.a")), "c.txt", "x"), want: "out of bounds for value ***"},
		"file in base64":    {files: with(k("secretGenerator: [{name: a, files: [b=c.txt]}]\n"+outOfBounds("data.b")), "c.txt", "canary-in-a-file"), want: "out of bounds for value ***"},
		"no UTF-8":          {files: with(k("secretGenerator: [{name: a, envs: [a.env]}]"), "a.env", "a=canary-\xff\n"), want: "has invalid utf8 bytes"},
		"merge of no YAML":  {files: with(k("resources: [a.yaml]\npatchesStrategicMerge:\n- |\n  {apiVersion: v1, kind: Secret, metadata: {name: a}, stringData: {a: canary-patch}"), "a.yaml", secret), want: "kustomization.yaml: "},
		"text for a file":   {files: k("resources:\n- |\n  apiVersion: v1\n  kind: Secret\n  stringData: {a: canary-text}\n"), want: `resources[0]: "***" is no file or folder`},
		"braces":            {files: with(k("resources: [a.yaml]"), "a.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {a: {{canary}}}\n"), want: "invalid map key"},
		"list of patches":   {files: with(k("resources: [a.yaml, a.yaml]\npatches: [{path: p.yaml, target: {kind: Secret}}]"), "a.yaml", secret, "p.yaml", "- {op: add, path: /stringData/b, value: canary-list}\n"), want: "may not add resource with an already registered id"},
		"two files":         {files: with(k(""), "Kustomization", ""), want: "Kustomization: stands beside kustomization.yaml"},
		"no such folder":    {files: map[string]string{"prod/kustomization.yaml": ""}, k: render.Kustomize{Path: "x"}, want: "package.kustomize.path: x is no folder of the source; folders that have: prod"},
		"no kustomization":  {files: map[string]string{"prod/a.yaml": ""}, k: render.Kustomize{Path: "prod"}, want: "folder prod has no kustomization.yaml; the source has none anywhere"},
		"outside":           {files: k(""), k: render.Kustomize{Path: "../x"}, want: `package.kustomize.path: "../x" is outside of the source`},
		"component":         {files: with(k("resources: [a.yaml]"), "a.yaml", configMap), k: render.Kustomize{Components: []string{"c"}}, want: `package.kustomize.components[0]: "c": c is no folder of the source`},
		"component remote":  {files: with(k("resources: [a.yaml]"), "a.yaml", configMap), k: render.Kustomize{Components: []string{"https://example.com/c"}}, want: `package.kustomize.components[0]: "https://example.com/c" is no folder`},
		"component above":   {files: with(k("resources: [a.yaml]"), "a.yaml", configMap), k: render.Kustomize{Components: []string{"../c"}}, want: `is outside of the source`},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]byte{}
			for name, text := range tt.files {
				files[name] = []byte(text)
			}
			_, err := Build(render.Job{Files: files, Kustomize: &tt.k})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v\nwant %s", err, tt.want)
			}
			if !errors.Is(err, fleet.ErrInvalid) || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), mount) {
				t.Errorf("%v", err)
			}
		})
	}
}
