package source

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const manifestText = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"

func fetcher(t *testing.T, opts Options) *Fetcher {
	t.Helper()
	if opts.RetryWait == 0 {
		opts.RetryWait = time.Millisecond
	}
	opts.TempDir = t.TempDir()
	f, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func httpSource(u string) *towlinev1.Source {
	return &towlinev1.Source{Http: &towlinev1.HttpSource{Url: u, Timeout: "20s"}}
}

func serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func body(data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) }
}

func TestFetchFile(t *testing.T) {
	base := serve(t, body([]byte(manifestText)))
	for path, name := range map[string]string{"/x/shop.yaml?token=1": "shop.yaml", "/raw": "manifest.yaml", "": "manifest.yaml", "/.yaml": "manifest.yaml", "/a%5Cb.yaml": "manifest.yaml"} {
		a, err := fetcher(t, Options{}).Fetch(t.Context(), "default", httpSource(base+path))
		if err != nil {
			t.Fatal(err)
		}
		if string(a.Files[name]) != manifestText || len(a.Files) != 1 {
			t.Errorf("%s: %v", path, a.Files)
		}
	}
}

func TestFetchArchive(t *testing.T) {
	packed := zip(t, tarOf(t, file("b/b.yaml", "b"), file("a.yaml", "a")))
	base := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip") // as some servers say of a tar.gz; the digest is of what they send
		_, _ = w.Write(packed)
	})
	src := httpSource(base + "/download")
	src.Http.Sha256 = fleet.DigestOf(packed).String()
	a, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src)
	if err != nil {
		t.Fatal(err)
	}
	again := zip(t, tarOf(t, special("b/", '5', ""), file("a.yaml", "a"), file("./b/b.yaml", "b")))
	b, err := fetcher(t, Options{}).Fetch(t.Context(), "default", httpSource(serve(t, body(again))))
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest != b.Digest || string(a.Files["b/b.yaml"]) != "b" {
		t.Errorf("the same files packed in two ways: %s, %s", a.Digest, b.Digest)
	}
}

// TestFileThatSaysNothing: what a program prints that found nothing, or failed, is no file without objects, by which a module that may be empty
// would lose all that it has. A comment says that nothing is meant, and so does an empty List.
func TestFileThatSaysNothing(t *testing.T) {
	for text, refused := range map[string]bool{
		"null": true, "null\n": true, "~\n": true, "---\n": true, "--- null\n...\n": true, "\ufeff---\r\n---\r\n": true,
		"# nothing\n": false, "---\n# nothing\n": false, "apiVersion: v1\nkind: List\nitems: []\n": false,
	} {
		_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", httpSource(serve(t, body([]byte(text)))))
		if (err != nil) != refused || refused && !strings.Contains(err.Error(), "is empty: check what the server serves") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestHostileServers: each gives an error that names the source and what is wrong, and shows no secret of the URL.
func TestHostileServers(t *testing.T) {
	wait := func(r *http.Request) { <-r.Context().Done() }
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
		kind    error
		edit    func(*towlinev1.HttpSource)
	}{
		{"404", status(404), "the server answers 404 Not Found: check source.http.url", fleet.ErrNotFound, nil},
		{"408", status(408), "408 Request Timeout, and is to be asked again later", fleet.ErrUnavailable, nil},
		{"403 for a while", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(403)
		}, "403 Forbidden, and is to be asked again later", fleet.ErrUnavailable, nil},
		{"403 for want of what is left", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-RateLimit-Remaining", "0")
			w.WriteHeader(403)
		}, "403 Forbidden, and is to be asked again later", fleet.ErrUnavailable, nil},
		{"403", status(403), "403 Forbidden: the hub must be allowed to read it", fleet.ErrDenied, nil},
		{"500", status(500), "500 Internal Server Error, after 3 retries too", fleet.ErrUnavailable, nil},
		{"204", status(204), "204 No Content, not 200 OK", fleet.ErrInvalid, nil},
		{"304", status(304), "304 Not Modified, not 200 OK", fleet.ErrInvalid, nil},
		{"empty", body(nil), "is empty", fleet.ErrInvalid, nil},
		{"login page", body([]byte("\n<!DOCTYPE html><html>")), "is an HTML or XML page, perhaps one to log in", fleet.ErrInvalid, nil},
		{"zip", body([]byte("PK\x03\x04\x00\x00\xff")), "is a zip archive: serve a YAML or JSON file or a tar.gz", fleet.ErrInvalid, nil},
		{"plain tar", body(tarOf(t, file("a", "a"))), "is a tar without gzip", fleet.ErrInvalid, nil},
		{"binary", body([]byte{0, 1, 2, 0xff}), "is neither YAML, JSON nor a tar.gz", fleet.ErrInvalid, nil},
		{"bad archive", body(zip(t, tarOf(t, file("../a", "")))), `archive entry "../a" leads outside`, fleet.ErrInvalid, nil},
		{"truncated gzip", body(zip(t, tarOf(t, file("a", "a")))[:60]), "is cut off", fleet.ErrInvalid, nil},
		{"wrong digest", body([]byte(manifestText)), "has SHA-256 " + fleet.DigestOf([]byte(manifestText)).String() + ", but " + strings.Repeat("ab", 32) + " is wanted",
			fleet.ErrCorrupt, func(s *towlinev1.HttpSource) { s.Sha256 = strings.Repeat("ab", 32) }},
		{"large by its word", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(10<<30))
			w.WriteHeader(200)
		}, "has more than 16 MiB", fleet.ErrExhausted, nil},
		{"endless", func(w http.ResponseWriter, r *http.Request) {
			for chunk := make([]byte, 64<<10); r.Context().Err() == nil; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, "has more than 16 MiB", fleet.ErrExhausted, nil},
		{"slow drip", func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("a"))
			w.(http.Flusher).Flush()
			wait(r)
		}, "did not arrive within 300ms: look at the server, or raise source.http.timeout", fleet.ErrUnavailable, func(s *towlinev1.HttpSource) { s.Timeout = "300ms" }},
		{"no answer", func(_ http.ResponseWriter, r *http.Request) { wait(r) }, "did not arrive within 300ms", fleet.ErrUnavailable, func(s *towlinev1.HttpSource) { s.Timeout = "300ms" }},
		{"asks to wait for a day", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(503)
		}, "did not arrive within 300ms", fleet.ErrUnavailable, func(s *towlinev1.HttpSource) { s.Timeout = "300ms" }},
		{"less than it says", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(manifestText))
		}, "broke off before its end", fleet.ErrUnavailable, nil},
		{"says nowhere where it ends", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + manifestText))
				_ = conn.Close()
			}
		}, "may be cut off", fleet.ErrInvalid, nil},
		{"a part as the whole", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/1000", len(manifestText)-1))
			_, _ = w.Write([]byte(manifestText))
		}, "is a part of it, by its Content-Range", fleet.ErrInvalid, nil},
		{"closes at once", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "cannot be reached", fleet.ErrUnavailable, nil},
		{"redirect loop", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.String()+"x", http.StatusFound)
		}, "is redirected more than 5 times", fleet.ErrDenied, nil},
		{"to metadata", redirect("http://169.254.169.254/latest/meta-data"), "address 169.254.169.254 is link-local or a metadata service", fleet.ErrDenied, nil},
		{"to mapped metadata", redirect("http://[::ffff:169.254.169.254]/"), "link-local or a metadata service", fleet.ErrDenied, nil},
		{"to a file", redirect("file:///etc/passwd"), "redirects to file: only http and https", fleet.ErrDenied, nil},
		{"to nothing", redirect("http://%zz?secret-token"), "it redirects to what is no URL", fleet.ErrUnavailable, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base := serve(t, tt.handler)
			src := httpSource(strings.Replace(base, "http://", "http://user:secret-password@", 1) + "/dir/a.yaml?token=secret-token")
			if tt.edit != nil {
				tt.edit(src.Http)
			}
			var log bytes.Buffer
			f := fetcher(t, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			_, err := f.Fetch(t.Context(), "default", src)
			if err == nil || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v\nwant %s (%v)", err, tt.want, tt.kind)
			}
			if !strings.Contains(err.Error(), "source "+base+"/dir/a.yaml: ") {
				t.Errorf("does not name the source: %v", err)
			}
			for _, text := range []string{err.Error(), log.String()} {
				if strings.Contains(text, "secret-") {
					t.Errorf("shows a secret: %s", text)
				}
			}
		})
	}
}

func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusFound)
	}
}

func TestRecovers(t *testing.T) {
	var calls atomic.Int32
	for name, fail := range map[string]http.HandlerFunc{
		"5xx": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		"429": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) },
		"cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"half": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(manifestText)))
			_, _ = w.Write([]byte(manifestText[:10]))
		},
	} {
		t.Run(name, func(t *testing.T) {
			calls.Store(0)
			base := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) <= 2 {
					fail(w, r)
					return
				}
				_, _ = w.Write([]byte(manifestText))
			})
			a, err := fetcher(t, Options{}).Fetch(t.Context(), "default", httpSource(base+"/a.yaml"))
			if err != nil || string(a.Files["a.yaml"]) != manifestText {
				t.Errorf("after %d calls: %v", calls.Load(), err)
			}
		})
	}
}

func TestRefusedIsNotRetried(t *testing.T) {
	var calls atomic.Int32
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		redirect("http://169.254.169.254/")(w, r)
	})
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", httpSource(base)); err == nil || calls.Load() != 1 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
}

func TestDigestOfZerosPinsNothing(t *testing.T) {
	src := httpSource(serve(t, body([]byte(manifestText))) + "/a.yaml")
	src.Http.Sha256 = strings.Repeat("0", 64)
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src); !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "is all zeros") {
		t.Errorf("got %v", err)
	}
}

// TestCredentialsStayAtTheirHost: what is in the URL goes to its host only, and there also after a redirect.
func TestCredentialsStayAtTheirHost(t *testing.T) {
	var other http.Header
	thief := serve(t, func(w http.ResponseWriter, r *http.Request) {
		other = r.Header.Clone()
		_, _ = w.Write([]byte(manifestText))
	})
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "password" {
			w.WriteHeader(401)
			return
		}
		if r.URL.Path == "/first" {
			http.Redirect(w, r, "http://"+r.Host+"/second", http.StatusFound)
			return
		}
		http.Redirect(w, r, strings.Replace(thief, "127.0.0.1", "localhost", 1), http.StatusFound)
	})
	src := httpSource(strings.Replace(base, "http://", "http://user:password@", 1) + "/first?token=secret")
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src); err != nil {
		t.Fatal(err)
	}
	for _, h := range []string{"Authorization", "Referer", "Cookie"} {
		if got := other.Get(h); got != "" {
			t.Errorf("the other host got %s: %s", h, got)
		}
	}
}

func TestTLS(t *testing.T) {
	plain := serve(t, body([]byte(manifestText)))
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/down" {
			http.Redirect(w, r, plain, http.StatusFound)
			return
		}
		_, _ = w.Write([]byte(manifestText))
	}))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	if _, err := fetcher(t, Options{RootCAs: roots}).Fetch(t.Context(), "default", httpSource(s.URL)); err != nil {
		t.Error(err)
	}
	_, err := fetcher(t, Options{RootCAs: roots}).Fetch(t.Context(), "default", httpSource(s.URL+"/down"))
	if !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "redirects from https to http") {
		t.Errorf("downgrade: %v", err)
	}
	_, err = fetcher(t, Options{}).Fetch(t.Context(), "default", httpSource(s.URL))
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("unknown authority: %v", err)
	}
}

func TestURLs(t *testing.T) {
	f := fetcher(t, Options{})
	for _, tt := range []struct{ url, want string }{
		{"", "source.http.url: is no URL"},
		{"/a.yaml", "is no URL"},
		{"http://:80/", "is no URL"},
		{"http://user:secret@%zz", "is no URL"},
		{"file:///etc/passwd", "is no URL"},
		{"ftp://host/a", "begins with ftp: only http and https are allowed"},
		{"ext::sh -c x", "is no URL"},
		{"http://169.254.169.254/", "address 169.254.169.254 is link-local"},
		{"http://[fe80::1]/", "is link-local"},
		{"http://0.0.0.0/", "is no server's"},
	} {
		_, err := f.Fetch(t.Context(), "default", httpSource(tt.url))
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", tt.url, err)
		}
	}
	for _, edit := range []func(*towlinev1.HttpSource){
		func(s *towlinev1.HttpSource) { s.Timeout = "soon" },
		func(s *towlinev1.HttpSource) { s.Timeout = "-1s" },
		func(s *towlinev1.HttpSource) { s.Timeout = "1h" },
		func(s *towlinev1.HttpSource) { s.Sha256 = "abc" },
	} {
		src := httpSource("http://127.0.0.1/")
		edit(src.Http)
		if _, err := f.Fetch(t.Context(), "default", src); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%v: %v", src, err)
		}
	}
}

// TestDenyPrivate: a name that means a private address is refused when it is dialled.
func TestDenyPrivate(t *testing.T) {
	var calls atomic.Int32
	base := serve(t, func(http.ResponseWriter, *http.Request) { calls.Add(1) })
	_, port, err := net.SplitHostPort(strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = fetcher(t, Options{DenyPrivate: true}).Fetch(t.Context(), "default", httpSource("http://localhost:"+port))
	if !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "is loopback or private") || calls.Load() != 0 {
		t.Errorf("%d calls, %v", calls.Load(), err)
	}
}

// TestProxyIsNoWayAround: a proxy would dial for us what stands in the URL, in whatever way that is written, and where a redirect or an
// answer leads.
func TestProxyIsNoWayAround(t *testing.T) {
	var asked atomic.Value
	var answer atomic.Value // what example.test answers
	answer.Store(body([]byte(manifestText)))
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if asked.Store(r.URL.Host); r.URL.Host != "example.test" {
			return
		}
		answer.Load().(http.HandlerFunc)(w, r)
	})
	u, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	f := fetcher(t, Options{Proxy: http.ProxyURL(u)})
	if _, err := f.Fetch(t.Context(), "default", httpSource("http://example.test/a.yaml")); err != nil || asked.Load() != "example.test" {
		t.Errorf("through the proxy: %v, %v", asked.Load(), err)
	}
	for _, host := range []string{"169.254.169.254", "2852039166", "0xa9fea9fe", "169.254.43518", "169.254.169.254.", "metadata.google.internal", "[::ffff:169.254.169.254]"} {
		realm := fmt.Sprintf("Bearer realm=%q,service=%q", "http://"+host+"/token", "x")
		for name, way := range map[string]struct {
			src    *towlinev1.Source
			answer http.HandlerFunc
		}{
			"http":          {httpSource("http://" + host + "/latest"), nil},
			"http redirect": {httpSource("http://example.test/a.yaml"), redirect("http://" + host + "/latest")},
			"git":           {gitSource("http://"+host+"/latest", nil), nil},
			"git redirect":  {gitSource("http://example.test/a.git", nil), redirect("http://" + host + "/latest")},
			"helm":          {helmSource("http://"+host+"/charts", "shop", "1.0.0"), nil},
			"helm archive":  {helmSource("http://example.test/charts", "shop", "1.0.0"), body([]byte("entries: {shop: [{version: 1.0.0, urls: ['http://" + host + "/x']}]}"))},
			"oci redirect":  {ociSource("example.test", "shop", nil), redirect("http://" + host + "/latest")},
			"oci tokens": {ociSource("example.test", "shop", nil), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", realm)
				w.WriteHeader(http.StatusUnauthorized)
			}},
		} {
			answer.Store(way.answer)
			asked.Store("")
			_, err := f.Fetch(t.Context(), "default", way.src)
			if got := asked.Load(); !errors.Is(err, fleet.ErrDenied) || got != "" && got != "example.test" {
				t.Errorf("%s, %s: the proxy was asked for %q: %v", host, name, got, err)
			}
		}
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	base := serve(t, func(_ http.ResponseWriter, r *http.Request) { cancel(); <-r.Context().Done() })
	if _, err := fetcher(t, Options{}).Fetch(ctx, "default", httpSource(base)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestRefusedFetchYieldsNothing: what a server had before is no answer to a fetch that it refuses now.
func TestRefusedFetchYieldsNothing(t *testing.T) {
	refuses := false
	base := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuses {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("ETag", `"1"`)
		_, _ = w.Write([]byte(manifestText))
	}))
	f := fetcher(t, Options{CacheDir: t.TempDir()})
	src := &towlinev1.Source{Http: &towlinev1.HttpSource{Url: base + "/shop.yaml"}}
	if _, err := f.Fetch(t.Context(), "default", src); err != nil {
		t.Fatal(err)
	}
	refuses = true
	if a, err := f.Fetch(t.Context(), "default", src); !errors.Is(err, fleet.ErrNotFound) || !a.Digest.IsZero() {
		t.Errorf("%v beside %v", a.Digest, err)
	}
}
