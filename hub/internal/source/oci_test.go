package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

const (
	fluxContent = "application/vnd.cncf.flux.content.v1.tar+gzip"
	ociArchive  = "application/vnd.oci.image.layer.v1.tar+gzip"
)

func ociSource(host, repository string, ref *towlinev1.OciRef) *towlinev1.Source {
	return &towlinev1.Source{Oci: &towlinev1.OciSource{Url: "oci://" + host + "/" + repository, Ref: ref, Insecure: true, Timeout: "20s"}}
}

func ociTag(tag string) *towlinev1.OciRef { return &towlinev1.OciRef{Tag: tag} }

// archiveOf is a layer with one file.
func archiveOf(t *testing.T, text string) sourcetest.Layer {
	return sourcetest.Layer{Type: fluxContent, Data: sourcetest.Archive(t, map[string]string{"a.yaml": text})}
}

func TestOCIRefs(t *testing.T) {
	reg := sourcetest.NewRegistry(t, nil)
	first := reg.Push("team/shop", "1.2.0", "application/x", archiveOf(t, "1"))
	second := reg.Push("team/shop", "v1.10.0", "application/x", archiveOf(t, "2"))
	reg.Push("team/shop", "2.0.0-rc.1", "application/x", archiveOf(t, "3"))
	reg.Push("team/shop", "latest", "application/x", archiveOf(t, "1"))
	f := fetcher(t, Options{CacheDir: t.TempDir()})
	for _, tt := range []struct {
		ref         *towlinev1.OciRef
		want, exact string
	}{
		{nil, "1", "latest@"},
		{ociTag("v1.10.0"), "2", "v1.10.0@" + second},
		{&towlinev1.OciRef{Digest: first}, "1", first},
		{&towlinev1.OciRef{Semver: "1.x"}, "2", "v1.10.0@" + second},
		{&towlinev1.OciRef{Semver: ">=2-0"}, "3", "2.0.0-rc.1@sha256:"},
	} {
		a, err := f.Fetch(t.Context(), "default", ociSource(reg.Host, "team/shop", tt.ref))
		if err != nil || string(a.Files["a.yaml"]) != tt.want || !strings.HasPrefix(a.Ref, tt.exact) {
			t.Errorf("%v: %s %q: %v", tt.ref, a.Ref, a.Files["a.yaml"], err)
		}
	}
	moved := reg.Push("team/shop", "v1.10.0", "application/x", archiveOf(t, "4"))
	if a, err := f.Fetch(t.Context(), "default", ociSource(reg.Host, "team/shop", ociTag("v1.10.0"))); err != nil || string(a.Files["a.yaml"]) != "4" || a.Ref != "v1.10.0@"+moved {
		t.Errorf("a tag that moved: %s, %v", a.Ref, err)
	}
	if a, err := f.Fetch(t.Context(), "default", ociSource(reg.Host, "team/shop", &towlinev1.OciRef{Digest: second})); err != nil || string(a.Files["a.yaml"]) != "2" {
		t.Errorf("what it was before: %s, %v", a.Ref, err)
	}
	for _, tt := range []struct {
		repository string
		ref        *towlinev1.OciRef
		want       string
	}{
		{"team/shop", ociTag("none"), "the server answers 404 Not Found: check source.oci.url and source.oci.ref"},
		{"team/none", nil, "404 Not Found"},
		{"team/shop", &towlinev1.OciRef{Semver: ">=3"}, `has no version in ">=3": the highest is 2.0.0-rc.1; check source.oci.ref.semver`},
		{"team/shop", &towlinev1.OciRef{Digest: "sha256:" + strings.Repeat("a", 64)}, "404 Not Found"},
	} {
		_, err := f.Fetch(t.Context(), "default", ociSource(reg.Host, tt.repository, tt.ref))
		if !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "source oci://"+reg.Host+"/"+tt.repository+": ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v", tt.ref, err)
		}
	}
}

func TestOCILayers(t *testing.T) {
	reg := sourcetest.NewRegistry(t, nil)
	folder := sourcetest.Archive(t, map[string]string{"deploy/a.yaml": "a", "deploy/sub/b.yaml": "b"})
	for name, tt := range map[string]struct {
		layers []sourcetest.Layer
		has    map[string]string
		want   string
	}{
		"flux":        {[]sourcetest.Layer{{Type: fluxContent, Title: "", Data: folder}}, map[string]string{"deploy/a.yaml": "a", "deploy/sub/b.yaml": "b"}, ""},
		"oras-folder": {[]sourcetest.Layer{{Type: ociArchive, Title: "deploy", Data: folder}}, map[string]string{"deploy/a.yaml": "a", "deploy/sub/b.yaml": "b"}, ""},
		"oras-files":  {[]sourcetest.Layer{{Type: "application/vnd.oci.image.layer.v1.tar", Title: "a.yaml", Data: []byte("a")}, {Type: "text/plain", Title: "sub/b.json", Data: []byte("{}")}, {Type: "text/plain", Title: "README.md", Data: []byte("x")}}, map[string]string{"a.yaml": "a", "sub/b.json": "{}"}, ""},
		"plain-yaml":  {[]sourcetest.Layer{{Type: "application/yaml", Title: "", Data: []byte("a")}}, map[string]string{"manifest.yaml": "a"}, ""},
		"chart":       {[]sourcetest.Layer{{Type: chartLayer, Title: "", Data: folder}, {Type: "application/vnd.cncf.helm.chart.provenance.v1.prov", Title: "", Data: []byte("x")}}, map[string]string{"deploy/a.yaml": "a", "deploy/sub/b.yaml": "b"}, ""},
		"readme":      {[]sourcetest.Layer{{Type: fluxContent, Data: folder}, {Type: "application/vnd.oci.image.layer.v1.tar", Title: "README.md", Data: []byte("x")}}, map[string]string{"deploy/a.yaml": "a", "deploy/sub/b.yaml": "b"}, ""},
		"tar":         {[]sourcetest.Layer{{Type: fluxContent, Data: folder}, {Type: "application/vnd.oci.image.layer.v1.tar", Data: folder}}, nil, "has a layer of the type application/vnd.oci.image.layer.v1.tar, which is not unpacked: pack it as tar+gzip"},
		"zstd":        {[]sourcetest.Layer{{Type: fluxContent, Data: folder}, {Type: "application/vnd.oci.image.layer.v1.tar+zstd", Title: "more", Data: folder}}, nil, "tar+zstd, which is not unpacked"},
		"nothing":     {[]sourcetest.Layer{{Type: "application/wasm", Title: "", Data: []byte("x")}}, nil, "has no layer that is an archive (tar+gzip) or a manifest with a name, but 1 others: application/wasm"},
		"unnamed":     {[]sourcetest.Layer{{Type: fluxContent, Data: folder}, {Type: "application/vnd.acme.manifests.v1", Data: []byte("x")}}, nil, "has a layer of the type application/vnd.acme.manifests.v1 that has no name, and is not read"},
		"zip":         {[]sourcetest.Layer{{Type: fluxContent, Data: folder}, {Type: "application/zip", Title: "more.zip", Data: []byte("x")}}, nil, `has the layer "more.zip", an archive that is not unpacked`},
		"tgz-file":    {[]sourcetest.Layer{{Type: "text/plain", Title: "a.yaml", Data: []byte("a")}, {Type: "application/vnd.oci.image.layer.v1.tar", Title: "more.tar.gz", Data: folder}}, nil, `has the layer "more.tar.gz", an archive that is not unpacked`},
		"besides":     {[]sourcetest.Layer{{Type: fluxContent, Data: folder}, {Type: "application/vnd.oci.empty.v1+json", Data: []byte("{}")}, {Type: "application/vnd.in-toto+json", Data: []byte("{}")}, {Type: "application/vnd.cncf.helm.chart.provenance.v1.prov", Data: []byte("x")}, {Type: "application/spdx+json", Data: []byte("{}")}}, map[string]string{"deploy/a.yaml": "a", "deploy/sub/b.yaml": "b"}, ""},
		"twice":       {[]sourcetest.Layer{{Type: ociArchive, Title: "", Data: folder}, {Type: "text/plain", Title: "deploy/a.yaml", Data: []byte("x")}}, nil, `has "deploy/a.yaml" in two layers`},
		"leads-out":   {[]sourcetest.Layer{{Type: "text/plain", Title: "../a.yaml", Data: []byte("x")}}, nil, `"../a.yaml" leads outside of the source`},
		"no-gzip":     {[]sourcetest.Layer{{Type: fluxContent, Title: "", Data: []byte("text")}}, nil, "archive is no gzip"},
		"links":       {[]sourcetest.Layer{{Type: fluxContent, Title: "", Data: zip(t, tarOf(t, special("a", '2', "/etc/passwd")))}}, nil, `archive entry "a" is a symbolic link`},
	} {
		t.Run(name, func(t *testing.T) {
			reg.Push("layers/"+name, "latest", "application/x", tt.layers...)
			a, err := fetcher(t, Options{}).Fetch(t.Context(), "default", ociSource(reg.Host, "layers/"+name, nil))
			if tt.want != "" {
				if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("got %v\nwant %s", err, tt.want)
				}
				return
			}
			if err != nil || len(a.Files) != len(tt.has) {
				t.Fatalf("%v, %v", a.Files, err)
			}
			for file, want := range tt.has {
				if string(a.Files[file]) != want {
					t.Errorf("%s: %q", file, a.Files[file])
				}
			}
		})
	}
	reg.PushIndex("layers/index", "latest")
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", ociSource(reg.Host, "layers/index", nil)); err == nil || !strings.Contains(err.Error(), "is an index of images for several platforms") {
		t.Errorf("an index: %v", err)
	}
}

// TestOCICache: what a digest names is fetched once.
func TestOCICache(t *testing.T) {
	var blobs, manifests atomic.Int32
	reg := sourcetest.NewRegistry(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/blobs/") {
				blobs.Add(1)
			}
			if req.Method == http.MethodGet && strings.Contains(req.URL.Path, "/manifests/") {
				manifests.Add(1)
			}
			h.ServeHTTP(w, req)
		})
	})
	digest := reg.Push("shop", "1", "application/x", archiveOf(t, "1"))
	blobs.Store(0)
	manifests.Store(0)
	f := fetcher(t, Options{CacheDir: t.TempDir()})
	for i, ref := range []*towlinev1.OciRef{ociTag("1"), ociTag("1"), {Digest: digest}} {
		a, err := f.Fetch(t.Context(), "default", ociSource(reg.Host, "shop", ref))
		if age := time.Since(a.Made); age < -time.Second || age > time.Minute { // oras notes it
			t.Errorf("%v: made at %v", ref, a.Made)
		}
		if err != nil || blobs.Load() != 1 || manifests.Load() != int32(min(i+1, 2)) {
			t.Errorf("%v: %d layers, %d manifests: %v", ref, blobs.Load(), manifests.Load(), err)
		}
	}
}

// TestOCILogins: by name and password, by a token of the registry's own service, and wrong ones.
func TestOCILogins(t *testing.T) {
	basic := sourcetest.NewRegistry(t, func(h http.Handler) http.Handler { return login(h.ServeHTTP, "bot", "hunter22") })
	var issued atomic.Int32
	tokens := httptest.NewServer(login(func(w http.ResponseWriter, _ *http.Request) {
		issued.Add(1)
		_ = json.NewEncoder(w).Encode(map[string]string{"token": "issued-token"})
	}, "bot", "hunter22"))
	t.Cleanup(tokens.Close)
	open := sourcetest.NewRegistry(t, nil)
	open.Push("shop", "latest", "application/x", archiveOf(t, "1"))
	behind := func(challenge, accepts string) string { // the registry, where a token is wanted
		return strings.TrimPrefix(serve(t, func(w http.ResponseWriter, req *http.Request) {
			if req.Header.Get("Authorization") != accepts {
				w.Header().Set("WWW-Authenticate", challenge)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			again, err := http.NewRequestWithContext(req.Context(), req.Method, "http://"+open.Host+req.URL.Path, nil)
			if err != nil {
				w.WriteHeader(500)
				return
			}
			resp, err := http.DefaultClient.Do(again)
			if err != nil {
				w.WriteHeader(502)
				return
			}
			defer func() { _ = resp.Body.Close() }()
			for _, name := range []string{"Content-Type", "Content-Length", "Docker-Content-Digest"} {
				w.Header().Set(name, resp.Header.Get(name))
			}
			w.WriteHeader(resp.StatusCode)
			_, _ = io.Copy(w, resp.Body)
		}), "http://")
	}
	byToken := behind(fmt.Sprintf("Bearer realm=%q,service=%q", tokens.URL+"/token", "reg"), "Bearer issued-token")
	private := strings.Replace(tokens.URL, "127.0.0.1", "localhost", 1)
	elsewhere := behind(fmt.Sprintf("Bearer realm=%q,service=%q", private+"/token", "reg"), "Bearer issued-token")
	basicHost := behind(`Basic realm="r"`, "Basic Ym90Omh1bnRlcjIy") // bot:hunter22
	f := fetcher(t, Options{Secrets: secretsOf(map[string]map[string]string{
		"good": {"username": "bot", "password": "hunter22"}, "wrong": {"username": "bot", "password": "hunter23"}, "token": {"token": "issued-token"},
		"header": {"header.Authorization": "Bearer issued-token"}})})
	for _, tt := range []struct{ host, secret, want string }{
		{basicHost, "good", ""},
		{basicHost, "wrong", "401 Unauthorized: look at secret wrong"},
		{basicHost, "", "401 Unauthorized: the hub must be allowed to read it; name a secret that lets it in source.oci.secretName"},
		{byToken, "good", ""},
		{byToken, "token", ""},
		{elsewhere, "good", `the registry has its tokens issued where the hub sends no login: host "localhost" resolves to 127.0.0.1, a loopback`},
		{elsewhere, "good", `A host at a private address has to have the registry's own name; else set a token of it in the secret, as header.Authorization="Bearer TOKEN"`},
		{elsewhere, "header", ""},
		{byToken, "wrong", "401 Unauthorized: look at secret wrong"},
		{basic.Host, "wrong", "401 Unauthorized: look at secret wrong"},
	} {
		src := ociSource(tt.host, "shop", nil)
		src.Oci.SecretName = tt.secret
		_, err := f.Fetch(t.Context(), "default", src)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter")) {
			t.Errorf("%s with %q: %v", tt.host, tt.secret, err)
		}
	}
	if issued.Load() == 0 {
		t.Error("no token was asked for")
	}
}

// TestHostileRegistries: each gives an error that names the artifact and what is wrong, and shows no secret.
func TestHostileRegistries(t *testing.T) {
	var thief atomic.Value
	elsewhere := serve(t, func(w http.ResponseWriter, req *http.Request) {
		thief.Store(req.Header.Get("Authorization") + req.Header.Get("X-Own"))
		w.WriteHeader(404)
	})
	cut := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("half")) })
	wait := func(req *http.Request) { <-req.Context().Done() }
	status := func(code int) func(http.Handler) http.Handler {
		return func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) })
		}
	}
	on := func(part string, answer http.HandlerFunc) func(http.Handler) http.Handler {
		return func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				if strings.Contains(req.URL.Path, part) {
					answer(w, req)
					return
				}
				h.ServeHTTP(w, req)
			})
		}
	}
	endless := func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		for chunk := make([]byte, 64<<10); req.Context().Err() == nil; {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	other := sourcetest.Archive(t, map[string]string{"a.yaml": "another"})
	for _, tt := range []struct {
		name    string
		around  func(http.Handler) http.Handler
		want    string
		kind    error
		timeout string
	}{
		{"403", status(403), "403 Forbidden: look at secret login", fleet.ErrDenied, ""},
		{"503", status(503), "503 Service Unavailable, after 3 retries too", fleet.ErrUnavailable, ""},
		{"418", status(418), "418 I'm a teapot, not 200 OK", fleet.ErrInvalid, ""},
		{"endless manifest", on("/manifests/", endless), "did not arrive within 500ms", fleet.ErrUnavailable, "500ms"},
		{"manifest that is large by its word", on("/manifests/", func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(10<<30))
			endless(w, req)
		}), "more than", fleet.ErrExhausted, ""},
		{"a page", on("/manifests/", body([]byte("<html>"))), "has a manifest that cannot be read", fleet.ErrInvalid, ""},
		{"no kind", on("/manifests/", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			w.WriteHeader(200)
		}), "the server does not answer as a registry does", fleet.ErrInvalid, ""},
		{"another layer", on("/blobs/", body(other)), "sends something else than its digest says", fleet.ErrCorrupt, ""},
		{"half of a layer, at an address that is signed", on("/blobs/", redirect(cut+"/blob?sig=hunter-signed")), "sends something else than its digest says: mismatch Content-Length", fleet.ErrCorrupt, ""},
		{"drip of a layer", on("/blobs/", func(w http.ResponseWriter, req *http.Request) {
			_, _ = w.Write(other[:1])
			w.(http.Flusher).Flush()
			wait(req)
		}), "did not arrive within 500ms: look at the server, or raise source.oci.timeout", fleet.ErrUnavailable, "500ms"},
		{"breaks off", on("/blobs/", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "cannot be reached", fleet.ErrUnavailable, ""},
		{"layer at metadata", on("/blobs/", redirect("http://169.254.169.254/latest")), "address 169.254.169.254 is link-local", fleet.ErrDenied, ""},
		{"layer elsewhere", on("/blobs/", redirect(strings.Replace(elsewhere, "127.0.0.1", "localhost", 1)+"/blob")), "404 Not Found", fleet.ErrNotFound, ""},
		{"asks for tokens at metadata", func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("WWW-Authenticate", `Bearer realm="http://169.254.169.254/token",service="x"`)
				w.WriteHeader(401)
			})
		}, "169.254.169.254", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			good := sourcetest.NewRegistry(t, nil)
			good.Push("shop", "latest", "application/x", archiveOf(t, "1"))
			front := httptest.NewServer(tt.around(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				http.Redirect(w, req, "http://"+good.Host+req.URL.Path, http.StatusTemporaryRedirect)
			})))
			t.Cleanup(front.Close)
			src := ociSource(strings.TrimPrefix(front.URL, "http://"), "shop", nil)
			src.Oci.SecretName = "login"
			if tt.timeout != "" {
				src.Oci.Timeout = tt.timeout
			}
			f := fetcher(t, Options{Secrets: secretsOf(map[string]map[string]string{"login": {"username": "bot", "password": "hunter22", "header.X-Own": "own-value"}})})
			_, err := f.Fetch(t.Context(), "default", src)
			if err == nil || tt.kind != nil && !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter") {
				t.Fatalf("got %v\nwant %s (%v)", err, tt.want, tt.kind)
			}
			if !strings.Contains(err.Error(), "source "+src.Oci.Url+": ") {
				t.Errorf("does not name the source: %v", err)
			}
		})
	}
	if got, _ := thief.Load().(string); got != "" {
		t.Errorf("the other host got %q", got)
	}
}

// TestTagsThatAreAPage: a page to log in is no list of tags, and no server that is away.
func TestTagsThatAreAPage(t *testing.T) {
	reg := serve(t, body([]byte("<html>log in</html>")))
	_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", ociSource(strings.TrimPrefix(reg, "http://"), "shop", &towlinev1.OciRef{Semver: "1.x"}))
	if !errors.Is(err, fleet.ErrInvalid) || !strings.Contains(err.Error(), "the server does not answer as a registry does: failed to decode response") {
		t.Errorf("got %v", err)
	}
}
