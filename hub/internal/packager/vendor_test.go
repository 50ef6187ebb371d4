package packager

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/cli"
	"helm.sh/helm/v4/pkg/downloader"
	"helm.sh/helm/v4/pkg/getter"
	"helm.sh/helm/v4/pkg/registry"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
	"towline.dev/towline/pkg/render"
	"towline.dev/towline/pkg/render/child"
)

// dependencyBuild does what `helm dependency build` does, or `helm dependency update`: by the program that TOWLINE_HELM names, else by the library.
// The repository is one that was added to it.
func dependencyBuild(t *testing.T, url, dir, verb string) {
	t.Helper()
	home := t.TempDir()
	config := filepath.Join(home, "repositories.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "apiVersion: v1\nrepositories:\n- {name: charts, url: %q}\n", url), 0o600))
	if program := os.Getenv("TOWLINE_HELM"); program != "" {
		c := exec.CommandContext(t.Context(), program, "dependency", verb, dir)
		c.Env = append(os.Environ(), "HOME="+home, "HELM_REPOSITORY_CONFIG="+config, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	client, err := registry.NewClient()
	must(t, err)
	m := &downloader.Manager{Out: io.Discard, ChartPath: dir, Getters: getter.All(cli.New()), RegistryClient: client, RepositoryConfig: config,
		RepositoryCache: filepath.Join(home, "cache"), ContentCache: filepath.Join(home, "content")}
	if verb == "update" {
		must(t, m.Update())
	} else {
		must(t, m.Build())
	}
}

// library is a chart with one object that says how it was reached.
func library(name, version string) map[string]string {
	return map[string]string{"Chart.yaml": "apiVersion: v2\nname: " + name + "\nversion: " + version + "\n", "values.yaml": "size: 1\ndata: {size: 3}\n",
		"templates/a.yaml": fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Chart.Name }}-%s}\ndata: {version: %q, size: {{ .Values.size | quote }}, tag: {{ .Values.tag | quote }}}\n", name, version)}
}

// app is a chart that depends on others in every way there is.
func app(url string) map[string]string {
	return map[string]string{
		"app/Chart.yaml": fmt.Sprintf(`apiVersion: v2
name: app
version: 1.0.0
dependencies:
- {name: db, version: ^1.0.0, repository: %[1]q}
- {name: db, alias: replica, version: ^1.0.0, repository: %[1]q, condition: replica.enabled}
- {name: mq, version: "2.x", repository: %[1]q, condition: mq.enabled}
- {name: cache, version: "*", repository: %[1]q, tags: [extra]}
- {name: tool, version: ">=0.1.0", repository: %[1]q, import-values: [{child: data, parent: tooling}]}
- {name: lib, version: 1.0.0, repository: file://../lib}
`, url),
		"app/values.yaml":        "mq: {enabled: false}\nreplica: {size: 2}\ntags: {extra: false}\n",
		"app/templates/own.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: own}\ndata: {tool: {{ .Values.tooling.size | quote }}}\n",
		"lib/Chart.yaml":         "apiVersion: v2\nname: lib\nversion: 1.0.0\n",
		"lib/.helmignore":        "templates/left-out.yaml\n",
		"lib/templates/lib.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: lib}\n", "lib/templates/left-out.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: left-out}\n",
	}
}

// TestDependenciesAsHelmBuildsThem: what a chart depends on comes to the same objects as by helm dependency build and helm template, without a
// lock and with the one that Helm wrote, which keeps the version when there is a newer one.
func TestDependenciesAsHelmBuildsThem(t *testing.T) {
	charts := []map[string]string{library("db", "1.0.0"), library("db", "2.0.0"), library("mq", "2.5.0"), library("cache", "0.3.0"), library("tool", "0.1.0")}
	url := sourcetest.ServeCharts(t, nil, charts...)
	newer := append(slices.Clone(charts), library("db", "1.9.0"))
	f, err := source.New(source.Options{TempDir: t.TempDir()})
	must(t, err)
	p := pool(t, child.Limits{})
	h := render.Helm{Path: "app", ReleaseName: "shop", Namespace: "front", KubeVersion: "1.33.4"}
	check := func(t *testing.T, files map[string]string, values string) {
		t.Helper()
		dir := write(t, files)
		h.Values = []byte(values)
		dependencyBuild(t, url, filepath.Join(dir, "app"), "build")
		want := wanted(t, helmTemplate(t, dir, h), h.Namespace)
		got, err := charted(t.Context(), p, vendored(t, f, files), h, manifest.Options{Namespace: h.Namespace})
		must(t, err)
		same(t, got, want)
	}
	files := app(url)
	check(t, files, `{}`)
	check(t, files, `{"mq":{"enabled":true,"size":7},"tags":{"extra":true},"replica":{"enabled":false},"db":{"tag":"x"}}`)
	dir := write(t, files)
	dependencyBuild(t, url, filepath.Join(dir, "app"), "update")
	lock, err := os.ReadFile(filepath.Join(dir, "app/Chart.lock"))
	must(t, err)
	later := sourcetest.ServeCharts(t, nil, newer...)
	moved := app(later)
	if !bytes.Contains(lock, []byte("version: 1.0.0")) {
		t.Fatalf("the lock has no version: %s", lock)
	}
	files["app/Chart.lock"] = string(lock)
	check(t, files, `{}`)
	moved["app/Chart.lock"] = strings.ReplaceAll(string(lock), url, later)
	if _, err := f.Vendor(t.Context(), "default", git, "app", artifactOf(moved)); err == nil || !strings.Contains(err.Error(), "app/Chart.lock: is not one of these dependencies any more") {
		t.Errorf("a lock whose digest is of another list: %v", err)
	}
}

var git = &towlinev1.Source{Git: &towlinev1.GitSource{Url: "https://git.example.com/shop.git"}}

func artifactOf(files map[string]string) source.Artifact {
	a := source.Artifact{Files: map[string][]byte{}}
	for name, text := range files {
		a.Files[name] = []byte(text)
	}
	return a
}

// vendored are files with all that the chart in app depends on.
func vendored(t *testing.T, f *source.Fetcher, files map[string]string) map[string][]byte {
	t.Helper()
	a, err := f.Vendor(t.Context(), "default", git, "app", artifactOf(files))
	must(t, err)
	again, err := f.Vendor(t.Context(), "default", git, "app", artifactOf(files))
	must(t, err)
	if a.Digest != again.Digest || a.Digest != fleet.DigestOf(a.Archive) {
		t.Errorf("twice it is %s and %s", a.Digest, again.Digest)
	}
	return a.Files
}

// write puts files into a folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(files[name]), 0o600))
	}
	return dir
}
