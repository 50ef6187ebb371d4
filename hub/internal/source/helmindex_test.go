package source

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	repo "helm.sh/helm/v4/pkg/repo/v1"
	"sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

// largeIndex is an index of many charts, as Helm writes it.
func largeIndex(t *testing.T, charts int) []byte {
	t.Helper()
	index := repo.NewIndexFile()
	add := func(name, version, digest string) {
		m := &chartv2.Metadata{APIVersion: "v2", Name: name, Version: version, Description: "entries:\n  web:\n  - version: 9.9.9\n" + strings.Repeat("word ", 30),
			Annotations: map[string]string{"images": "- name: a\n  image: b\n# not a comment\n"}}
		if err := index.MustAdd(m, name+"-"+version+".tgz", "", digest); err != nil {
			t.Fatal(err)
		}
	}
	for i := range charts {
		for n := range 10 {
			add(fmt.Sprintf("chart-%04d", i), fmt.Sprintf("1.%d.0", n), strings.Repeat("a", 64))
		}
	}
	add("web", "1.0.0", sum(chart(t, "1.0.0")))
	add("zoo", "3.0.0", "")
	data, err := yaml.Marshal(index)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestLargeIndex: the chart is found, without the memory that all of the index would take; what is too large says so.
func TestLargeIndex(t *testing.T) {
	large := largeIndex(t, 2200)
	index := large
	base := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, ".tgz") {
			_, _ = w.Write(chart(t, "1.0.0"))
			return
		}
		_, _ = w.Write(index)
	})
	if len(index) < 10<<20 || len(index) > 30<<20 {
		t.Fatalf("the index has %d bytes", len(index))
	}
	f := fetcher(t, Options{})
	r := chartRequest{chart: "web", version: "*"}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	entry, err := r.find(index)
	runtime.ReadMemStats(&after)
	if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; err != nil || entry.Version != "1.0.0" || grown > 32 {
		t.Errorf("found %s with %d MiB: %v", entry.Version, grown, err)
	}
	if a, err := f.Fetch(t.Context(), "default", helmSource(base, "web", "")); err != nil || !strings.HasPrefix(a.Ref, "1.0.0@sha256:") {
		t.Errorf("%s: %v", a.Ref, err)
	}
	for _, tt := range []struct {
		name  string
		index []byte
		want  string
		kind  error
	}{
		{"another chart", large, "is not in the repository, which has 2202 others", fleet.ErrNotFound},
		{"more", append(large, make([]byte, MaxIndexBytes)...), "its index.yaml has more than 32 MiB: remove versions", fleet.ErrExhausted},
		{"on one line", []byte("entries: {" + strings.Repeat(" ", maxReadBytes) + "}"), "has no list of charts in lines of their own", fleet.ErrExhausted},
		{"one chart", []byte("entries:\n  none:\n  - version: 1.0.0\n" + strings.Repeat("    # more\n", maxReadBytes/8)), "more than 4 MiB of this chart alone", fleet.ErrExhausted},
	} {
		index = tt.index
		if _, err := f.Fetch(t.Context(), "default", helmSource(base, "none", "")); !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
