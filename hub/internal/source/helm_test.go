package source

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

func helmSource(repo, chart, version string) *towlinev1.Source {
	return &towlinev1.Source{Helm: &towlinev1.HelmSource{Repo: repo, Chart: chart, Version: version, Insecure: strings.HasPrefix(repo, "oci://"), Timeout: "20s"}}
}

// chart is a packed chart.
func chart(t *testing.T, version string) []byte {
	t.Helper()
	return sourcetest.Archive(t, map[string]string{"web/Chart.yaml": "apiVersion: v2\nname: web\nversion: " + version + "\n", "web/templates/a.yaml": "a: " + version})
}

func sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// repository serves an index with the versions of the chart web, and their archives.
func repository(t *testing.T, versions ...string) http.HandlerFunc {
	t.Helper()
	var index strings.Builder
	index.WriteString("apiVersion: v1\nentries:\n  other: []\n  web:\n")
	archives := map[string][]byte{}
	for _, v := range versions {
		data := chart(t, v)
		archives["/charts/web-"+v+".tgz"] = data
		fmt.Fprintf(&index, "  - {name: web, version: %q, digest: %s, urls: [web-%s.tgz]}\n", v, sum(data), v)
	}
	return func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/charts/index.yaml" {
			_, _ = w.Write([]byte(index.String()))
		} else if data := archives[req.URL.Path]; data != nil {
			_, _ = w.Write(data)
		} else {
			w.WriteHeader(404)
		}
	}
}

// TestHelmVersions: over http and from a registry the same version is found, and its files are the chart's.
func TestHelmVersions(t *testing.T) {
	versions := []string{"1.2.0", "1.10.1", "2.0.0-rc.1", "1.10.0+build.5"}
	http := serve(t, repository(t, versions...)) + "/charts"
	reg := sourcetest.NewRegistry(t, nil)
	for _, v := range versions {
		reg.Push("team/charts/web", strings.ReplaceAll(v, "+", "_"), "application/vnd.cncf.helm.config.v1+json", sourcetest.Layer{Type: chartLayer, Data: chart(t, v)})
	}
	f := fetcher(t, Options{CacheDir: t.TempDir()})
	for _, repo := range []string{http, http + "/", "oci://" + reg.Host + "/team/charts"} {
		for _, tt := range []struct{ version, want string }{
			{"", "1.10.1"}, {"1.x", "1.10.1"}, {"1.2.0", "1.2.0"}, {"~1.2", "1.2.0"}, {">=2-0", "2.0.0-rc.1"}, {"2.0.0-rc.1", "2.0.0-rc.1"}, {"1.10.0+build.5", "1.10.0+build.5"},
		} {
			a, err := f.Fetch(t.Context(), "default", helmSource(repo, "web", tt.version))
			if err != nil || string(a.Files["templates/a.yaml"]) != "a: "+tt.want || a.Files["Chart.yaml"] == nil || !strings.HasPrefix(strings.ReplaceAll(a.Ref, "_", "+"), tt.want+"@sha256:") {
				t.Errorf("%s %q: %s %q: %v", repo, tt.version, a.Ref, a.Files["templates/a.yaml"], err)
			}
		}
		for _, tt := range []struct{ chart, version, want string }{
			{"web", ">=3", `has no version in ">=3": the highest is 2.0.0-rc.1; check source.helm.version`},
			{"none", "", "check source.helm."},
		} {
			_, err := f.Fetch(t.Context(), "default", helmSource(repo, tt.chart, tt.version))
			if !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), " chart "+tt.chart+": ") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s %s: %v", repo, tt.chart, err)
			}
		}
	}
}

// TestHelmCache: a version whose digest the index says is fetched once.
func TestHelmCache(t *testing.T) {
	var archives atomic.Int32
	good := repository(t, "1.0.0")
	base := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, ".tgz") {
			archives.Add(1)
		}
		good(w, req)
	})
	f := fetcher(t, Options{CacheDir: t.TempDir()})
	for range 2 {
		if a, err := f.Fetch(t.Context(), "default", helmSource(base+"/charts", "web", "")); err != nil || archives.Load() != 1 || !strings.HasPrefix(a.Ref, "1.0.0@sha256:") {
			t.Errorf("%s after %d archives: %v", a.Ref, archives.Load(), err)
		}
	}
}

// TestHelmLogins: a secret goes to the repository, and not to another host that has the archive.
func TestHelmLogins(t *testing.T) {
	var seen atomic.Value
	data := chart(t, "1.0.0")
	elsewhere := strings.Replace(serve(t, func(w http.ResponseWriter, req *http.Request) {
		seen.Store(req.Header.Get("Authorization") + req.Header.Get("X-Own") + req.Header.Get("Referer"))
		_, _ = w.Write(data)
	}), "127.0.0.1", "localhost", 1)
	index := "entries: {web: [{version: 1.0.0, digest: " + sum(data) + ", urls: ['" + elsewhere + "/web.tgz']}]}"
	base := serve(t, login(body([]byte(index)), "bot", "hunter22"))
	f := fetcher(t, Options{Secrets: secretsOf(map[string]map[string]string{
		"good": {"username": "bot", "password": "hunter22", "header.X-Own": "own-value"}, "wrong": {"username": "bot", "password": "hunter23"}})})
	for _, tt := range []struct{ secret, want string }{
		{"good", ""},
		{"wrong", "401 Unauthorized: look at secret wrong"},
		{"", "401 Unauthorized: the hub must be allowed to read it; name a secret that lets it in source.helm.secretName"},
	} {
		src := helmSource(base, "web", "")
		src.Helm.SecretName = tt.secret
		_, err := f.Fetch(t.Context(), "default", src)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter")) {
			t.Errorf("%q: %v", tt.secret, err)
		}
	}
	if got, _ := seen.Load().(string); got != "" {
		t.Errorf("the other host got %q", got)
	}
}

// TestHostileHelmRepositories: each gives an error that names the chart and what is wrong.
func TestHostileHelmRepositories(t *testing.T) {
	good := chart(t, "1.0.0")
	entry := func(text string) string { return "entries: {web: [{version: 1.0.0, " + text + "}]}" }
	wait := func(w http.ResponseWriter, req *http.Request) {
		_, _ = w.Write([]byte("e"))
		w.(http.Flusher).Flush()
		<-req.Context().Done()
	}
	for _, tt := range []struct {
		name, index string
		archive     http.HandlerFunc
		want        string
		kind        error
	}{
		{"a page", "<html>{", nil, "its index.yaml cannot be read", fleet.ErrInvalid},
		{"nothing", "", nil, "is not in the repository, which has 0 others", fleet.ErrNotFound},
		{"aliases", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\nentries: {web: [*d,*d,*d,*d,*d,*d,*d,*d,*d]}", nil, "its index.yaml cannot be read", fleet.ErrInvalid},
		{"no URL", entry("urls: []"), nil, "version 1.0.0 has no URL in the index", fleet.ErrInvalid},
		{"a file", entry("urls: ['file:///etc/passwd']"), nil, "is at file: in the index: only https and http", fleet.ErrInvalid},
		{"metadata", entry("urls: ['http://169.254.169.254/latest']"), nil, "address 169.254.169.254 is link-local", fleet.ErrDenied},
		{"another archive", entry("digest: " + strings.Repeat("a", 64) + ", urls: [web.tgz]"), body(good), "has SHA-256 " + sum(good) + ", but the index says " + strings.Repeat("a", 64), fleet.ErrCorrupt},
		{"no archive", entry("urls: [web.tgz]"), body([]byte("text")), "archive is no gzip", fleet.ErrInvalid},
		{"gone", entry("urls: [web.tgz]"), func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, "404 Not Found", fleet.ErrNotFound},
		{"no chart", entry("urls: [web.tgz]"), body(sourcetest.Archive(t, map[string]string{"web/a.yaml": "a"})), "is no chart: it has no Chart.yaml", fleet.ErrInvalid},
		{"two folders", entry("urls: [web.tgz]"), body(sourcetest.Archive(t, map[string]string{"web/Chart.yaml": "a", "api/Chart.yaml": "b"})), "is not in its one folder", fleet.ErrInvalid},
		{"leads out", entry("urls: [web.tgz]"), body(sourcetest.Archive(t, map[string]string{"web/Chart.yaml": "a", "../b": "b"})), `archive entry "../b" leads outside`, fleet.ErrInvalid},
		{"drip", entry("urls: [web.tgz]"), wait, "did not arrive within 500ms: look at the server, or raise source.helm.timeout", fleet.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base := serve(t, func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path == "/charts/index.yaml" {
					_, _ = w.Write([]byte(tt.index))
					return
				}
				tt.archive(w, req)
			})
			src := helmSource(base+"/charts", "web", "")
			if tt.name == "drip" {
				src.Helm.Timeout = "500ms"
			}
			_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src)
			if err == nil || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "source "+base+"/charts chart web: ") {
				t.Fatalf("got %v\nwant %s (%v)", err, tt.want, tt.kind)
			}
		})
	}
	reg := sourcetest.NewRegistry(t, nil)
	reg.Push("web", "1.0.0", "application/x", archiveOf(t, "a"))
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", helmSource("oci://"+reg.Host, "web", "")); err == nil || !strings.Contains(err.Error(), "is no chart: it has no layer of the type") {
		t.Errorf("an artifact that is no chart: %v", err)
	}
}

// TestPackedChartIsNotIgnoredAgain: what .helmignore leaves out was left out when the chart was packed, as for Helm; its rules are
// those of the folder that it was, and not of what the charts in charts/ are made of.
func TestPackedChartIsNotIgnoredAgain(t *testing.T) {
	data := sourcetest.Archive(t, map[string]string{
		"web/.helmignore": "scripts/\n", "web/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n",
		"web/charts/db/Chart.yaml": "apiVersion: v2\nname: db\nversion: 1.0.0\n", "web/charts/db/scripts/init.sh": "create",
	})
	index := "entries: {web: [{version: 1.0.0, digest: " + sum(data) + ", urls: [web.tgz]}]}"
	base := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/index.yaml" {
			_, _ = w.Write([]byte(index))
			return
		}
		_, _ = w.Write(data)
	})
	a, err := fetcher(t, Options{}).Fetch(t.Context(), "default", helmSource(base, "web", ""))
	if err != nil {
		t.Fatal(err)
	}
	if rules, there := a.Files[".helmignore"]; there {
		t.Errorf("the files are to be ignored once more, by %q", rules)
	}
	reg := sourcetest.NewRegistry(t, nil)
	reg.Push("web", "1.0.0", "application/vnd.cncf.helm.config.v1+json", sourcetest.Layer{Type: chartLayer, Data: data})
	a, err = fetcher(t, Options{}).Fetch(t.Context(), "default", ociSource(reg.Host, "web", ociTag("1.0.0")))
	if _, there := a.Files["web/.helmignore"]; err != nil || there || a.Files["web/Chart.yaml"] == nil {
		t.Errorf("as an artifact: %d files, %v", len(a.Files), err)
	}
}
