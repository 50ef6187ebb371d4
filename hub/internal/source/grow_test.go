package source

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"path"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// allocates is how much a function allocates, in MiB.
func allocates(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return (after.TotalAlloc - before.TotalAlloc) >> 20
}

// repeated is YAML that says a long string many times.
func repeated() string {
	return "x: &a " + strings.Repeat("z", 50<<10) + "\ny:\n" + strings.Repeat("- *a\n", 2000)
}

// TestIndexesThatGrow: a small index takes little memory, whatever it says.
func TestIndexesThatGrow(t *testing.T) {
	const good = "entries:\n  shop:\n  - version: 1.0.0\n    urls: [shop.tgz]\n"
	for name, index := range map[string]string{
		"one key many times":             strings.Repeat("a:\n", 4000) + good,
		"one key many times in an entry": good + strings.Repeat("    a:\n", 4000),
		"one chart many times":           "entries:\n" + strings.Repeat("  a:\n", 4000),
		"an alias many times":            repeated() + good,
	} {
		r := chartRequest{chart: "shop", version: "1.0.0"}
		if grown := allocates(func() { _, _ = r.find([]byte(index)) }); grown > 64 {
			t.Errorf("%s: %d MiB for %d bytes", name, grown, len(index))
		}
	}
}

// TestIndexOfManyKeys: the time that an index takes is that of its size.
func TestIndexOfManyKeys(t *testing.T) {
	var b strings.Builder
	for i := range 300_000 {
		b.WriteString(strings.Repeat(string(rune('a'+i%26)), 1+i%3))
		b.WriteString(time.Duration(i).String())
		b.WriteString(":\n")
	}
	b.WriteString("entries:\n  shop:\n  - version: 1.0.0\n    urls: [shop.tgz]\n")
	ended := make(chan error, 1)
	go func() {
		_, err := chartRequest{chart: "shop", version: "1.0.0"}.find([]byte(b.String()))
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("an index of 4 MiB is read for more than 30 s")
	}
}

// TestChartsThatGrow: what a chart says of itself takes little memory, whatever it says.
func TestChartsThatGrow(t *testing.T) {
	for _, name := range []string{"Chart.yaml", "requirements.yaml"} {
		files := map[string][]byte{"Chart.yaml": []byte("name: a\nversion: 1.0.0\n")}
		files[name] = []byte("name: a\nversion: 1.0.0\n" + repeated())
		if grown := allocates(func() { readChart(files, ".") }); grown > 64 {
			t.Errorf("%s: %d MiB for %d bytes", name, grown, len(files[name]))
		}
	}
}

// TestVendorStopsInTime: no more is fetched when what a chart depends on is more than an artifact may have.
func TestVendorStopsInTime(t *testing.T) {
	var archives atomic.Int32
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	zeros := string(noise) + strings.Repeat("0", 59<<20)
	var charts []map[string]string
	own := map[string][]byte{}
	text := "apiVersion: v2\nname: all\nversion: 1.0.0\ndependencies:\n"
	for _, v := range []string{"1.0.0", "1.0.1", "1.0.2", "1.0.3", "1.0.4", "1.0.5"} {
		charts = append(charts, map[string]string{"Chart.yaml": "apiVersion: v2\nname: big\nversion: " + v + "\n", "data": zeros})
		text += "- {name: big, version: " + v + ", repository: REPO}\n"
	}
	repo := sourcetest.ServeCharts(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if path.Ext(req.URL.Path) == ".tgz" {
				archives.Add(1)
			}
			h.ServeHTTP(w, req)
		})
	}, charts...)
	own["Chart.yaml"] = []byte(strings.ReplaceAll(text, "REPO", repo))
	src := httpSource(repo)
	src.Http.Timeout = "10m" // it is the bytes that must stop it: the race detector takes seconds for each archive
	_, err := fetcher(t, Options{}).Vendor(t.Context(), "default", src, ".", newArtifact(own))
	if err == nil || !strings.Contains(err.Error(), "have more than 200 MiB unpacked") || archives.Load() > 4 {
		t.Errorf("%d archives were fetched: %v", archives.Load(), err)
	}
}

// TestArchivesInChartsAreLookedIntoForSoLong: of all archives in charts/ together no more is unpacked than an artifact may have.
func TestArchivesInChartsAreLookedIntoForSoLong(t *testing.T) {
	big := sourcetest.Archive(t, map[string]string{"x/a": strings.Repeat("0", 15<<20)})
	files := map[string][]byte{"Chart.yaml": []byte("apiVersion: v2\nname: a\nversion: 1.0.0\ndependencies:\n- {name: b, version: 1.0.0, repository: https://example.test}\n")}
	for i := range 40 {
		files["charts/"+time.Duration(i).String()+".tgz"] = big
	}
	_, err := fetcher(t, Options{}).Vendor(t.Context(), "default", httpSource("http://example.test"), ".", newArtifact(files))
	if err == nil || !strings.Contains(err.Error(), "charts/ has archives of more than 200 MiB") {
		t.Errorf("got %v", err)
	}
}

// TestChartOfManyDependencies: nothing is fetched for a chart that depends on more than is looked at, nor are all of them held against all that
// is in charts/.
func TestChartOfManyDependencies(t *testing.T) {
	asked := atomic.Int32{}
	repo := serve(t, func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	text := "apiVersion: v2\nname: all\nversion: 1.0.0\ndependencies:\n" + strings.Repeat("- {name: big, version: 1.0.0, repository: "+repo+"}\n", maxDependencies+1)
	_, err := fetcher(t, Options{}).Vendor(t.Context(), "default", httpSource(repo), ".", newArtifact(map[string][]byte{"Chart.yaml": []byte(text)}))
	if !errors.Is(err, fleet.ErrExhausted) || asked.Load() != 0 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}
