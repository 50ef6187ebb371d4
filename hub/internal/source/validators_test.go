package source

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// fileServer serves one file, and counts how often all of it was sent.
type fileServer struct {
	text, etag string
	modified   time.Time
	full       int
	to         string // redirects there
}

func (s *fileServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if s.to != "" && req.URL.Path == "/a.yaml" {
		http.Redirect(w, req, s.to, http.StatusFound)
		return
	}
	if s.etag != "" {
		w.Header().Set("ETag", s.etag)
	}
	counted := &counter{ResponseWriter: w, full: &s.full}
	http.ServeContent(counted, req, "a.yaml", s.modified, strings.NewReader(s.text))
}

type counter struct {
	http.ResponseWriter
	full *int
}

func (c *counter) WriteHeader(code int) {
	if code == http.StatusOK {
		*c.full++
	}
	c.ResponseWriter.WriteHeader(code)
}

// TestKnownFilesAreNotSentAgain: a file that the server calls unchanged is not sent again, by its tag or by the time of its change; what has changed is,
// and no answer about another file is believed.
func TestKnownFilesAreNotSentAgain(t *testing.T) {
	old := time.Now().Add(-24 * time.Hour).UTC().Truncate(time.Second)
	for name, tt := range map[string]struct {
		server fileServer
		change func(*fileServer)
		full   int // after two fetches, a change, and two more
	}{
		"by tag":           {fileServer{etag: `"1"`}, func(s *fileServer) { s.etag = `"2"` }, 2},
		"by time":          {fileServer{modified: old}, func(s *fileServer) { s.modified = old.Add(time.Hour) }, 2},
		"by neither":       {fileServer{}, func(*fileServer) {}, 4},
		"just changed":     {fileServer{modified: time.Now()}, func(*fileServer) {}, 4},
		"put back in time": {fileServer{modified: old}, func(s *fileServer) { s.modified = old.Add(-time.Hour) }, 2},
		"redirected":       {fileServer{modified: old, to: "/b.yaml"}, func(*fileServer) {}, 4},
		"then redirected":  {fileServer{modified: old, etag: `"1"`}, func(s *fileServer) { s.to = "/b.yaml" }, 3},
		"then direct":      {fileServer{modified: old, to: "/b.yaml"}, func(s *fileServer) { s.to = "" }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := tt.server
			url := serve(t, s.ServeHTTP) + "/a.yaml"
			f := fetcher(t, Options{CacheDir: t.TempDir()})
			for i := range 4 {
				if i%2 == 0 {
					s.text = fmt.Sprintf("%s# %d\n", manifestText, i)
				}
				if i == 2 {
					tt.change(&s)
				}
				a, err := f.Fetch(t.Context(), "default", httpSource(url))
				if err != nil || string(a.Files["a.yaml"]) != s.text || a.Ref != "" || a.Digest.IsZero() {
					t.Fatalf("fetch %d: %q %q: %v", i, a.Files["a.yaml"], a.Ref, err)
				}
			}
			if s.full != tt.full {
				t.Errorf("all of it was sent %d times, want %d", s.full, tt.full)
			}
		})
	}
}

// TestServersAreNotBelievedForLong: one hour after it was fetched, a file is fetched again, by whatever its server says that it is the same.
func TestServersAreNotBelievedForLong(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	h := http.Header{"Last-Modified": {now.Add(-time.Hour).UTC().Format(http.TimeFormat)}, "Date": {now.UTC().Format(http.TimeFormat)}}
	v := readValidators(validatorsOf(h, false, now).String())
	atItsTime := func(v validators) bool {
		return v.ask(http.Header{}, now.Add(59*time.Minute)) && !v.ask(http.Header{}, now.Add(time.Hour)) && !v.ask(http.Header{}, now.Add(-time.Minute))
	}
	if !atItsTime(v) {
		t.Errorf("%v is asked about at the wrong time", v)
	}
	h.Set("ETag", `W/"1"`)
	if v := readValidators(validatorsOf(h, false, now).String()); !atItsTime(v) || !v.hold(http.Header{"Etag": {`"1"`}}, false) || v.hold(http.Header{"Etag": {`"2"`}}, false) {
		t.Errorf("%v has a tag", v)
	}
	for _, text := range []string{"", "%", "etag=1&at=x"} {
		if v := readValidators(text); v.ask(http.Header{}, now) {
			t.Errorf("%q is read as %v", text, v)
		}
	}
}
