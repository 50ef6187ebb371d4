package source

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestIndexThatIsAmbiguous: an index that leaves open which value is meant is refused, as Helm refuses it, also a large one; one that is
// written in another way is read.
func TestIndexThatIsAmbiguous(t *testing.T) {
	const one = "entries:\n  web:\n  - version: 1.0.0\n    urls: [a]\n"
	many := one + "  filler:\n" + strings.Repeat("  - version: 1.0.0\n", maxReadBytes/15)
	good := chartEntry{Version: "1.0.0", URLs: []string{"a"}, Digest: "abc"}
	for name, tt := range map[string]struct {
		index, want string
	}{
		"entries twice":          {one + one, `"entries" for the second time`},
		"a chart twice":          {one + strings.TrimPrefix(one, "entries:\n"), `"web" for the second time`},
		"a chart twice, large":   {many + strings.TrimPrefix(one, "entries:\n"), `"web" for the second time`},
		"entries twice, large":   {many + one, `"web" for the second time`},
		"a version twice":        {one + "    version: 2.0.0\n", `line 5 has "version" for the second time`},
		"a digest twice":         {one + "    digest: abc\n    digest: def\n", `"digest" for the second time`},
		"a merge with a digest":  {"x: &x {digest: abc}\n" + one + "    <<: *x\n", "line 6 merges a map into another by <<"},
		"a merge of all charts":  {"x: &x {web: []}\n" + one + "  <<: *x\n", "merges a map into another by <<"},
		"JSON":                   {`{"entries":{"web":[{"version":"1.0.0","urls":["a"],"digest":"abc"}]}}`, ""},
		"aliases":                {"x: &x [a]\ny: &y digest\nentries:\n  web:\n  - version: 1.0.0\n    urls: *x\n    *y : abc\n", ""},
		"a mark and CRLF":        {"\ufeffentries:\r\n  \"web\":\r\n  -\r\n  - version: '1.0.0'\r\n    urls:\r\n    - a\r\n    digest: abc\r\n", ""},
		"another merge, ignored": {one + "    digest: abc\n    annotations: {<<: {a: b}, a: c}\n", ""},
	} {
		e, err := chartRequest{chart: "web", version: "*"}.find([]byte(tt.index))
		if tt.want == "" {
			if diff := cmp.Diff(good, e); diff != "" || err != nil {
				t.Errorf("%s: %v %s", name, err, diff)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %+v, %v, want %s", name, e, err, tt.want)
		}
	}
}
