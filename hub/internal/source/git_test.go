package source

import (
	"bytes"
	"compress/zlib"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

func gitSource(url string, ref *towlinev1.GitRef) *towlinev1.Source {
	return &towlinev1.Source{Git: &towlinev1.GitSource{Url: url, Ref: ref, Timeout: "20s"}}
}

func branch(name string) *towlinev1.GitRef    { return &towlinev1.GitRef{Branch: name} }
func tag(name string) *towlinev1.GitRef       { return &towlinev1.GitRef{Tag: name} }
func semverRef(text string) *towlinev1.GitRef { return &towlinev1.GitRef{Semver: text} }
func commit(hash string) *towlinev1.GitRef    { return &towlinev1.GitRef{Commit: hash} }

func zlibOf(data []byte) []byte {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, _ = w.Write(data)
	_ = w.Close()
	return b.Bytes()
}

// eachGitServer runs a test against each way to serve a repository: go-git's, git's own, and a folder.
func eachGitServer(t *testing.T, test func(t *testing.T, r *sourcetest.Repo, url string)) {
	t.Run("go-git", func(t *testing.T) {
		r := sourcetest.NewRepo(t)
		test(t, r, serve(t, r.Handler())+"/repo.git")
	})
	t.Run("git", func(t *testing.T) {
		r := sourcetest.NewRepo(t)
		h := r.Program()
		if h == nil {
			t.Skip("there is no git here")
		}
		test(t, r, serve(t, h.ServeHTTP)+"/repo.git")
	})
	t.Run("folder", func(t *testing.T) {
		r := sourcetest.NewRepo(t)
		test(t, r, "file://"+r.Dir)
	})
}

func TestGitRefs(t *testing.T) {
	eachGitServer(t, func(t *testing.T, r *sourcetest.Repo, url string) {
		first := r.Branch("main", map[string]any{"a.yaml": "1"})
		second := r.Branch("next", map[string]any{"a.yaml": "2", "deep/er/b.yaml": "b"})
		r.Tag("v1.2.0", first, false)
		r.Tag("1.10.1", second, true)
		r.Tag("v2.0.0-rc.1", second, true)
		r.Tag("nightly", second, false)
		f := fetcher(t, Options{AllowFiles: true})
		for _, tt := range []struct {
			ref         *towlinev1.GitRef
			want, exact string
		}{
			{nil, "1", "main@sha1:" + first},
			{branch("next"), "2", "next@sha1:" + second},
			{tag("v1.2.0"), "1", "v1.2.0@sha1:" + first},
			{tag("1.10.1"), "2", "1.10.1@sha1:" + second},
			{semverRef(">=1.0 <1.5"), "1", "v1.2.0@sha1:" + first},
			{semverRef("*"), "2", "1.10.1@sha1:" + second},
			{semverRef(">=2.0.0-0"), "2", "v2.0.0-rc.1@sha1:" + second},
			{commit(second), "2", "sha1:" + second},
		} {
			a, err := f.Fetch(t.Context(), "default", gitSource(url, tt.ref))
			if err != nil || string(a.Files["a.yaml"]) != tt.want || a.Ref != tt.exact {
				t.Errorf("%v: %v %q, want %s: %v", tt.ref, a.Ref, a.Files["a.yaml"], tt.exact, err)
			}
		}
		for _, tt := range []struct {
			ref  *towlinev1.GitRef
			want string
		}{
			{branch("none"), `has no branch "none": check source.git.ref.branch (it has main, next)`},
			{tag("v9"), `has no tag "v9": check source.git.ref.tag (it has 1.10.1, nightly, v1.2.0, v2.0.0-rc.1)`},
			{semverRef(">=3"), `has no version in ">=3": the highest is v2.0.0-rc.1; check source.git.ref.semver`},
		} {
			_, err := f.Fetch(t.Context(), "default", gitSource(url, tt.ref))
			if !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "source "+url+": "+tt.want) {
				t.Errorf("%v: %v", tt.ref, err)
			}
		}
	})
}

// TestGitMoves: a ref that moves is another artifact at the next fetch, and the exact ref stays what it was.
func TestGitMoves(t *testing.T) {
	eachGitServer(t, func(t *testing.T, r *sourcetest.Repo, url string) {
		first := r.Branch("main", map[string]any{"a.yaml": "1"})
		r.Tag("v1", first, true)
		f := fetcher(t, Options{AllowFiles: true, CacheDir: t.TempDir()})
		for _, ref := range []*towlinev1.GitRef{branch("main"), tag("v1")} {
			if a, err := f.Fetch(t.Context(), "default", gitSource(url, ref)); err != nil || string(a.Files["a.yaml"]) != "1" {
				t.Fatalf("%v: %v", ref, err)
			}
		}
		second := r.Branch("main", map[string]any{"a.yaml": "2"})
		r.Tag("v1", second, true)
		for _, ref := range []*towlinev1.GitRef{branch("main"), tag("v1")} {
			a, err := f.Fetch(t.Context(), "default", gitSource(url, ref))
			if err != nil || string(a.Files["a.yaml"]) != "2" || !strings.HasSuffix(a.Ref, second) {
				t.Errorf("%v after a push by force: %s, %v", ref, a.Ref, err)
			}
		}
		a, err := f.Fetch(t.Context(), "default", gitSource(url, commit(first)))
		if err != nil || string(a.Files["a.yaml"]) != "1" {
			t.Errorf("the commit of before, which was fetched: %v", err)
		}
	})
}

func TestGitTree(t *testing.T) {
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n"
	bomb := func(r *sourcetest.Repo) map[string]any { // each folder has the one before ten times
		h := r.Tree(map[string]any{"a.yaml": "a"})
		for range 8 {
			in := map[string]any{}
			for i := range 10 {
				in[fmt.Sprint(i)] = h
			}
			h = r.Tree(in)
		}
		return map[string]any{"x": h}
	}
	many := map[string]any{}
	for i := range MaxEntries + 1 {
		many[fmt.Sprint("f", i)] = "same"
	}
	for name, tt := range map[string]struct {
		files map[string]any
		make  func(*sourcetest.Repo) map[string]any
		path  string
		want  string // of the error; else the files
		has   map[string]string
	}{
		"links": {files: map[string]any{"base/a.yaml": "a", "base/sub/b.yaml": "b", "one/to-file.yaml": sourcetest.Link("../base/a.yaml"), "one/dir": sourcetest.Link("../base/sub"),
			"two": sourcetest.Link("one/dir"), "three/c.yaml": sourcetest.Link("../two/b.yaml"), "base/again": sourcetest.Link("./a.yaml")},
			has: map[string]string{"base/a.yaml": "a", "base/sub/b.yaml": "b", "one/to-file.yaml": "a", "one/dir/b.yaml": "b", "two/b.yaml": "b", "three/c.yaml": "b", "base/again": "a"}},
		"link out":            {files: map[string]any{"a": sourcetest.Link("../x")}, want: `"a" is a symbolic link to "../x", outside of the repository`},
		"link to root":        {files: map[string]any{"a": sourcetest.Link("/etc/passwd")}, want: `"a" is a symbolic link to "/etc/passwd", outside of the repository`},
		"link to nothing":     {files: map[string]any{"b": "b", "a": sourcetest.Link("c")}, want: `"a" is a symbolic link to "c", which is not there`},
		"link to itself":      {files: map[string]any{"a": sourcetest.Link("a")}, want: `"a" is a symbolic link that leads in a circle`},
		"links in circles":    {files: map[string]any{"a/x": sourcetest.Link("../b"), "b/y": sourcetest.Link("../a")}, want: "is a symbolic link that leads in a circle"},
		"link to all":         {files: map[string]any{"a/b": sourcetest.Link("..")}, want: `"a/b" is a symbolic link to the whole repository`},
		"link through a file": {files: map[string]any{"a": sourcetest.Link("b/c"), "b": "b"}, want: `"a" is a symbolic link through "b", which is no folder`},
		"submodule":           {files: map[string]any{"d/sub": sourcetest.Submodule(strings.Repeat("a", 40)), "d/a.yaml": "a"}, path: "d", want: `"d/sub" is a submodule, which is not fetched`},
		"lfs":                 {files: map[string]any{"d/big.yaml": pointer}, path: "d", want: `"d/big.yaml" is kept in Git LFS`},
		"elsewhere": {files: map[string]any{"d/a.yaml": "a", "base/b.yaml": "b", "sub": sourcetest.Submodule(strings.Repeat("a", 40)), "big": pointer, "out": sourcetest.Link("/etc"), "e\\f": "x"}, path: "./d/",
			has: map[string]string{"d/a.yaml": "a", "base/b.yaml": "b"}},
		"beside, in LFS": {files: map[string]any{"charts/web/Chart.yaml": chartYAML("web", "1.0.0", on("lib", "", "file://../lib")), "charts/lib/Chart.yaml": chartYAML("lib", "1.0.0"), "charts/lib/b.json": pointer}, path: "charts/web",
			want: `the chart in "charts/web" depends on all that is in "charts/lib": "charts/lib/b.json" is kept in Git LFS`},
		"beside what is beside, a link out": {files: map[string]any{"charts/web/Chart.yaml": chartYAML("web", "1.0.0", on("lib", "", "file://../lib")), "charts/lib/Chart.yaml": chartYAML("lib", "1.0.0", on("low", "", "file://../../low")),
			"low/Chart.yaml": chartYAML("low", "1.0.0"), "low/b.json": sourcetest.Link("../../b.json")}, path: "charts/web", want: `the chart in "charts/lib" depends on all that is in "low": "low/b.json" is a symbolic link to "../../b.json"`},
		"beside, not reached": {files: map[string]any{"charts/web/Chart.yaml": chartYAML("web", "1.0.0"), "charts/lib/Chart.yaml": chartYAML("lib", "1.0.0", on("web", "", "file://../web")), "charts/lib/b.json": pointer}, path: "charts/web",
			has: map[string]string{"charts/web/Chart.yaml": chartYAML("web", "1.0.0"), "charts/lib/Chart.yaml": chartYAML("lib", "1.0.0", on("web", "", "file://../web"))}},
		"link to a bad name": {files: map[string]any{"d/x": sourcetest.Link("../e"), "e/a\\b": "b", "e/c": "c"}, path: "d", want: `"d/x/a\\b" has a backslash`},
		"no such folder":     {files: map[string]any{"d/a.yaml": "a"}, path: "e", want: `source.git.path: "e" is no folder with files at commit`},
		"backslash":          {files: map[string]any{"e\\f": "x"}, want: `"e\\f" has a backslash`},
		"case":               {files: map[string]any{"A.yaml": "x", "a.yaml": "y"}, want: "differ in case only"},
		"many files":         {files: many, want: "has more than 10000 files"},
		"folders in folders": {make: bomb, want: "has more than 200000 files and folders"},
	} {
		t.Run(name, func(t *testing.T) {
			r := sourcetest.NewRepo(t)
			if tt.make != nil {
				tt.files = tt.make(r)
			}
			r.Branch("main", tt.files)
			src := gitSource("file://"+r.Dir, nil)
			src.Git.Path = tt.path
			a, err := fetcher(t, Options{AllowFiles: true}).Fetch(t.Context(), "default", src)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Fatalf("got %v\nwant %s", err, tt.want)
				}
				if strings.Contains(err.Error(), leaveOut) && strings.Contains(err.Error(), "depends on all that is in") {
					t.Errorf("no other path helps: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Files) != len(tt.has) {
				t.Errorf("has %d files: %v", len(a.Files), a.Files)
			}
			for name, want := range tt.has {
				if string(a.Files[name]) != want {
					t.Errorf("%s: %q", name, a.Files[name])
				}
			}
		})
	}
}

// TestLinksThatMultiply: a few links to folders show a file more often than there is room for.
func TestLinksThatMultiply(t *testing.T) {
	r := sourcetest.NewRepo(t)
	files := map[string]any{"d00/f": "x"}
	for i := 1; i < 40; i++ {
		for _, n := range []string{"a", "b", "c"} {
			files[fmt.Sprintf("d%02d/%s", i, n)] = sourcetest.Link(fmt.Sprintf("../d%02d", i-1))
		}
	}
	r.Branch("main", files)
	for _, path := range []string{"", "d00"} {
		src := gitSource("file://"+r.Dir, nil)
		src.Git.Path = path
		if _, err := fetcher(t, Options{AllowFiles: true}).Fetch(t.Context(), "default", src); !errors.Is(err, fleet.ErrExhausted) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

// TestHostileGitServers: each gives an error that names the repository and what is wrong, and shows no secret of the URL.
func TestHostileGitServers(t *testing.T) {
	r := sourcetest.NewRepo(t)
	head := r.Branch("main", map[string]any{"a.yaml": "a"})
	good := r.Handler()
	wait := func(req *http.Request) { <-req.Context().Done() }
	refsOr := func(pack http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, req *http.Request) {
			if req.Method == http.MethodGet {
				good(w, req)
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			pack(w, req)
		}
	}
	packBytes := func(data []byte) http.HandlerFunc {
		return refsOr(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(append([]byte("0008NAK\n"), data...)) })
	}
	sum := func(data []byte) []byte { s := sha1.Sum(data); return append(data, s[:]...) }
	adv := func(lines string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = io.WriteString(w, lines)
		}
	}
	for _, tt := range []struct {
		name    string
		handler http.HandlerFunc
		want    string
		kind    error
		edit    func(*towlinev1.GitSource)
	}{
		{"404", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) }, "the server answers 404 Not Found: check source.git.url", fleet.ErrNotFound, nil},
		{"401", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "401 Unauthorized: the hub must be allowed to read it", fleet.ErrDenied, nil},
		{"503", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, "503 Service Unavailable, after 3 retries too", fleet.ErrUnavailable, nil},
		{"a page", body([]byte("<html>")), "is no Git repository that is served by the smart protocol", fleet.ErrInvalid, nil},
		{"nothing", adv(""), "answers nothing", fleet.ErrInvalid, nil},
		{"no list", adv("0005x"), "answers what is no list of branches and tags", fleet.ErrInvalid, nil},
		{"its own error", adv("0014ERR no such repo"), "the server says: no such repo", fleet.ErrInvalid, nil},
		{"empty", adv("001e# service=git-upload-pack\n00000000"), "has no commit yet", fleet.ErrNotFound, nil},
		{"endless refs", func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = io.WriteString(w, "001e# service=git-upload-pack\n0000")
			for i := 0; req.Context().Err() == nil; i++ {
				if _, err := fmt.Fprintf(w, "003d%s refs/heads/%05d\n", head, i%100000); err != nil {
					return
				}
			}
		}, "its list of branches and tags has more than 16 MiB", fleet.ErrExhausted, nil},
		{"endless pack", refsOr(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.WriteString(w, "0008NAK\nPACK")
			for chunk := make([]byte, 64<<10); req.Context().Err() == nil; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}), "have more than 64 MiB, packed", fleet.ErrExhausted, nil},
		{"no pack", packBytes(nil), "broke off before its end", fleet.ErrUnavailable, nil},
		{"another commit", packBytes(sum(packOf(packed{kind: 3, says: 1, data: []byte("a")}))), "does not send commit " + head, fleet.ErrCorrupt, nil},
		{"cut off", packBytes([]byte("PACK\x00\x00\x00\x02\x00\x00\x00\x09")), "damaged pack", fleet.ErrCorrupt, nil},
		{"many objects", packBytes([]byte("PACK\x00\x00\x00\x02\x7f\xff\xff\xff")), "has 2147483647 files and folders in its commits; at most 200000", fleet.ErrExhausted, nil},
		{"large by its word", packBytes(sum(packOf(packed{kind: 3, says: 1 << 40, data: []byte("a")}))), "has a file of 1099511627776 bytes", fleet.ErrExhausted, nil},
		{"larger than its word", packBytes(sum(packOf(packed{kind: 3, says: 1, data: make([]byte, 1<<20)}))), "damaged pack", fleet.ErrCorrupt, nil},
		{"a change that makes it large", packBytes(sum(packOf(packed{kind: 3, says: 1, data: []byte("a")}, bigDelta()))), "has a file of more than 256 MiB", fleet.ErrExhausted, nil},
		{"drip of refs", func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
			_, _ = io.WriteString(w, "00")
			w.(http.Flusher).Flush()
			wait(req)
		}, "did not arrive within 300ms: look at the server, or raise source.git.timeout", fleet.ErrUnavailable, func(s *towlinev1.GitSource) { s.Timeout = "300ms" }},
		{"drip of a pack", refsOr(func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.WriteString(w, "0008NAK\nPACK")
			w.(http.Flusher).Flush()
			wait(req)
		}), "did not arrive within 300ms", fleet.ErrUnavailable, func(s *towlinev1.GitSource) { s.Timeout = "300ms" }},
		{"closes in the pack", refsOr(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "0008NAK\nPACK")
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}), "broke off before its end", fleet.ErrUnavailable, nil},
		{"its ref has moved", refsOr(func(w http.ResponseWriter, _ *http.Request) {
			said := "ERR upload-pack: not our ref " + head
			_, _ = fmt.Fprintf(w, "%04x%s", len(said)+4, said)
		}), "broke off before its end", fleet.ErrUnavailable, nil},
		{"ends before the pack", refsOr(func(http.ResponseWriter, *http.Request) {}), "broke off before its end", fleet.ErrUnavailable, nil},
		{"to metadata", redirect("http://169.254.169.254/latest"), "address 169.254.169.254 is link-local", fleet.ErrDenied, nil},
		{"in a circle", func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, req.URL.String(), http.StatusFound)
		}, "is redirected more than 5 times", fleet.ErrDenied, nil},
		{"to another path", func(w http.ResponseWriter, req *http.Request) {
			if req.URL.Path == "/x" {
				good(w, &http.Request{Method: "GET", URL: mustURL("/repo.git/info/refs?service=git-upload-pack"), Body: http.NoBody})
				return
			}
			http.Redirect(w, req, "/x", http.StatusFound)
		}, "is redirected to what is no Git repository", fleet.ErrInvalid, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base := serve(t, tt.handler)
			src := gitSource(strings.Replace(base, "http://", "http://user:secret-password@", 1)+"/repo.git", nil)
			if tt.edit != nil {
				tt.edit(src.Git)
			}
			_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src)
			if err == nil || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v\nwant %s (%v)", err, tt.want, tt.kind)
			}
			if !strings.Contains(err.Error(), "source "+base+"/repo.git: ") || strings.Contains(err.Error(), "secret-") {
				t.Errorf("names no source, or a secret: %v", err)
			}
		})
	}
}

// bigDelta is a change of the object before it that says it makes 1 GiB.
func bigDelta() packed {
	data := binary.AppendUvarint(nil, 1)
	data = binary.AppendUvarint(data, 1<<30)
	return packed{kind: 6, says: uint64(len(data)), before: []byte{10}, data: data}
}

// TestGitAway: a server that fails for a while is asked again; one that stays away is said to be.
func TestGitAway(t *testing.T) {
	r := sourcetest.NewRepo(t)
	r.Branch("main", map[string]any{"a.yaml": "a"})
	var calls atomic.Int32
	base := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if calls.Add(1)%3 != 0 { // twice in three
			w.WriteHeader(503)
			return
		}
		r.Handler()(w, req)
	})
	if _, err := fetcher(t, Options{}).Fetch(t.Context(), "default", gitSource(base+"/repo.git", nil)); err != nil || calls.Load() != 6 {
		t.Errorf("after %d calls: %v", calls.Load(), err)
	}
	start := time.Now()
	_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", gitSource("http://127.0.0.1:1/repo.git", nil))
	if !errors.Is(err, fleet.ErrUnavailable) || !strings.Contains(err.Error(), "source http://127.0.0.1:1/repo.git: cannot be reached") || time.Since(start) > 15*time.Second {
		t.Errorf("got %v", err)
	}
}

// TestGitCredentialsStayAtTheirHost: what is in the URL goes to its host only; a repository that has moved is asked without.
func TestGitCredentialsStayAtTheirHost(t *testing.T) {
	r := sourcetest.NewRepo(t)
	r.Branch("main", map[string]any{"a.yaml": "a"})
	var seen []string
	moved := serve(t, func(w http.ResponseWriter, req *http.Request) {
		seen = append(seen, req.Header.Get("Authorization")+req.Header.Get("Referer")+req.Header.Get("Cookie"))
		r.Handler()(w, req)
	})
	asked := 0
	base := serve(t, func(w http.ResponseWriter, req *http.Request) {
		asked++
		if _, password, _ := req.BasicAuth(); password != "password" {
			w.WriteHeader(401)
			return
		}
		http.Redirect(w, req, strings.Replace(moved, "127.0.0.1", "localhost", 1)+req.URL.RequestURI(), http.StatusFound)
	})
	a, err := fetcher(t, Options{}).Fetch(t.Context(), "default", gitSource(strings.Replace(base, "http://", "http://user:password@", 1)+"/repo.git", nil))
	if err != nil || string(a.Files["a.yaml"]) != "a" {
		t.Fatal(err)
	}
	if len(seen) != 2 || strings.Join(seen, "") != "" || asked != 1 {
		t.Errorf("the other host got %q; the first was asked %d times", seen, asked)
	}
}

// TestGitCache: a commit that is known is not fetched again, and is nobody else's.
func TestGitCache(t *testing.T) {
	r := sourcetest.NewRepo(t)
	head := r.Branch("main", map[string]any{"a.yaml": "a"})
	var gets, posts atomic.Int32
	base := serve(t, func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodPost {
			posts.Add(1)
		} else {
			gets.Add(1)
		}
		r.Handler()(w, req)
	})
	f := fetcher(t, Options{CacheDir: t.TempDir()})
	fetch := func(project string, ref *towlinev1.GitRef, wantGets, wantPosts int32) {
		t.Helper()
		a, err := f.Fetch(t.Context(), project, gitSource(base+"/repo.git", ref))
		if err != nil || string(a.Files["a.yaml"]) != "a" || !strings.HasSuffix(a.Ref, head) || a.Made.Unix() != 1 {
			t.Fatalf("%s of %v, %v", a.Ref, a.Made, err)
		}
		if gets.Load() != wantGets || posts.Load() != wantPosts {
			t.Errorf("%d questions and %d packs; want %d and %d", gets.Load(), posts.Load(), wantGets, wantPosts)
		}
	}
	fetch("default", nil, 1, 1)
	fetch("default", branch("main"), 2, 1)
	fetch("default", commit(head), 2, 1)
	fetch("other", branch("main"), 3, 2)
}

func TestGitFoldersAreRefused(t *testing.T) {
	_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", gitSource("file:///tmp", nil))
	if !errors.Is(err, fleet.ErrDenied) || !strings.Contains(err.Error(), "start it with --allow-file-sources") {
		t.Errorf("got %v", err)
	}
	_, err = fetcher(t, Options{AllowFiles: true}).Fetch(t.Context(), "default", gitSource("file://"+t.TempDir(), nil))
	if !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "is no Git repository") {
		t.Errorf("got %v", err)
	}
}

// TestGitCommitThatIsNotGiven: a server that gives no commit but those that something points to is said to be one.
func TestGitCommitThatIsNotGiven(t *testing.T) {
	r := sourcetest.NewRepo(t)
	r.Branch("main", map[string]any{"a.yaml": "a"})
	lost := r.Commit(map[string]any{"a.yaml": "b"}).String()
	_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", gitSource(serve(t, r.Handler())+"/repo.git", commit(lost)))
	if !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "commit "+lost+" is not the newest of any branch") {
		t.Errorf("got %v", err)
	}
}

func mustURL(s string) *url.URL {
	u, err := url.Parse(s)
	if err != nil {
		panic(err)
	}
	return u
}

// packOf is a pack with objects as they are given: its type, the size that it says, and what it holds.
func packOf(objects ...packed) []byte {
	var b bytes.Buffer
	b.Write(binary.BigEndian.AppendUint32([]byte("PACK\x00\x00\x00\x02"), uint32(len(objects))))
	for _, o := range objects {
		size := o.says
		c := byte(o.kind<<4) | byte(size&15)
		for size >>= 4; size > 0; size >>= 7 {
			b.WriteByte(c | 128)
			c = byte(size & 127)
		}
		b.WriteByte(c)
		b.Write(o.before)
		b.Write(zlibOf(o.data))
	}
	return b.Bytes()
}

type packed struct {
	kind   int
	says   uint64
	before []byte
	data   []byte
}

// TestGitPathThatBeginsWithADot: it is the folder of that name, and what is refused in it is refused.
func TestGitPathThatBeginsWithADot(t *testing.T) {
	r := sourcetest.NewRepo(t)
	r.Branch("main", map[string]any{".deploy/a.yaml": "a", ".deploy/more": sourcetest.Submodule(strings.Repeat("a", 40)), "deploy/b.yaml": "b", ".k8s/c.yaml": "c"})
	f := fetcher(t, Options{})
	at := func(path string) error {
		src := gitSource(serve(t, r.Handler())+"/repo.git", nil)
		src.Git.Path = path
		_, err := f.Fetch(t.Context(), "default", src)
		return err
	}
	for _, path := range []string{".k8s", "./.k8s", "./.k8s/"} {
		if err := at(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := at(".deploy"); err == nil || !strings.Contains(err.Error(), `".deploy/more" is a submodule`) {
		t.Errorf("a submodule in the folder that is used: %v", err)
	}
}

// TestGitServerThatRepeatsTheLogin: an error of the server's own shows nothing of the credentials in the URL.
func TestGitServerThatRepeatsTheLogin(t *testing.T) {
	at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		line := fmt.Sprintf("ERR no access for %s:%s by %s", user, password, r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		_, _ = fmt.Fprintf(w, "%04x%s", len(line)+4, line)
	}))
	src := &towlinev1.Source{Git: &towlinev1.GitSource{Url: strings.Replace(at, "http://", "http://deployer:canary%2Fpassword@", 1) + "/shop.git"}}
	_, err := fetcher(t, Options{}).Fetch(t.Context(), "default", src)
	if err == nil || !strings.Contains(err.Error(), "no access for ***") || strings.Contains(err.Error(), "canary") || strings.Contains(err.Error(), base64.StdEncoding.EncodeToString([]byte("deployer:canary"))[:18]) {
		t.Errorf("%v", err)
	}
}
