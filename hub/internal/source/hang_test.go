package source

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
)

// TestServerThatHangsHoldsUpNoOther: modules wait for a server that stops in the middle of an answer, and those of others are fetched.
func TestServerThatHangsHoldsUpNoOther(t *testing.T) {
	hung := make(chan struct{})
	hangAt := func(next http.Handler, at func(*http.Request) bool) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if !at(req) {
				next.ServeHTTP(w, req)
				return
			}
			_, _ = io.Copy(io.Discard, req.Body) // before that nobody sees that the client has left
			w.Header().Set("Content-Type", "application/x-git-upload-pack-result")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case hung <- struct{}{}:
				<-req.Context().Done()
			case <-req.Context().Done():
			}
		}
	}
	r := sourcetest.NewRepo(t)
	r.Branch("main", map[string]any{"a.yaml": "a"})
	reg := sourcetest.NewRegistry(t, func(h http.Handler) http.Handler {
		return hangAt(h, func(req *http.Request) bool {
			return req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/")
		})
	})
	reg.Push("shop", "latest", "application/x", archiveOf(t, "a"))
	reg.Push("web", "1.0.0", "application/vnd.cncf.helm.config.v1+json", sourcetest.Layer{Type: chartLayer, Data: chart(t, "1.0.0")})
	good := httpSource(serve(t, body(zip(t, tarOf(t, file("a.yaml", manifestText))))) + "/a.tgz")
	for name, src := range map[string]*towlinev1.Source{
		"git":                   gitSource(serve(t, hangAt(r.Handler(), func(req *http.Request) bool { return req.Method == http.MethodPost }))+"/repo.git", nil),
		"oci":                   ociSource(reg.Host, "shop", nil),
		"helm":                  helmSource(serve(t, hangAt(repository(t, "1.0.0"), func(req *http.Request) bool { return strings.HasSuffix(req.URL.Path, ".tgz") }))+"/charts", "web", ""),
		"a chart of a registry": helmSource("oci://"+reg.Host, "web", ""),
	} {
		t.Run(name, func(t *testing.T) {
			f := fetcher(t, Options{})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			for range maxUnpacking {
				go func() {
					_, _ = f.Fetch(ctx, "default", src)
					ended <- struct{}{}
				}()
			}
			for range maxUnpacking {
				<-hung
			}
			if _, err := f.Fetch(t.Context(), "default", good); err != nil {
				t.Errorf("another server: %v", err)
			}
			cancel()
			for range maxUnpacking {
				<-ended
			}
		})
	}
}
