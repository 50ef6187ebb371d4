package rollouts

import (
	"errors"
	"net"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"towline.dev/towline/test/lab"
)

// gitServer is a repository that git itself serves over http, and a clone that is pushed from.
type gitServer struct {
	t       *testing.T
	url     string
	address string
	clone   string
	env     []string
	handler http.Handler
	server  *http.Server // nil: it is away
}

// serveGit starts a server of an empty repository.
func serveGit(t *testing.T) *gitServer {
	t.Helper()
	dir := t.TempDir()
	address, err := lab.FreeAddress()
	must(t, err)
	g := &gitServer{t: t, address: address, url: "http://" + address + "/shop.git", clone: filepath.Join(dir, "clone"), env: []string{
		// Nothing of the person's own configuration, nor of a repository whose hook runs this test.
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0",
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.com",
	}}
	backend := filepath.Join(g.git(dir, "--exec-path"), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		t.Skipf("git has no server here: %v", err)
	}
	g.git(dir, "init", "-q", "--bare", "-b", "main", "shop.git")
	g.git(filepath.Join(dir, "shop.git"), "config", "http.receivepack", "true")
	g.git(dir, "init", "-q", "-b", "main", g.clone)
	g.handler = &cgi.Handler{Path: backend, Env: append([]string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1"}, g.env...)}
	t.Cleanup(g.goAway)
	g.come()
	return g
}

// come has the server answer, at the address that it always has.
func (g *gitServer) come() {
	g.t.Helper()
	l, err := net.Listen("tcp", g.address)
	must(g.t, err)
	g.server = &http.Server{Handler: g.handler}
	go func(s *http.Server) {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			g.t.Errorf("the Git server: %v", err)
		}
	}(g.server)
}

// goAway ends the server, whatever it is at.
func (g *gitServer) goAway() {
	if g.server != nil {
		_ = g.server.Close()
	}
	g.server = nil
}

// push commits files, pushes them and returns the commit.
func (g *gitServer) push(files map[string]string) string {
	g.t.Helper()
	for name, text := range files {
		path := filepath.Join(g.clone, name)
		must(g.t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(g.t, os.WriteFile(path, []byte(text), 0o644))
	}
	g.git(g.clone, "add", ".")
	g.git(g.clone, "commit", "-q", "-m", "change")
	g.git(g.clone, "push", "-q", g.url, "main")
	return g.git(g.clone, "rev-parse", "HEAD")
}

func (g *gitServer) git(dir string, args ...string) string {
	g.t.Helper()
	cmd := exec.CommandContext(g.t.Context(), "git", args...)
	cmd.Dir, cmd.Env = dir, g.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		g.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}
