package hub_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/structpb"

	towlinev1 "towline.dev/towline/gen/towline/v1"
)

// badServer answers each path in another bad way.
func badServer(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/loop", http.StatusMovedPermanently)
	})
	mux.HandleFunc("/metadata", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusFound)
	})
	mux.HandleFunc("/mapped", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://[::ffff:169.254.169.254]/latest", http.StatusFound)
	})
	mux.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", "file:///etc/passwd")
		w.WriteHeader(302)
	})
	mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/down", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html><body>log in</body></html>") })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv.URL
}

// Bad input about sources, packages, values and order (RELIABILITY §3.3) is refused, by a dry run as by a put, with one sentence that
// begins with the field and says what to do.
func TestBadInput(t *testing.T) {
	w := newWorld(t, true)
	w.join("a", nil, nil)
	url := badServer(t)
	inline := func(text string) func(*towlinev1.ModuleSpec) {
		return func(s *towlinev1.ModuleSpec) { s.Source.Inline.Files = map[string]string{"a.yaml": text} }
	}
	git := func(url string, change ...func(*towlinev1.GitSource)) func(*towlinev1.ModuleSpec) {
		return func(s *towlinev1.ModuleSpec) {
			g := &towlinev1.GitSource{Url: url, Ref: &towlinev1.GitRef{Branch: "main"}}
			for _, fn := range change {
				fn(g)
			}
			s.Source = &towlinev1.Source{Git: g}
		}
	}
	ref := func(r *towlinev1.GitRef) func(*towlinev1.ModuleSpec) {
		return git("https://example.com/r.git", func(g *towlinev1.GitSource) { g.Ref = r })
	}
	from := func(path string) func(*towlinev1.ModuleSpec) {
		return func(s *towlinev1.ModuleSpec) {
			s.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: url + path}}
		}
	}
	source := func(in *towlinev1.Source) func(*towlinev1.ModuleSpec) {
		return func(s *towlinev1.ModuleSpec) { s.Source = in }
	}
	pkg := func(p *towlinev1.Package, files map[string]string) func(*towlinev1.ModuleSpec) {
		return func(s *towlinev1.ModuleSpec) {
			if s.Package = p; files != nil {
				s.Source.Inline.Files = files
			}
		}
	}
	bind := func(list ...*towlinev1.Binding) func(*towlinev1.ModuleSpec) {
		return func(s *towlinev1.ModuleSpec) { s.Bindings = list }
	}
	text := func(s string) *string { return &s }
	chart := map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n", "templates/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {v: {{ required \"say v\" .Values.v }}}\n"}
	with := func(in map[string]string, name, text string) map[string]string {
		out := map[string]string{name: text}
		for n, s := range in {
			if n != name {
				out[n] = s
			}
		}
		return out
	}
	values, err := structpb.NewStruct(map[string]any{"v": "x"})
	must(t, err)
	for name, tc := range map[string]struct {
		bad  func(*towlinev1.ModuleSpec)
		says string
	}{
		// sources
		"git that runs a program":  {git("ext::sh -c id"), `spec.source.git.url: begins with "ext": only https, http, ssh and file are allowed`},
		"git with an option":       {git("--upload-pack=touch x"), "spec.source.git.url: is no URL: write https://HOST/REPO, or ssh://git@HOST/REPO"},
		"git of the hub's machine": {git("file:///etc"), "source file:///etc: is a folder of the hub's machine, and the hub reads none: start it with --allow-file-sources"},
		"git at metadata":          {git("http://169.254.169.254/r.git"), "source http://169.254.169.254/r.git: address 169.254.169.254 is link-local or a metadata service: the hub does not connect to it"},
		"branch that is an option": {ref(&towlinev1.GitRef{Branch: "-x"}), `spec.source.git.ref.branch: "-x" is no name of a branch or tag: git takes none that begins so, or holds such a thing`},
		"branch of dots":           {ref(&towlinev1.GitRef{Branch: "a..b"}), `spec.source.git.ref.branch: "a..b" is no name of a branch or tag`},
		"tag of two words":         {ref(&towlinev1.GitRef{Tag: `v1 v2`}), `spec.source.git.ref.tag: "v1 v2" is no name of a branch or tag`},
		"commit that is none":      {ref(&towlinev1.GitRef{Commit: "main"}), `spec.source.git.ref.commit: "main" is no full commit: write all 40 digits, as git rev-parse prints them`},
		"range that is none":       {ref(&towlinev1.GitRef{Semver: "latest"}), `spec.source.git.ref.semver: "latest" is no range of versions: write, for example, ">=1.2 <2" or "1.x"`},
		"two refs":                 {ref(&towlinev1.GitRef{Branch: "main", Tag: "v1"}), "spec.source.git.ref: sets 2 of branch, tag, semver and commit: set one, or leave ref out for the default branch"},
		"git path outside":         {git("https://example.com/r.git", func(g *towlinev1.GitSource) { g.Path = "../x" }), `spec.source.git.path: "../x" leads outside of the source`},
		"http of another scheme":   {source(&towlinev1.Source{Http: &towlinev1.HttpSource{Url: "ftp://example.com/a.yaml"}}), "spec.source.http.url: is no http or https address"},
		"http with a password":     {source(&towlinev1.Source{Http: &towlinev1.HttpSource{Url: strings.Replace(url, "//", "//ann:hunter2@", 1) + "/gone"}}), "/gone: the server answers 404"},
		"digest of 31 bytes":       {source(&towlinev1.Source{Http: &towlinev1.HttpSource{Url: "https://example.com/a", Sha256: strings.Repeat("ab", 31)}}), `spec.source.http.sha256: "ababababababababababababababababababababababababababababababab" is no SHA-256: write 64 hex digits`},
		"redirects in a circle":    {from("/loop"), "/loop: is redirected more than 5 times: write the URL it ends at"},
		"redirect to metadata":     {from("/metadata"), "/metadata: address 169.254.169.254 is link-local or a metadata service: the hub does not connect to it"},
		"the same, mapped":         {from("/mapped"), "/mapped: address 169.254.169.254 is link-local or a metadata service: the hub does not connect to it"},
		"redirect to a file":       {from("/file"), "/file: redirects to file: only http and https are allowed"},
		"nothing":                  {from("/empty"), "/empty: is empty: check what the server serves"},
		"server that is down":      {from("/down"), "/down: the server answers 503 Service Unavailable, after 3 retries too: look at the server"},
		"page to log in":           {from("/page"), "/page: is an HTML or XML page, perhaps one to log in: serve a YAML or JSON file or a tar.gz"},
		"oci of another scheme":    {source(&towlinev1.Source{Oci: &towlinev1.OciSource{Url: "https://example.com/r"}}), "spec.source.oci.url: does not begin with oci://: write oci://HOST/REPOSITORY"},
		"oci digest of another":    {source(&towlinev1.Source{Oci: &towlinev1.OciSource{Url: "oci://example.com/r", Ref: &towlinev1.OciRef{Digest: "md5:00"}}}), `spec.source.oci.ref.digest: "md5:00" is no digest: write sha256: and 64 digits`},
		"helm without a chart":     {source(&towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: "https://example.com/charts"}}), `spec.source.helm.chart: "" is no chart's name`},
		"two sources":              {func(s *towlinev1.ModuleSpec) { s.Source.Http = &towlinev1.HttpSource{Url: "https://example.com/a"} }, "spec.source: set exactly one of inline, http, git, oci, helm, upload; it has http and inline"},
		"no source":                {source(&towlinev1.Source{}), "spec.source: set exactly one of inline, http, git, oci, helm, upload; it has none"},
		"secret that is not there": {git("https://example.com/r.git", func(g *towlinev1.GitSource) { g.SecretName = "nobody" }), "source.git.secretName: secret nobody is not there: towline secret set nobody KEY=-"},
		"secret of no name":        {git("https://example.com/r.git", func(g *towlinev1.GitSource) { g.SecretName = "../x" }), `spec.source.git.secretName: "../x" is no DNS label: use lower-case letters, digits and '-', begin and end with a letter or digit`},
		"file outside":             {func(s *towlinev1.ModuleSpec) { s.Source.Inline.Files = map[string]string{"../a.yaml": ""} }, `spec.source.inline.files: "../a.yaml" is no file name`},
		"file at the root":         {func(s *towlinev1.ModuleSpec) { s.Source.Inline.Files = map[string]string{"/a.yaml": ""} }, `spec.source.inline.files: "/a.yaml" is no file name`},
		"files of a MiB":           {inline("# " + strings.Repeat("x", 1<<20)), "spec.source.inline.files: has 1048578 bytes; at most 1048576; for more write upload: {} and apply with --from DIR, or use another source"},
		// manifests
		"alias bomb":            {inline("a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n"), "a.yaml:1: aliases repeat more than 65536 bytes of this file: write the values out"},
		"deep list":             {inline(strings.Repeat("[", 9000)), "a.yaml:1: is not YAML: did not find expected node content"},
		"documents without end": {inline(strings.Repeat("---\n", 100_000)), "a.yaml:10001: begins document 10001; at most 10000 are allowed: split the file"},
		"number too large":      {inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nspec: {num: 1e400}\n"), "a.yaml:4: is a number too large to be kept exactly: quote it if it is text"},
		"version of a space":    {inline("apiVersion: \"v1 \"\nkind: ConfigMap\nmetadata: {name: a}\n"), `a.yaml:1: ConfigMap: apiVersion "v1 " is no group/version, such as apps/v1, or v1`},
		"name in uppercase":     {inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: A, namespace: b}\n"), `a.yaml:1: ConfigMap b/A: metadata.name "A" is no name: a lowercase RFC 1123 subdomain must consist of`},
		"name of 254":           {inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + strings.Repeat("a", 254) + ", namespace: b}\n"), `a…" is no name`},
		"merge that is itself":  {inline("a: &a\n  <<: *a\n"), "a.yaml:2: *a refers to what it is part of: write the value out"},
		"key of a MB":           {inline("? " + strings.Repeat("k", 900_000) + "\n: v\n"), "a.yaml:1: apiVersion is missing: every document is one Kubernetes object"},
		"our own label":         {inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b, labels: {towline.dev/hub: x}}\n"), "a.yaml:1: ConfigMap b/a: label towline.dev/hub is Towline's own: remove it"},
		"tab":                   {inline("apiVersion: v1\nkind: ConfigMap\nmetadata:\n\tname: a\n"), "a.yaml:4: is not YAML: found character that cannot start any token: indent with spaces, not tabs, and quote strings that begin with @, ` or %"},
		"key twice":             {inline("apiVersion: v1\nkind: ConfigMap\nkind: Secret\nmetadata: {name: a}\n"), `a.yaml:3: key "kind" is given twice`},
		"unclosed quote":        {inline("apiVersion: v1\nkind: \"ConfigMap\nmetadata: {name: a}\n"), "a.yaml:2: is not YAML: found unexpected end of stream"},
		"no name":               {inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: a-}\n"), "a.yaml:1: ConfigMap: metadata.generateName is refused: an object must keep its name; write metadata.name"},
		"kind in lowercase":     {inline("apiVersion: v1\nkind: configmap\nmetadata: {name: a}\n"), "a.yaml:1: configmap: kind is spelled ConfigMap"},
		"number of no end":      {inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\nspec: {num: .inf}\n"), "a.yaml:4: is a number that JSON does not have: quote it if it is text"},
		"secret of no code":     {inline("apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: b}\ndata: {p: \"%%%\"}\n"), "a.yaml:1: Secret b/a: data: the value of p is not base64: encode it, or put the text into stringData"},
		"secret that is no map": {inline("apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: b}\nstringData: |\n  password: hunter2\n"), "a.yaml:1: Secret b/a: stringData is a string, not a map of keys and values"},
		"wave of no number":     {inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b, annotations: {towline.dev/wave: first}}\n"), `a.yaml:1: ConfigMap b/a: annotation towline.dev/wave: "first" is no whole number between -2147483648 and 2147483647`},
		// packages
		"two packages":           {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{}, Kustomize: &towlinev1.KustomizePackage{}}, nil), "spec.package: has helm and kustomize: keep one of them"},
		"package outside":        {pkg(&towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{Path: "../x"}}, nil), `spec.package.kustomize.path: "../x" is no path in the source: write a folder, such as deploy/prod`},
		"no chart":               {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{}}, nil), "package.helm.path: . has no Chart.yaml"},
		"no kustomization":       {pkg(&towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{}}, nil), "package.kustomize.path: folder . has no kustomization.yaml; the source has none anywhere"},
		"base of another host":   {pkg(&towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{}}, map[string]string{"kustomization.yaml": "resources: [\"https://example.com/base?ref=v1\"]\n"}), `kustomization.yaml: resources[0]: "https://example.com/base?ref=v1" is remote, and what a revision is made of must be in its source: put a copy there (vendor it)`},
		"plugin":                 {pkg(&towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{}}, map[string]string{"kustomization.yaml": "generators: [g.yaml]\n", "g.yaml": "apiVersion: v1\nkind: X\nmetadata:\n  name: x\n  annotations:\n    config.kubernetes.io/function: |\n      exec: {path: ./run}\n"}), "g.yaml: X x is a function (annotation config.kubernetes.io/function), which would run a program here: functions are refused"},
		"base that is not there": {pkg(&towlinev1.Package{Kustomize: &towlinev1.KustomizePackage{}}, map[string]string{"kustomization.yaml": "resources: [../base]\n"}), `kustomization.yaml: resources[0]: "../base" is no file or folder of the source`},
		// values
		"value that is required": {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{}}, chart), "templates/a.yaml:4:13: say v"},
		"values that are a list": {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{ValuesFiles: []string{"v.yaml"}}}, with(chart, "v.yaml", "- a\n")), "v.yaml: is no YAML map of values: cannot unmarshal yaml document: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal array into Go value of type map[string]interface {}"},
		"no file of values":      {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{ValuesFiles: []string{"v.yaml"}}}, chart), "package.helm.valuesFiles[0]: v.yaml is no file of the source"},
		"values file outside":    {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{ValuesFiles: []string{"../v.yaml"}}}, chart), `spec.package.helm.valuesFiles[0]: "../v.yaml" is no file in the source: write one such as values/prod.yaml, without https:// and ..`},
		"version of no cluster":  {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{KubeVersion: "new", Values: values}}, chart), `spec.package.helm.kubeVersion: "new" is no version of Kubernetes: write one such as 1.33.4`},
		"values by the schema":   {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{Values: values}}, with(chart, "values.schema.json", `{"properties":{"v":{"type":"integer"}}}`)), "Chart.yaml: values don't meet the specifications of the schema(s) in the following chart(s): web: - at '/v': got string, want integer"},
		"lookup":                 {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{Values: values}}, with(chart, "templates/b.yaml", `{{ lookup "v1" "Secret" "a" "b" }}`)), `templates/b.yaml:1:3: executing "templates/b.yaml" at <lookup "v1" "Secret" "a" "b">: error calling lookup: lookup of v1 Secret/a/b is refused: a package is rendered without a cluster; give what it looks for as a value`},
		"template that is open":  {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{Values: values}}, with(chart, "templates/b.yaml", `{{ if }`)), `templates/b.yaml:1: unexpected "}" in if`},
		"dependency not there":   {pkg(&towlinev1.Package{Helm: &towlinev1.HelmPackage{Values: values}}, with(chart, "Chart.yaml", "apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: db, version: 1.x, repository: \"https://example.com/charts\"}]\n")), "chart web depends on db: it is not in charts/, and all that is inline or uploaded has to be in the files: run helm dependency build, and take charts/ along"},
		// bindings
		"binding twice":            {bind(&towlinev1.Binding{Name: "A", Value: text("1")}, &towlinev1.Binding{Name: "A", Value: text("2")}), "spec.bindings[1].name: A is declared twice"},
		"binding in lowercase":     {bind(&towlinev1.Binding{Name: "a", Value: text("1")}), `spec.bindings[0].name: "a" is no binding name: use [A-Z][A-Z0-9_]*`},
		"binding of two":           {bind(&towlinev1.Binding{Name: "A", Value: text("1"), ClusterLabel: "x"}), "spec.bindings[0]: A: set exactly one of value, clusterField, clusterLabel, clusterAnnotation, object and secret"},
		"binding of nothing":       {bind(&towlinev1.Binding{Name: "A"}), "spec.bindings[0]: A: set exactly one of value, clusterField, clusterLabel, clusterAnnotation, object and secret"},
		"field that nobody has":    {bind(&towlinev1.Binding{Name: "A", ClusterField: "spec.region"}), `spec.bindings[0].clusterField: "spec.region" is unknown; use metadata.name`},
		"type of nothing":          {bind(&towlinev1.Binding{Name: "A", Value: text("1"), Type: "Int"}), `spec.bindings[0].type: "Int" is unknown; use String, Integer, Number, Boolean`},
		"object without a kind":    {bind(&towlinev1.Binding{Name: "A", Object: &towlinev1.BindingObject{ApiVersion: "v1", Name: "x", FieldPath: "data.x"}}), "spec.bindings[0].object.kind: is required"},
		"path that does not parse": {bind(&towlinev1.Binding{Name: "A", Object: &towlinev1.BindingObject{ApiVersion: "v1", Kind: "ConfigMap", Namespace: "a", Name: "x", FieldPath: "{.data["}}), `spec.bindings[0].object.fieldPath: A: "{.data[" is no path of a field; write data.KEY, or a JSONPath such as status.loadBalancer.ingress[0].ip`},
		"mode that there is not":   {func(s *towlinev1.ModuleSpec) { s.BindingsMode = "Loose" }, `spec.bindingsMode: "Loose" is unknown; use Declared, Strict`},
		"placeholder of none": {func(s *towlinev1.ModuleSpec) {
			s.BindingsMode = "Strict"
			inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\ndata: {a: \"${NONE}\"}\n")(s)
		}, "a.yaml:1: ConfigMap b/a: ${NONE} is not declared, and spec.bindingsMode is Strict: declare it in spec.bindings, write $${NONE} for the text"},
		"placeholder in a key": {func(s *towlinev1.ModuleSpec) {
			bind(&towlinev1.Binding{Name: "A", Value: text("1")})(s)
			inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\ndata: {\"${A}\": x}\n")(s)
		}, `a.yaml:1: ConfigMap b/a: key "${A}" holds a placeholder: only values are substituted`},
		"optional and used as text": {func(s *towlinev1.ModuleSpec) {
			bind(&towlinev1.Binding{Name: "A", ClusterLabel: "x", Optional: true})(s)
			inline("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: b}\ndata: {a: \"${A}\"}\n")(s)
		}, "a.yaml:1: ConfigMap b/a: ${A}: the binding is optional, and has no value in some clusters: write ${A:-TEXT}, or give it a default"},
		// order
		"depends on itself":    {func(s *towlinev1.ModuleSpec) { s.DependsOn = []*towlinev1.Dependency{{Module: "bad"}} }, "spec.dependsOn[0].module: bad is the module itself, which would wait for itself"},
		"depends on one twice": {func(s *towlinev1.ModuleSpec) { s.DependsOn = []*towlinev1.Dependency{{Module: "x"}, {Module: "x"}} }, "spec.dependsOn[1].module: x is listed twice"},
		"depends on no name":   {func(s *towlinev1.ModuleSpec) { s.DependsOn = []*towlinev1.Dependency{{Module: "A B"}} }, `spec.dependsOn[0].module: "A B" is no DNS label: use lower-case letters, digits and '-', begin and end with a letter or digit`},
	} {
		t.Run(name, func(t *testing.T) {
			m := module("bad", configMap("1"))
			tc.bad(m.GetSpec())
			_, err := w.Modules.PutModule(w.ctx, &towlinev1.PutModuleRequest{Module: m, DryRun: true})
			if err == nil {
				t.Fatal("it is taken")
			}
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v\nwant %q", err, tc.says)
			}
			if strings.ContainsAny(err.Error(), "\n\t") || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "panic") || len(err.Error()) > 1000 {
				t.Errorf("is no sentence for people: %q", err)
			}
		})
	}
}

// What depends on the cluster fails there, by the name of the binding, and nowhere else.
func TestBadValueInACluster(t *testing.T) {
	w := newWorld(t, true)
	w.join("good", nil, map[string]string{"size": "3", "label": "fine"})
	w.join("bad", nil, map[string]string{"size": "three", "label": "Not_Fine"})
	text := func(s string) *string { return &s }
	for name, tc := range map[string]struct {
		bindings []*towlinev1.Binding
		says     string
	}{
		"missing": {[]*towlinev1.Binding{{Name: "A", ClusterLabel: "none"}}, `A has no value in cluster bad: it has no label "none"; set the label or a default`},
		"circle":  {[]*towlinev1.Binding{{Name: "A", Value: text("${B}")}, {Name: "B", Value: text("${A}")}}, "A refers to itself: A → B → A"},
		"type":    {[]*towlinev1.Binding{{Name: "A", ClusterLabel: "size", Type: "Integer"}}, "the value of A in cluster bad is no whole number, as its type Integer wants"},
		"name":    {[]*towlinev1.Binding{{Name: "A", ClusterLabel: "label"}}, `ConfigMap name/x-${A}: metadata.name "x-Not_Fine" is no name`},
	} {
		t.Run(name, func(t *testing.T) {
			m := module(name, map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"x-${A}\", namespace: " + name + "}\n"})
			m.Spec.Bindings = tc.bindings
			w.put(m)
			tr := w.awaitTracker(name, "bad", "failed", func(tr *towlinev1.Tracker) bool { return tr.GetMessage() != "" })
			if !strings.Contains(tr.GetMessage(), tc.says) || tr.GetReady() {
				t.Errorf("%s: %s; want %q", tr.GetReason(), tr.GetMessage(), tc.says)
			}
			if name == "type" || name == "name" {
				w.awaitTracker(name, "good", "ready", ready)
			}
		})
	}
}
