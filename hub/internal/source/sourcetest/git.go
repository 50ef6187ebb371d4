// Package sourcetest has servers that modules' sources can be fetched from in tests: real ones, of this process. It must not know how
// they are fetched.
package sourcetest

import (
	"io"
	"maps"
	"net/http"
	"net/http/cgi"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/osfs"
	"github.com/go-git/go-git/v5/plumbing"
	gitcache "github.com/go-git/go-git/v5/plumbing/cache"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/pktline"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/transport"
	"github.com/go-git/go-git/v5/plumbing/transport/server"
	"github.com/go-git/go-git/v5/storage/filesystem"
)

// Repo is a bare repository in a folder.
type Repo struct {
	t     *testing.T
	Dir   string
	store *filesystem.Storage
	mu    sync.Mutex
}

// Link is a symbolic link, by its target.
type Link string

// Submodule is a submodule, by its commit.
type Submodule string

// NewRepo makes one that is empty.
func NewRepo(t *testing.T) *Repo {
	t.Helper()
	r := &Repo{t: t, Dir: t.TempDir()}
	r.store = filesystem.NewStorage(osfs.New(r.Dir), gitcache.NewObjectLRUDefault())
	if err := r.store.Init(); err != nil {
		t.Fatal(err)
	}
	c, err := r.store.Config()
	if err != nil {
		t.Fatal(err)
	}
	c.Core.IsBare = true
	c.Raw.Section("http").SetOption("receivepack", "true")
	if err := r.store.SetConfig(c); err != nil {
		t.Fatal(err)
	}
	r.set("HEAD", plumbing.NewSymbolicReference(plumbing.HEAD, "refs/heads/main"))
	return r
}

func (r *Repo) set(name string, ref *plumbing.Reference) {
	r.t.Helper()
	if err := r.store.SetReference(ref); err != nil {
		r.t.Fatalf("%s: %v", name, err)
	}
}

// Branch moves a branch to a new commit that has none before it, so that each is a push by force.
func (r *Repo) Branch(name string, files map[string]any) string {
	r.t.Helper()
	h := r.Commit(files)
	r.set(name, plumbing.NewHashReference(plumbing.NewBranchReferenceName(name), h))
	return h.String()
}

// Tag makes a tag, with a message or without.
func (r *Repo) Tag(name, commit string, message bool) {
	r.t.Helper()
	h := plumbing.NewHash(commit)
	if message {
		h = r.put(&object.Tag{Name: name, Message: "m", TargetType: plumbing.CommitObject, Target: h, Tagger: someone})
	}
	r.set(name, plumbing.NewHashReference(plumbing.NewTagReferenceName(name), h))
}

var someone = object.Signature{Name: "a", Email: "a@example.com", When: time.Unix(1, 0).UTC()}

const service = "git-upload-pack"

type encoder interface {
	Encode(plumbing.EncodedObject) error
}

func (r *Repo) put(o encoder) plumbing.Hash {
	r.t.Helper()
	m := r.store.NewEncodedObject()
	if err := o.Encode(m); err != nil {
		r.t.Fatal(err)
	}
	h, err := r.store.SetEncodedObject(m)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

func (r *Repo) blob(text string) plumbing.Hash {
	r.t.Helper()
	m := r.store.NewEncodedObject()
	m.SetType(plumbing.BlobObject)
	w, err := m.Writer()
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	h, err := r.store.SetEncodedObject(m)
	if err != nil {
		r.t.Fatal(err)
	}
	return h
}

// Set moves a branch to a commit that is there.
func (r *Repo) Set(name, commit string) {
	r.t.Helper()
	r.set(name, plumbing.NewHashReference(plumbing.NewBranchReferenceName(name), plumbing.NewHash(commit)))
}

// At makes a commit of a time.
func (r *Repo) At(when time.Time, files map[string]any) string {
	r.t.Helper()
	by := someone
	by.When = when.UTC()
	return r.put(&object.Commit{Author: someone, Committer: by, Message: "m\n\ncommitter x <y> 1 +0000", TreeHash: r.Tree(files)}).String()
}

// Commit makes a commit that no branch has.
func (r *Repo) Commit(files map[string]any) plumbing.Hash {
	r.t.Helper()
	return r.put(&object.Commit{Author: someone, Committer: someone, Message: "m", TreeHash: r.Tree(files)})
}

// Tree writes a folder; names with / are in folders of it.
func (r *Repo) Tree(files map[string]any) plumbing.Hash {
	r.t.Helper()
	folders := map[string]map[string]any{}
	var t object.Tree
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if dir, rest, deep := strings.Cut(name, "/"); deep {
			if folders[dir] == nil {
				folders[dir] = map[string]any{}
			}
			folders[dir][rest] = files[name]
			continue
		}
		e := object.TreeEntry{Name: name}
		switch x := files[name].(type) {
		case string:
			e.Mode, e.Hash = filemode.Regular, r.blob(x)
		case Link:
			e.Mode, e.Hash = filemode.Symlink, r.blob(string(x))
		case Submodule:
			e.Mode, e.Hash = filemode.Submodule, plumbing.NewHash(string(x))
		case plumbing.Hash:
			e.Mode, e.Hash = filemode.Dir, x
		}
		t.Entries = append(t.Entries, e)
	}
	for name, in := range folders {
		t.Entries = append(t.Entries, object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: r.Tree(in)})
	}
	slices.SortFunc(t.Entries, func(a, b object.TreeEntry) int { return strings.Compare(sortName(a), sortName(b)) })
	return r.put(&t)
}

func sortName(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

// session serves the repository as go-git does, which knows no shallow packs.
func (r *Repo) session() transport.UploadPackSession {
	ep := &transport.Endpoint{Protocol: "file", Path: "/"}
	s, err := server.NewServer(server.MapLoader{ep.String(): r.store}).NewUploadPackSession(ep, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// Handler serves the repository at /repo.git over http.
func (r *Repo) Handler() http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case req.URL.Path == "/repo.git/info/refs" && req.URL.Query().Get("service") == service:
			adv, err := r.session().AdvertisedReferencesContext(req.Context())
			if err != nil {
				w.WriteHeader(500)
				return
			}
			adv.Prefix = [][]byte{[]byte("# service=" + service), pktline.Flush}
			w.Header().Set("Content-Type", "application/x-"+service+"-advertisement")
			_ = adv.Encode(w)
		case req.URL.Path == "/repo.git/"+service && req.Method == http.MethodPost:
			w.Header().Set("Content-Type", "application/x-"+service+"-result")
			if err := r.serve(req.Body, w); err != nil {
				w.WriteHeader(500)
			}
		default:
			w.WriteHeader(404)
		}
	}
}

// serve answers a request for a pack.
func (r *Repo) serve(in io.Reader, out io.Writer) error {
	req := packp.NewUploadPackRequest()
	if err := req.UploadRequest.Decode(in); err != nil {
		return err
	}
	resp, err := r.session().UploadPack(r.t.Context(), req)
	if err != nil {
		return err
	}
	return resp.Encode(out)
}

// Program serves the repository at /repo.git with the program that git has for it; nil if there is no git here.
func (r *Repo) Program() http.Handler {
	out, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		return nil
	}
	return &cgi.Handler{Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Root: "/repo.git",
		Env: []string{"GIT_PROJECT_ROOT=" + r.Dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + r.Dir, "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"}}
}
