package canaries

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"towline.dev/towline/test/lab"
)

// serveSources is a server of sources and gates that repeats in its errors all that it was sent, as bad servers do. Paths below /ok are
// content with success, and /elsewhere leads to another name of the machine, with what was asked.
func serveSources(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		user, password, _ := r.BasicAuth()
		switch {
		case strings.HasPrefix(r.URL.Path, "/ok"):
			_, _ = io.WriteString(w, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: fetched, namespace: default}\n")
		case strings.HasPrefix(r.URL.Path, "/elsewhere"):
			to := *r.URL
			to.Scheme, to.Host, to.Path = "http", strings.Replace(r.Host, "127.0.0.1", "localhost", 1), "/refused"
			http.Redirect(w, r, to.String(), http.StatusFound)
		case strings.HasSuffix(r.URL.Path, "/info/refs"):
			line := fmt.Sprintf("ERR no access for %s:%s by %s", user, password, r.Header.Get("Authorization"))
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = fmt.Fprintf(w, "%04x%s", len(line)+4, line)
		case strings.HasSuffix(r.URL.Path, "/index.yaml"):
			_, _ = fmt.Fprintf(w, "apiVersion: v1\nentries: {x: [%s\n%s: %v", password, user, r.Header)
		default:
			w.Header().Set("X-Seen", r.Header.Get("Authorization"))
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, "forbidden: %s %s %s %s %v %s", r.URL, r.RequestURI, user, password, r.Header, body)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// behind is a kubeconfig by which an agent reaches the API server of a cluster through one that gives pods a log, which nodes of the lab
// have none of, and refuses ConfigMaps named denied as an admission webhook may: with all that was sent.
func behind(t *testing.T, c *lab.Cluster, log string) string {
	t.Helper()
	transport, err := rest.TransportFor(c.Config)
	must(t, err)
	to, err := url.Parse(c.Config.Host)
	must(t, err)
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }} // of watches that the agent ends
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/log"):
			_, _ = io.WriteString(w, log)
		case r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/configmaps/denied"):
			body, _ := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Forbidden","code":403,"message":%q}`,
				"admission webhook \"policy.example.com\" denied the request: "+string(bytes.TrimSpace(body)))
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(srv.CloseClientConnections)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, os.WriteFile(path, []byte("apiVersion: v1\nkind: Config\ncurrent-context: lab\nclusters: [{name: lab, cluster: {server: "+srv.URL+"}}]\n"+
		"users: [{name: lab, user: {}}]\ncontexts: [{name: lab, context: {cluster: lab, user: lab}}]\n"), 0o600))
	return path
}
