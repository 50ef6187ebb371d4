// Package telemetrytest holds what is registered against what docs/operations.md lists. It must not know who registers what.
package telemetrytest

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var (
	described = regexp.MustCompile(`^Desc{fqName: "([a-zA-Z0-9_:]+)"`)
	named     = regexp.MustCompile("`((?:towline|grpc)_[a-z0-9_]+)")
)

// Names are those of the metrics of a collector.
func Names(of prometheus.Collector) (names []string) {
	ch := make(chan *prometheus.Desc)
	go func() {
		of.Describe(ch)
		close(ch)
	}()
	for d := range ch {
		if m := described.FindStringSubmatch(d.String()); m != nil {
			names = append(names, m[1])
		}
	}
	return names
}

// Listed are the metrics in the section "Metrics" of docs/operations.md, which is at path.
func Listed(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Metrics\n")
	if !found {
		t.Fatalf("%s has no section Metrics", path)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var out []string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 2 {
			continue
		}
		for _, m := range named.FindAllStringSubmatch(cells[1], -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// Same fails unless the names are the same, each once.
func Same(t *testing.T, registered, listed []string) {
	t.Helper()
	for _, n := range registered {
		if !slices.Contains(listed, n) {
			t.Errorf("%s is registered, and not listed in docs/operations.md", n)
		}
	}
	seen := map[string]bool{}
	for _, n := range listed {
		if !slices.Contains(registered, n) {
			t.Errorf("%s is listed in docs/operations.md, and nobody registers it", n)
		}
		if seen[n] {
			t.Errorf("%s is listed twice", n)
		}
		seen[n] = true
	}
}

// Text is what Prometheus gets of a registry.
func Text(t *testing.T, of prometheus.Gatherer) string {
	t.Helper()
	w := httptest.NewRecorder()
	promhttp.HandlerFor(of, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w.Body.String()
}
