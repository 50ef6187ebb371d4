package packager

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/action"
	"helm.sh/helm/v4/pkg/chart/common"
	chartloader "helm.sh/helm/v4/pkg/chart/loader"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	release "helm.sh/helm/v4/pkg/release/v1"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
	"towline.dev/towline/pkg/testkit/otherstest"
)

// helmTemplate is what `helm template --include-crds` prints: of the program that TOWLINE_HELM names, else of the library on the disk.
func helmTemplate(t *testing.T, dir string, h render.Helm) []byte {
	t.Helper()
	if program := os.Getenv("TOWLINE_HELM"); program != "" {
		args := []string{"template", h.ReleaseName, filepath.Join(dir, h.Path), "--namespace", h.Namespace, "--include-crds", "--kube-version", h.KubeVersion}
		for _, f := range h.ValuesFiles {
			args = append(args, "-f", filepath.Join(dir, f))
		}
		for _, v := range h.APIVersions {
			args = append(args, "--api-versions", v)
		}
		if len(h.Values) > 0 {
			at := filepath.Join(t.TempDir(), "values.json")
			must(t, os.WriteFile(at, h.Values, 0o600))
			args = append(args, "-f", at)
		}
		out, err := exec.CommandContext(t.Context(), program, args...).Output()
		if exit := new(exec.ExitError); errors.As(err, &exit) {
			t.Fatalf("%s", exit.Stderr)
		}
		must(t, err)
		return out
	}
	values := map[string]any{}
	for _, f := range append(slices.Clone(h.ValuesFiles), "") {
		data := []byte(h.Values)
		if f != "" {
			var err error
			data, err = os.ReadFile(filepath.Join(dir, f))
			must(t, err)
		}
		more, err := loader.LoadValues(bytes.NewReader(data))
		must(t, err)
		values = loader.MergeMaps(values, more)
	}
	return bare(t, dir, h, values)
}

func bare(t *testing.T, dir string, h render.Helm, values map[string]any) []byte {
	t.Helper()
	c, err := chartloader.Load(filepath.Join(dir, h.Path))
	must(t, err)
	in := action.NewInstall(action.NewConfiguration())
	in.DryRunStrategy, in.Replace, in.ReleaseName, in.Namespace, in.IncludeCRDs, in.APIVersions = action.DryRunClient, true, h.ReleaseName, h.Namespace, true, h.APIVersions
	in.KubeVersion, err = common.ParseKubeVersion(h.KubeVersion)
	must(t, err)
	made, err := in.Run(c, values)
	must(t, err)
	rel := made.(*release.Release)
	out := bytes.NewBufferString(rel.Manifest)
	for _, hook := range rel.Hooks {
		fmt.Fprintf(out, "---\n%s\n", hook.Manifest)
	}
	return out.Bytes()
}

// wanted are the objects of a reference without the hooks that a module leaves out.
func wanted(t *testing.T, text []byte, namespace string) []manifest.Object {
	t.Helper()
	objects, err := manifest.ParseSet(map[string][]byte{"reference": text}, manifest.Options{Namespace: namespace, Chart: true})
	must(t, err)
	return slices.DeleteFunc(objects, func(o manifest.Object) bool {
		return bytes.Contains(o.Raw, []byte(`"helm.sh/hook":"test"`)) || bytes.Contains(o.Raw, []byte(`"helm.sh/hook":"pre-delete"`))
	})
}

func charted(ctx context.Context, engine render.Engine, files map[string][]byte, h render.Helm, opts manifest.Options) ([]manifest.Object, error) {
	objects, _, err := render.Render(ctx, engine, files, render.Package{Helm: &h}, render.Options{Options: opts})
	return objects, err
}

// web is the chart of the project with values from everywhere.
var web = render.Helm{Path: "charts/web", ReleaseName: "shop", Namespace: "front", KubeVersion: "1.33.4", APIVersions: []string{"monitoring.coreos.com/v1"},
	ValuesFiles: []string{"values/prod.yaml", "values/eu.yaml"}, Values: []byte(`{"image":{"repository":"mirror.example/web"},"big":12345678,"cache":{"size":"3Gi"}}`)}

// TestChartsAsHelmRendersThem: one of the project, which uses what Helm has, and those of others.
func TestChartsAsHelmRendersThem(t *testing.T) {
	p := pool(t, child.Limits{})
	check := func(t *testing.T, dir string, h render.Helm) {
		t.Run(h.Path, func(t *testing.T) {
			got, err := charted(t.Context(), p, filesOf(t, dir), h, manifest.Options{Namespace: h.Namespace})
			must(t, err)
			same(t, got, wanted(t, helmTemplate(t, dir, h), h.Namespace))
		})
	}
	t.Run("own", func(t *testing.T) {
		check(t, "testdata/helm", web)
		plain := web
		plain.Values, plain.ValuesFiles = []byte(`{"removed":null,"cache":{"enabled":true}}`), nil
		check(t, "testdata/helm", plain)
	})
	t.Run("of others", func(t *testing.T) {
		dir := otherstest.Dir(t)
		for _, h := range []render.Helm{
			{Path: "metrics-server/charts/metrics-server", Values: []byte(`{"replicas":2,"podDisruptionBudget":{"enabled":true,"minAvailable":1}}`)},
			{Path: "traefik/traefik", Values: []byte(`{"ingressRoute":{"dashboard":{"enabled":true}},"deployment":{"replicas":3}}`)},
			{Path: "prometheus/charts/alertmanager"}, {Path: "prometheus/charts/kube-state-metrics"}, {Path: "prometheus/charts/prometheus-blackbox-exporter"},
			{Path: "prometheus/charts/prometheus-adapter"}, {Path: "external-dns/charts/external-dns", ValuesFiles: []string{"external-dns/charts/external-dns/ci/ci-values.yaml"}},
		} {
			h.ReleaseName, h.Namespace, h.KubeVersion = "shop", "front", "1.33.4"
			check(t, dir, h)
		}
	})
}

// TestHooksHaveWaves before and behind the rest, by their weight; an annotation of Towline wins.
func TestHooksHaveWaves(t *testing.T) {
	got, err := charted(t.Context(), pool(t, child.Limits{}), filesOf(t, "testdata/helm"), web, manifest.Options{Namespace: "front", Declared: []string{"CLUSTER"}})
	must(t, err)
	waves := map[string]int32{}
	for _, o := range got {
		if o.Wave != 0 || o.ID.Kind == "Job" || o.ID.Kind == "Pod" {
			waves[o.ID.Kind+" "+o.ID.Name] = o.Wave
		}
	}
	want := map[string]int32{"ServiceAccount shop-migrate": -1000010, "Job shop-migrate": -1000005, "Job shop-warm": 1000000, "Job shop-waved": 7}
	if !maps.Equal(waves, want) {
		t.Errorf("waves %v, want %v", waves, want)
	}
	i := slices.IndexFunc(got, func(o manifest.Object) bool { return o.ID.Kind == "Deployment" })
	if web := got[i]; !slices.Equal(web.Placeholders, []string{"CLUSTER"}) || !strings.Contains(string(web.Raw), "--price=$${NOT}") || !strings.Contains(string(web.Raw), `"plain":"1.2345678e+07"`) {
		t.Errorf("placeholders %v of %s", web.Placeholders, web.Raw)
	}
}

// TestCRDsAreLeftOut where a module says so.
func TestCRDsAreLeftOut(t *testing.T) {
	h := web
	h.SkipCRDs = true
	got, err := charted(t.Context(), pool(t, child.Limits{}), filesOf(t, "testdata/helm"), h, manifest.Options{Namespace: "front"})
	must(t, err)
	if slices.ContainsFunc(got, func(o manifest.Object) bool { return o.ID.Kind == "CustomResourceDefinition" }) {
		t.Error("there is a CRD")
	}
}

// TestChartThatLacksWhatIsSwitchedOff: a chart in a chart may be packed without what it depends on by another name and has switched off, and a list of
// dependencies that is there twice and the same says nothing else.
func TestChartThatLacksWhatIsSwitchedOff(t *testing.T) {
	files := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: &d [{name: d, version: 1.0.0}]\ndependencies: *d\n---\n# nothing more\n"),
		"charts/d/Chart.yaml":       []byte("apiVersion: v2\nname: d\nversion: 1.0.0\ndependencies: [{name: e, version: ^1, alias: a, condition: e.on}]\n"),
		"charts/d/values.yaml":      []byte("e: {on: false}\n"),
		"charts/d/templates/a.yaml": []byte(configMap)}
	got, err := charted(t.Context(), pool(t, child.Limits{}), files, render.Helm{ReleaseName: "web", Namespace: "front"}, manifest.Options{Namespace: "front"})
	if err != nil || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// TestWhatAChartIsRefused: each error names the file and what is wrong in it, and no value.
func TestWhatAChartIsRefused(t *testing.T) {
	meta := "apiVersion: v2\nname: web\nversion: 1.0.0\n"
	chart := func(more ...string) map[string]string {
		out := map[string]string{"c/Chart.yaml": meta}
		for i := 0; i < len(more); i += 2 {
			out["c/"+more[i]] = more[i+1]
		}
		return out
	}
	schema := `{"properties": {"password": {"type": "string", "pattern": "^[0-9]*$"}}}`
	for name, tt := range map[string]struct {
		files map[string]string
		h     render.Helm
		want  string
	}{
		"lookup":         {files: chart("templates/a.yaml", "a: 1\n# {{ (lookup \"v1\" \"Secret\" \"front\" \"db\").data }}\n"), want: "c/templates/a.yaml:2:6: executing"},
		"lookup, named":  {files: chart("templates/a.yaml", `{{ lookup "v1" "Secret" "front" "db" }}`), want: "lookup of v1 Secret/front/db is refused"},
		"library":        {files: chart("Chart.yaml", meta+"type: library\n"), want: "c/Chart.yaml: chart web is of type library"},
		"dependency":     {files: chart("Chart.yaml", meta+"dependencies: [{name: db, version: 1, repository: 'https://example.com'}, {name: mq, version: 1}]\n"), want: "c/Chart.yaml: chart web depends on db, mq, missing in c/charts: put them there"},
		"alias":          {files: chart("Chart.yaml", meta+"dependencies: [{name: d, version: 1.0.0, alias: a}, {name: d, version: ~1.0, alias: b}]\n", "charts/d/Chart.yaml", "apiVersion: v2\nname: d\nversion: 1.1.0\n"), want: "c/Chart.yaml: chart web depends on d 1.0.0 as a, and what is in its charts/ is 1.1.0"},
		"alias, below":   {files: chart("charts/d/Chart.yaml", "apiVersion: v2\nname: d\nversion: 1.0.0\ndependencies: [{name: e, version: ^1, alias: a}]\n", "charts/d/charts/e/Chart.yaml", "apiVersion: v2\nname: e\nversion: 2.0.0\n"), want: "c/Chart.yaml: chart d depends on e ^1 as a, and what is in its charts/ is 2.0.0"},
		"lists twice":    {files: chart("Chart.yaml", meta+"dependencies:\n- {name: d, version: 1.0.0, repository: 'file://../d'}\nDependencies:\n- {name: e, version: 1.0.0}\n", "charts/e/Chart.yaml", "apiVersion: v2\nname: e\nversion: 1.0.0\n"), want: "c/Chart.yaml: line 6 has dependencies for the second time, and others than those of line 5"},
		"lists, below":   {files: chart("Chart.yaml", meta+"dependencies: [{name: e, version: 1.0.0}]\n---\ndependencies: [{name: d, version: 1.0.0}]\n", "charts/e/Chart.yaml", "apiVersion: v2\nname: e\nversion: 1.0.0\n"), want: "c/Chart.yaml: line 6 has dependencies for the second time"},
		"no chart":       {files: map[string]string{"charts/x/Chart.yaml": meta}, want: "package.helm.path: c has no Chart.yaml; folders that have: charts/x"},
		"no name":        {files: chart("Chart.yaml", "apiVersion: v2\nversion: 1.0.0\n"), want: "c/Chart.yaml: validation: chart.metadata.name is required"},
		"not YAML":       {files: chart("Chart.yaml", "name: [\n"), want: "c/Chart.yaml: cannot load Chart.yaml"},
		"template":       {files: chart("templates/a.yaml", "{{ .Values.a.b }"), want: "c/templates/a.yaml:1"},
		"missing":        {files: chart("templates/a.yaml", "{{ required \"give a.b\" .Values.b }}"), want: "give a.b"},
		"fail":           {files: chart("templates/a.yaml", "{{ fail .Values.password }}"), h: render.Helm{Values: []byte(`{"password":"canary"}`)}, want: "c/templates/a.yaml:1"},
		"rendered":       {files: chart("templates/a.yaml", "a: b: c\n"), want: "c/templates/a.yaml: error converting YAML to JSON"},
		"schema":         {files: chart("values.schema.json", schema), h: render.Helm{Values: []byte(`{"password":"canary-value"}`)}, want: "values don't meet the specifications of the schema(s)"},
		"schema, remote": {files: chart("values.schema.json", `{"$ref": "https://example.com/schema.json"}`), want: "nothing is fetched while a package is rendered"},
		"version":        {files: chart("Chart.yaml", meta+"kubeVersion: '>=1.99.0'\n"), want: "chart requires kubeVersion: >=1.99.0"},
		"values file":    {files: chart(), h: render.Helm{ValuesFiles: []string{"prod.yaml"}}, want: "package.helm.valuesFiles[0]: prod.yaml is no file of the source"},
		"values list":    {files: chart("v.yaml", "- a\n"), h: render.Helm{ValuesFiles: []string{"c/v.yaml"}}, want: "c/v.yaml: is no YAML map of values"},
		"values above":   {files: chart(), h: render.Helm{ValuesFiles: []string{"../prod.yaml"}}, want: `"../prod.yaml" is outside of the source`},
		"archive":        {files: chart("charts/db-1.tgz", "no archive"), want: "c/Chart.yaml: error unpacking subchart db-1.tgz in web"},
		"schema, file":   {files: chart("values.schema.json", schema, "values.yaml", "password: canary-value\n"), want: "'***' does not match pattern"},
		"schema, values": {files: chart("values.schema.json", schema, "v.yaml", "password: canary-value\n"), h: render.Helm{ValuesFiles: []string{"c/v.yaml"}}, want: "'***' does not match pattern"},
		"schema, below":  {files: chart("charts/d/Chart.yaml", strings.Replace(meta, "web", "d", 1), "charts/d/values.schema.json", schema, "charts/d/values.yaml", "password: canary-value\n"), want: "'***' does not match pattern"},
		"a time":         {files: chart("values.yaml", "password: canary-1\n", "templates/a.yaml", `{{ mustToDate "2006" .Values.password }}`), want: "parsing time \"***\""},
		"a template":     {files: chart("values.yaml", "password: '{{ canary-1'\n", "templates/a.yaml", `{{ tpl .Values.password . }}`), want: "cannot parse template \"***\""},
		"range":          {files: chart("values.yaml", "password: canary-1\n", "templates/a.yaml", `{{ range .Values.password }}a{{ end }}`), want: "range can't iterate over [***]"},
		"tpl, lines":     {files: chart("values.yaml", "password: |\n  a:\n    {{ canary-1\n", "templates/a.yaml", `{{ tpl .Values.password . }}`), want: "cannot parse template \"***\""},
		"tpl, quotes":    {files: chart("values.yaml", "password: '"+strings.Repeat(`"canary-1" `, 9)+"{{ fail .x }}'\n", "templates/a.yaml", `{{ tpl .Values.password . }}`), want: "function execution for \"***\""},
		"anchor":         {files: chart("values.yaml", "password: *canary-1\n"), want: "unknown anchor [***]"},
		"anchor, below":  {files: chart("charts/d/Chart.yaml", strings.Replace(meta, "web", "d", 1), "charts/d/values.yaml", "password: *canary-1\n"), want: "unknown anchor [***]"},
		"anchor, values": {files: chart("v.yaml", "password: *canary-1\n"), h: render.Helm{ValuesFiles: []string{"c/v.yaml"}}, want: "c/v.yaml: is no YAML map of values"},
		"anchor, made":   {files: chart("templates/a.yaml", "a: {{ .Values.password }}\n"), h: render.Helm{Values: []byte(`{"password":"*canary-1"}`)}, want: "c/templates/a.yaml: error converting YAML to JSON: yaml: unknown anchor [***]"},
		"number":         {files: chart("v.yaml", "password: !!int canary-1\n"), h: render.Helm{ValuesFiles: []string{"c/v.yaml"}}, want: "cannot decode !!str [***]"},
		"braces":         {files: chart("v.yaml", "password: {{ canary-1 }}\n"), h: render.Helm{ValuesFiles: []string{"c/v.yaml"}}, want: "invalid map key: [***]"},
		"no table":       {files: chart("values.yaml", "d: canary-1\n", "charts/d/Chart.yaml", strings.Replace(meta, "web", "d", 1)), want: "type mismatch on d: [***]"},
		"recursion":      {files: chart("templates/a.yaml", `{{ define "x" }}{{ include "x" . }}{{ end }}{{ include "x" . }}`), want: "rendering template has a nested reference name: x"},
		"environment":    {files: chart("templates/a.yaml", `{{ env "HOME" }}`), want: `function "env" not defined`},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string][]byte{}
			for name, text := range tt.files {
				files[name] = []byte(text)
			}
			h := tt.h
			h.Path, h.ReleaseName, h.Namespace = "c", "shop", "front"
			_, err := charted(t.Context(), pool(t, child.Limits{}), files, h, manifest.Options{Namespace: "front"})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v\nwant %s", err, tt.want)
			}
			if !errors.Is(err, fleet.ErrInvalid) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestSchemaReachesNothing: what the schema of a chart refers to by an address or a path is not had, by the loaders that Helm has for that:
// a server is not asked, of a file nobody learns what it says or whether it is there.
func TestSchemaReachesNothing(t *testing.T) {
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		_, _ = w.Write([]byte(`{"required": ["from-the-network"]}`))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "hub.json")
	must(t, os.WriteFile(file, []byte(`{"required": ["from-a-file"]}`), 0o600))
	p := pool(t, child.Limits{})
	for _, ref := range []string{server.URL + "/latest/meta-data", "file://" + file, "file:///nowhere/at/all", "file:///etc/passwd"} {
		files := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n"), "values.schema.json": []byte(`{"$ref": "` + ref + `"}`),
			"templates/a.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")}
		_, err := charted(t.Context(), p, files, render.Helm{ReleaseName: "shop", Namespace: "front"}, manifest.Options{Namespace: "front"})
		if err == nil || !strings.Contains(err.Error(), errNoNetwork.Error()) || strings.Contains(err.Error(), "from-") || strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if len(asked) > 0 {
		t.Errorf("a server was asked for %s", <-asked)
	}
}

// TestHookThatIsATestToo comes with a revision, as helm install runs it; one that is a test alone does not.
func TestHookThatIsATestToo(t *testing.T) {
	files := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n")}
	for name, events := range map[string]string{"both": "pre-install,test", "test": "test"} {
		files["templates/"+name+".yaml"] = []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", annotations: {helm.sh/hook: '" + events + "'}}\n")
	}
	objects, err := charted(t.Context(), pool(t, child.Limits{}), files, render.Helm{ReleaseName: "shop", Namespace: "front"}, manifest.Options{Namespace: "front"})
	must(t, err)
	if len(objects) != 1 || objects[0].ID.Name != "both" {
		t.Errorf("%v", objects)
	}
}

// TestTimesOfAChart are those of no machine: the zones that a chart names are there wherever it is rendered.
func TestTimesOfAChart(t *testing.T) {
	files := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n"), "templates/a.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n" +
		`  berlin: {{ dateInZone "15:04" (toDate "2006-01-02T15:04Z07:00" "2020-07-01T00:00Z") "Europe/Berlin" | quote }}` + "\n")}
	objects, err := charted(t.Context(), pool(t, child.Limits{}), files, render.Helm{ReleaseName: "shop", Namespace: "front"}, manifest.Options{Namespace: "front"})
	must(t, err)
	if got := string(objects[0].Raw); !strings.Contains(got, `"berlin":"02:00"`) {
		t.Error(got)
	}
}

// TestChartThatMakesValuesUp is refused with the object and the field, and no value.
func TestChartThatMakesValuesUp(t *testing.T) {
	files := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n"),
		"templates/s.yaml": []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: db}\nstringData: {user: admin, password: {{ randAlphaNum 20 | quote }}}\n")}
	_, err := charted(t.Context(), pool(t, child.Limits{}), files, render.Helm{ReleaseName: "shop", Namespace: "front"}, manifest.Options{Namespace: "front"})
	want := "package: templates/s.yaml (rendered):2: Secret front/db is another each time it is rendered, at /stringData/password: what makes values up"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestChartThatTakesTooMuch ends alone.
func TestChartThatTakesTooMuch(t *testing.T) {
	loop := `{{ range $i := until 100000 }}{{ range $j := until 100000 }}{{ $x := sha256sum (toString $j) }}{{ end }}{{ end }}`
	doubled := `{{ $s := "0123456789abcdef" }}{{ range until 40 }}{{ $s = print $s $s }}{{ end }}`
	for text, want := range map[string]string{loop: "more than 2s of processor time", doubled: "MiB of memory"} {
		files := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n"), "templates/a.yaml": []byte(text)}
		limits := child.Limits{Memory: 400 << 20}
		if text == loop {
			limits = child.Limits{CPU: 2_000_000_000}
		}
		p := pool(t, limits)
		_, err := charted(t.Context(), p, files, render.Helm{ReleaseName: "shop", Namespace: "front"}, manifest.Options{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if _, err := charted(t.Context(), p, filesOf(t, "testdata/helm"), web, manifest.Options{Namespace: "front"}); err != nil {
			t.Errorf("the next one: %v", err)
		}
	}
}
