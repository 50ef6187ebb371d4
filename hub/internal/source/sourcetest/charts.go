package sourcetest

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// ServeCharts serves a Helm repository over http, at /index.yaml; around, if it is set, is asked before it. Each chart is its files, of which one is
// Chart.yaml.
func ServeCharts(t *testing.T, around func(http.Handler) http.Handler, charts ...map[string]string) (url string) {
	t.Helper()
	archives, entries := map[string][]byte{}, map[string]string{}
	for _, files := range charts {
		var meta struct{ Name, Version string }
		if err := yaml.Unmarshal([]byte(files["Chart.yaml"]), &meta); err != nil {
			t.Fatal(err)
		}
		in := map[string]string{}
		for name, text := range files {
			in[meta.Name+"/"+name] = text
		}
		name := meta.Name + "-" + meta.Version + ".tgz"
		archives["/"+name] = Archive(t, in)
		entries[meta.Name] += fmt.Sprintf("  - {apiVersion: v2, name: %s, version: %s, digest: %x, urls: [%s]}\n", meta.Name, meta.Version, sha256.Sum256(archives["/"+name]), name)
	}
	var index strings.Builder
	index.WriteString("apiVersion: v1\nentries:\n")
	for name, lines := range entries {
		index.WriteString("  " + name + ":\n" + lines)
	}
	var h http.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch data := archives[req.URL.Path]; {
		case req.URL.Path == "/index.yaml":
			_, _ = w.Write([]byte(index.String()))
		case data != nil:
			_, _ = w.Write(data)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	if around != nil {
		h = around(h)
	}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}
