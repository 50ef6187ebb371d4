package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// chartYAML is a Chart.yaml with dependencies in the flow style.
func chartYAML(name, version string, dependencies ...string) string {
	return fmt.Sprintf("apiVersion: v2\nname: %s\nversion: %s\ndependencies: [%s]\n", name, version, strings.Join(dependencies, ", "))
}

func on(name, version, repository string) string {
	return fmt.Sprintf("{name: %s, version: %q, repository: %q}", name, version, repository)
}

// vendorIn fills the chart in the folder web of files, which are those of a Git repository.
func vendorIn(t *testing.T, f *Fetcher, src *towlinev1.Source, files map[string]string) (Artifact, error) {
	t.Helper()
	in := map[string][]byte{}
	for name, text := range files {
		in[name] = []byte(text)
	}
	a := newArtifact(in)
	a.Ref = "main@sha1:x"
	return f.Vendor(t.Context(), "team", src, "web", a)
}

var anyGit = gitSource("https://git.example.com/shop.git", nil)

// inCharts are the charts in charts/ of a folder, as NAME VERSION.
func inCharts(a Artifact, dir string) (list []string) {
	found, _ := (&vendoring{}).vendoredIn(context.Background(), a.Files, dir)
	for _, v := range found {
		list = append(list, v.Name+" "+v.Version)
	}
	return list
}

// fetchedIn are the charts of which the artifact says that they were fetched, as PLACE RANGE VERSION.
func fetchedIn(a Artifact) (list []string) {
	for _, c := range a.Charts {
		list = append(list, c.GetIn()+"/"+c.GetName()+" "+c.GetRange()+" "+c.GetVersion())
	}
	return list
}

// TestVendor: what is not in charts/ is fetched, by range and by exact version, from http and from a registry, with what it depends on
// itself; what is there stays, unless it is of another version; and twice the same is the same bytes.
func TestVendor(t *testing.T) {
	reg := sourcetest.NewRegistry(t, nil)
	oci := "oci://" + reg.Host + "/charts"
	reg.Push("charts/mq", "3.0.0", "application/vnd.cncf.helm.config.v1+json", sourcetest.Layer{Type: chartLayer, Data: sourcetest.Archive(t, map[string]string{"mq/Chart.yaml": chartYAML("mq", "3.0.0")})})
	deep := sourcetest.ServeCharts(t, nil, map[string]string{"Chart.yaml": chartYAML("deep", "0.1.0")})
	url := sourcetest.ServeCharts(t, nil, map[string]string{"Chart.yaml": chartYAML("db", "1.0.0")}, map[string]string{"Chart.yaml": chartYAML("db", "1.2.0", on("deep", "0.x", deep))},
		map[string]string{"Chart.yaml": chartYAML("db", "2.0.0")}, map[string]string{"Chart.yaml": chartYAML("old", "2.0.0")})
	src := &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git"}}
	files := map[string]string{
		"web/Chart.yaml": chartYAML("web", "1.0.0", on("db", "^1.0.0", url), "{name: db, alias: db2, version: ^1.0.0, repository: '"+url+"'}", on("there", "1.x", url), on("old", "2.x", url),
			on("lib", "1.0.0", "file://../lib"), "{name: mine, version: '*'}"),
		"web/charts/there/Chart.yaml":  chartYAML("there", "1.5.0"),
		"web/charts/there/values.yaml": "a: 1",
		"web/charts/old-1.0.0.tgz":     string(sourcetest.Archive(t, map[string]string{"old/Chart.yaml": chartYAML("old", "1.0.0")})),
		"web/charts/mine/Chart.yaml":   chartYAML("mine", "1.0.0"),
		"lib/Chart.yaml":               chartYAML("lib", "1.0.0", on("db", "2.0.0", url)),
		"README.md":                    "x",
	}
	f := fetcher(t, Options{CacheDir: t.TempDir()})
	a, err := vendorIn(t, f, src, files)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := inCharts(a, "web"), []string{"db 1.2.0", "mine 1.0.0", "old 2.0.0", "there 1.5.0"}; !slices.Equal(got, want) {
		t.Errorf("charts %v, want %v", got, want)
	}
	if got := inCharts(a, "lib"); !slices.Equal(got, []string{"db 2.0.0"}) {
		t.Errorf("charts of lib: %v", got)
	}
	if got, want := fetchedIn(a), []string{"web/db/deep 0.x 0.1.0", "web/db ^1.0.0 1.2.0", "web/old 2.x 2.0.0", "web/lib/db 2.0.0 2.0.0"}; !slices.Equal(got, want) {
		t.Errorf("it says that %v were fetched, want %v", got, want)
	}
	in, err := f.chartFiles(t.Context(), a.Files["web/charts/db-1.2.0.tgz"])
	if err != nil || in["charts/deep-0.1.0.tgz"] == nil {
		t.Errorf("what db depends on: %v, %v", slices.Sorted(maps.Keys(in)), err)
	}
	if a.Ref != "main@sha1:x" || a.Digest != fleet.DigestOf(a.Archive) || a.Files["README.md"] == nil {
		t.Errorf("%s %s", a.Ref, a.Digest)
	}
	again, err := vendorIn(t, fetcher(t, Options{}), src, files)
	if err != nil || again.Digest != a.Digest {
		t.Errorf("again it is %s, not %s: %v", again.Digest, a.Digest, err)
	}
	if same, err := vendorIn(t, f, src, map[string]string{"web/Chart.yaml": chartYAML("web", "1.0.0"), "a": "b"}); err != nil || len(same.Files) != 2 {
		t.Errorf("a chart that depends on nothing: %v", err)
	}
	a, err = vendorIn(t, f, &towlinev1.Source{Oci: &towlinev1.OciSource{Url: "oci://" + reg.Host + "/shop", Insecure: true}}, map[string]string{"web/Chart.yaml": chartYAML("web", "1.0.0", on("mq", "3.x", oci))})
	if err != nil || !slices.Equal(inCharts(a, "web"), []string{"mq 3.0.0"}) {
		t.Errorf("from a registry: %v, %v", inCharts(a, "web"), err)
	}
}

// TestVendorByLock: a lock says the version, and one of other dependencies is refused. The digest is what helm dependency update wrote.
func TestVendorByLock(t *testing.T) {
	url := sourcetest.ServeCharts(t, nil, map[string]string{"Chart.yaml": chartYAML("db", "1.0.0")}, map[string]string{"Chart.yaml": chartYAML("db", "1.2.0")})
	deps := func(version string) []*dependency {
		return []*dependency{{Name: "db", Version: version, Repository: url}}
	}
	lock := func(version string) string {
		return fmt.Sprintf("dependencies:\n- {name: db, version: %s, repository: %q}\ndigest: %s\ngenerated: \"2026-01-01T00:00:00Z\"\n", version, url, lockDigest([2][]*dependency{deps("^1.0.0"), deps(version)}))
	}
	files := map[string]string{"web/Chart.yaml": chartYAML("web", "1.0.0", on("db", "^1.0.0", url)), "web/Chart.lock": lock("1.0.0")}
	a, err := vendorIn(t, fetcher(t, Options{}), anyGit, files)
	if err != nil || !slices.Equal(inCharts(a, "web"), []string{"db 1.0.0"}) || fetchedIn(a) != nil { // the source says the version
		t.Fatalf("%v, %v, %v", inCharts(a, "web"), fetchedIn(a), err)
	}
	files["web/Chart.yaml"] = chartYAML("web", "1.0.0", on("db", "^1.2.0", url))
	if _, err := vendorIn(t, fetcher(t, Options{}), anyGit, files); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "web/Chart.lock: is not one of these dependencies any more: run helm dependency update") {
		t.Errorf("a lock of other dependencies: %v", err)
	}
	v1 := map[string]string{"web/Chart.yaml": "apiVersion: v1\nname: web\nversion: 1.0.0\n", "web/requirements.yaml": fmt.Sprintf("dependencies: [%s]\n", on("db", "^1.0.0", url)),
		"web/requirements.lock": strings.Replace(lock("1.0.0"), lockDigest([2][]*dependency{deps("^1.0.0"), deps("1.0.0")}), lockDigest(map[string][]*dependency{"dependencies": deps("^1.0.0")}), 1)}
	if a, err := vendorIn(t, fetcher(t, Options{}), anyGit, v1); err != nil || !slices.Equal(inCharts(a, "web"), []string{"db 1.0.0"}) {
		t.Errorf("of Helm 2: %v, %v", inCharts(a, "web"), err)
	}
}

// TestVendorIsRefused: each error names the chart, what it depends on, and what to do.
func TestVendorIsRefused(t *testing.T) {
	url := sourcetest.ServeCharts(t, nil, map[string]string{"Chart.yaml": chartYAML("db", "1.0.0")}, map[string]string{"Chart.yaml": chartYAML("beside", "1.0.0", on("x", "1", "file://../x"))})
	web := func(d ...string) map[string]string {
		return map[string]string{"web/Chart.yaml": chartYAML("web", "1.0.0", d...)}
	}
	with := func(files map[string]string, more ...string) map[string]string {
		for i := 0; i < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	signed := &towlinev1.Source{Git: anyGit.Git, Verify: &towlinev1.Verify{SshKeys: []string{"x"}}}
	for name, tt := range map[string]struct {
		src   *towlinev1.Source
		files map[string]string
		kind  error
		want  string
	}{
		"alias":       {anyGit, web(on("db", "1", "@stable")), fleet.ErrInvalid, "chart web depends on db: repository @stable is a name that only a computer knows on which helm repo add was run: write the URL"},
		"old alias":   {anyGit, web(on("db", "1", "alias:stable")), fleet.ErrInvalid, "repository alias:stable is a name"},
		"no version":  {anyGit, web(on("db", ">=3", url)), fleet.ErrNotFound, `chart web depends on db: source ` + url + ` chart db: has no version in ">=3": the highest is 1.0.0; check the version in Chart.yaml`},
		"no chart":    {anyGit, web(on("mq", "1", url)), fleet.ErrNotFound, "chart web depends on mq: source " + url + " chart mq: is not in the repository, which has 2 others: check Chart.yaml"},
		"no range":    {anyGit, web(on("db", "latest", url)), fleet.ErrInvalid, `"latest" is no range of versions`},
		"no host":     {anyGit, web(on("db", "1", "https:///x")), fleet.ErrInvalid, "is no URL"},
		"metadata":    {anyGit, web(on("db", "1", "http://169.254.169.254/x")), fleet.ErrDenied, "169.254.169.254"},
		"login":       {anyGit, web(on("db", "1", "https://u:p@example.com/x")), fleet.ErrInvalid, "repository https://example.com/x has credentials in its URL"},
		"inline":      {&towlinev1.Source{Inline: &towlinev1.InlineSource{}}, web(on("db", "1", url)), fleet.ErrInvalid, "run helm dependency build, and take charts/ along"},
		"upload":      {&towlinev1.Source{Upload: &towlinev1.UploadSource{}}, web(on("db", "1", url)), fleet.ErrInvalid, "all that is inline or uploaded has to be in the files"},
		"signed":      {signed, web(on("db", "1", url)), fleet.ErrInvalid, "nothing that is fetched from elsewhere is signed by a key in source.verify"},
		"outside":     {anyGit, web(on("db", "1", "file://../../x")), fleet.ErrInvalid, "file://../../x is outside of the source"},
		"root":        {anyGit, web(on("db", "1", "file:///etc")), fleet.ErrInvalid, "file:///etc is outside of the source"},
		"nothing":     {anyGit, web(on("db", "1", "file://../x")), fleet.ErrInvalid, "x has no Chart.yaml that can be read"},
		"other name":  {anyGit, with(web(on("db", "1", "file://../x")), "x/Chart.yaml", chartYAML("x", "1.0.0")), fleet.ErrInvalid, "x is a chart of another name, x"},
		"other range": {anyGit, with(web(on("x", "2", "file://../x")), "x/Chart.yaml", chartYAML("x", "1.0.0")), fleet.ErrInvalid, `x has version 1.0.0, which is not in "2"`},
		"circle": {anyGit, with(web(on("x", "1", "file://../x")), "x/Chart.yaml", chartYAML("x", "1.0.0", on("web", "1", "file://../web"))), fleet.ErrInvalid,
			"chart web depends on x: chart x depends on web: the charts depend on one another in a circle"},
		"self":   {anyGit, web(on("web", "1", "file://.")), fleet.ErrInvalid, "in a circle"},
		"beside": {anyGit, web(on("beside", "1", url)), fleet.ErrInvalid, "chart web depends on beside: chart beside depends on x: file://../x is a folder beside the chart, and the chart is fetched alone"},
		"many":   {anyGit, web(strings.Split(strings.Repeat(on("db", "1", "")+";", maxDependencies)+on("db", "1", ""), ";")...), fleet.ErrExhausted, "depend on more than 100 others"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := vendorIn(t, fetcher(t, Options{}), tt.src, tt.files)
			if !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestVendorInACircle: charts of a repository that depend on one another, and those that do so without end.
func TestVendorInACircle(t *testing.T) {
	var url string
	url = serve(t, func(w http.ResponseWriter, req *http.Request) {
		name, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
		next := "b"
		if name == "b" {
			next = "a"
		}
		version := "1.0.0"
		if strings.HasSuffix(req.URL.Path, "index.yaml") {
			fmt.Fprintf(w, "entries:\n  %s:\n  - {name: %s, version: %s, urls: [%s.tgz]}\n", name, name, version, name)
			return
		}
		_, _ = w.Write(sourcetest.Archive(t, map[string]string{name + "/Chart.yaml": chartYAML(name, version, on(next, "1.x", url+"/"+next))}))
	})
	_, err := vendorIn(t, fetcher(t, Options{}), anyGit, map[string]string{"web/Chart.yaml": chartYAML("web", "1.0.0", on("a", "1.x", url+"/a"))})
	if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "chart b depends on a: the charts depend on one another in a circle") {
		t.Errorf("%v", err)
	}
}

// TestVendorSecretStaysWithItsServer: the secret of the source goes to the server of the source alone, and a server that is away is named.
func TestVendorSecretStaysWithItsServer(t *testing.T) {
	var sent []string
	see := func(name string) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if req.Header.Get("Authorization") != "" {
					sent = append(sent, name)
				}
				h.ServeHTTP(w, req)
			})
		}
	}
	own := sourcetest.ServeCharts(t, see("own"), map[string]string{"Chart.yaml": chartYAML("db", "1.0.0")})
	other := sourcetest.ServeCharts(t, see("other"), map[string]string{"Chart.yaml": chartYAML("mq", "1.0.0")})
	f := fetcher(t, Options{Secrets: vault{"login": {"username": "bot", "password": "hunter22"}}.values})
	src := gitSource(own+"/repo.git", nil)
	src.Git.SecretName = "login"
	if _, err := vendorIn(t, f, src, map[string]string{"web/Chart.yaml": chartYAML("web", "1.0.0", on("db", "1.x", own), on("mq", "1.x", other))}); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(sent, "own") || slices.Contains(sent, "other") {
		t.Errorf("the secret was sent to %v", sent)
	}
	down := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) })
	_, err := vendorIn(t, f, src, map[string]string{"web/Chart.yaml": chartYAML("web", "1.0.0", on("db", "1.x", down))})
	var away *AwayError
	if !errors.As(err, &away) || away.Host != strings.TrimPrefix(down, "http://") || !strings.Contains(err.Error(), "chart web depends on db: ") {
		t.Errorf("a server that is away: %v", err)
	}
}

// TestVendorEnds: a chart may say of very many that it depends on them, and each is compared with all that are in charts/. That ends with
// the time that it may take.
func TestVendorEnds(t *testing.T) {
	files := map[string][]byte{"web/charts/db/Chart.yaml": []byte(chartYAML("db", "1.0.0"))}
	var on10 []string
	for range 10 {
		on10 = append(on10, on("db", "1.x", "https://charts.example.com"))
	}
	files["web/Chart.yaml"] = []byte(chartYAML("web", "1.0.0", on10...))
	v := &vendoring{files: files}
	if err := v.fill(&endsAfter{Context: t.Context(), left: 5}, chartAt{files: files, dir: "web"}); !errors.Is(err, context.Canceled) {
		t.Errorf("went on after its time was over: %v", err)
	}
}
