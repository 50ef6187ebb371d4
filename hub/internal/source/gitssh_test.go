package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"towline.dev/towline/hub/internal/source/sourcetest"
	"towline.dev/towline/pkg/fleet"
)

// secretsOf are the secrets of a test, whatever the project.
func secretsOf(list map[string]map[string]string) func(context.Context, string, string) (map[string][]byte, error) {
	return func(_ context.Context, _, name string) (map[string][]byte, error) {
		out := map[string][]byte{}
		for key, value := range list[name] {
			out[key] = []byte(value)
		}
		return out, nil
	}
}

func TestGitOverSSH(t *testing.T) {
	r := sourcetest.NewRepo(t)
	head := r.Branch("main", map[string]any{"a.yaml": "a"})
	private, public := sourcetest.Key(t, "")
	locked, lockedPublic := sourcetest.Key(t, "open sesame")
	s := sourcetest.ServeSSH(t, public, r.SSHAnswer)
	other := sourcetest.ServeSSH(t, lockedPublic, r.SSHAnswer)
	ofAnother := strings.Replace(other.KnownHosts, other.Addr[strings.LastIndex(other.Addr, ":"):], s.Addr[strings.LastIndex(s.Addr, ":"):], 1)
	list := map[string]map[string]string{
		"good":      {"identity": string(private), "known_hosts": s.KnownHosts},
		"locked":    {"identity": string(locked), "known_hosts": other.KnownHosts, "password": "open sesame\n"},
		"shut":      {"identity": string(locked), "known_hosts": other.KnownHosts},
		"no hosts":  {"identity": string(private)},
		"strangers": {"identity": string(private), "known_hosts": other.KnownHosts},
		"changed":   {"identity": string(private), "known_hosts": ofAnother},
		"wrong key": {"identity": string(locked), "known_hosts": s.KnownHosts, "password": "open sesame"},
		"no pem":    {"identity": "secret-key", "known_hosts": s.KnownHosts},
		"unread":    {"identity": string(private), "known_hosts": "secret-nonsense"},
	}
	for _, tt := range []struct {
		secret, addr, path, want string
		kind                     error
	}{
		{"good", s.Addr, "/repo.git", "", nil},
		{"locked", other.Addr, "/repo.git", "", nil},
		{"shut", other.Addr, "/repo.git", "identity is locked by a passphrase: set it as password", fleet.ErrPrecondition},
		{"no hosts", s.Addr, "/repo.git", "over ssh it needs the keys identity (a private key in PEM) and known_hosts", fleet.ErrPrecondition},
		{"strangers", s.Addr, "/repo.git", "is not in the key known_hosts of secret strangers", fleet.ErrDenied},
		{"changed", s.Addr, "/repo.git", "has another key than secret changed says: look at who answers there", fleet.ErrDenied},
		{"wrong key", s.Addr, "/repo.git", "does not take the key identity of secret wrong key", fleet.ErrDenied},
		{"no pem", s.Addr, "/repo.git", "identity is no private key in PEM", fleet.ErrPrecondition},
		{"unread", s.Addr, "/repo.git", "as ssh-keyscan prints it", fleet.ErrPrecondition},
		{"good", s.Addr, "/none.git", "the server says: fatal: '/none.git' does not appear to be a git repository", fleet.ErrNotFound},
		{"good", "127.0.0.1:1", "/repo.git", "cannot be reached", fleet.ErrUnavailable},
	} {
		t.Run(tt.secret+" "+tt.path, func(t *testing.T) {
			name := strings.ReplaceAll(tt.secret, " ", "-")
			opts := Options{Secrets: secretsOf(map[string]map[string]string{name: list[tt.secret]})}
			src := gitSource("ssh://git@"+tt.addr+tt.path, nil)
			src.Git.SecretName = name
			a, err := fetcher(t, opts).Fetch(t.Context(), "default", src)
			if tt.want == "" {
				if err != nil || string(a.Files["a.yaml"]) != "a" || a.Ref != "main@sha1:"+head {
					t.Fatalf("%s, %v", a.Ref, err)
				}
				return
			}
			if want := strings.ReplaceAll(tt.want, tt.secret, name); err == nil || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-") {
				t.Fatalf("got %v\nwant %s (%v)", err, want, tt.kind)
			}
		})
	}
}

// TestHostileSSHServers: each gives an error in time.
func TestHostileSSHServers(t *testing.T) {
	private, public := sourcetest.Key(t, "")
	ref := strings.Repeat("a", 40) + " refs/heads/main\x00ofs-delta\n"
	aRef := fmt.Sprintf("%04x%s", len(ref)+4, ref)
	lists := func(text string) func(ch io.ReadWriteCloser, stderr io.Writer, path string) byte {
		return func(ch io.ReadWriteCloser, _ io.Writer, _ string) byte {
			_, _ = io.WriteString(ch, text)
			return 0
		}
	}
	for _, tt := range []struct {
		name   string
		answer func(ch io.ReadWriteCloser, stderr io.Writer, path string) byte
		want   string
		kind   error
	}{
		{"says nothing and goes", func(io.ReadWriteCloser, io.Writer, string) byte { return 1 }, "broke off before its end", fleet.ErrUnavailable},
		{"says nothing and stays", func(ch io.ReadWriteCloser, _ io.Writer, _ string) byte {
			_, _ = io.Copy(io.Discard, ch)
			return 0
		}, "did not arrive within 500ms", fleet.ErrUnavailable},
		{"goes between two lines of its list", lists(aRef), "broke off before its end", fleet.ErrUnavailable},
		{"goes in a line of its list", lists(aRef + aRef[:30]), "broke off before its end", fleet.ErrUnavailable},
		{"goes in the length of a line of its list", lists(aRef + aRef[:2]), "broke off before its end", fleet.ErrUnavailable},
		{"talks to people", func(ch io.ReadWriteCloser, _ io.Writer, _ string) byte {
			_, _ = io.WriteString(ch, "Welcome!\n")
			return 0
		}, "answers what is no list of branches and tags", fleet.ErrInvalid},
		{"complains without end", func(_ io.ReadWriteCloser, stderr io.Writer, _ string) byte {
			for line := []byte(strings.Repeat("no\x1b[31m ", 1000)); ; {
				if _, err := stderr.Write(line); err != nil {
					return 1
				}
			}
		}, "did not arrive within 500ms", fleet.ErrUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := sourcetest.ServeSSH(t, public, tt.answer)
			src := gitSource("ssh://git@"+s.Addr+"/repo.git", nil)
			src.Git.SecretName, src.Git.Timeout = "key", "500ms"
			_, err := fetcher(t, Options{Secrets: secretsOf(map[string]map[string]string{"key": {"identity": string(private), "known_hosts": s.KnownHosts}})}).Fetch(t.Context(), "default", src)
			if err == nil || !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v\nwant %s (%v)", err, tt.want, tt.kind)
			}
		})
	}
}

// TestGitSecretsOverHTTP: a secret lets the hub in, goes nowhere else, and another one is said to be wrong.
func TestGitSecretsOverHTTP(t *testing.T) {
	r := sourcetest.NewRepo(t)
	r.Branch("main", map[string]any{"a.yaml": "a"})
	base := serve(t, login(r.Handler(), "bot", "hunter22"))
	opts := Options{CacheDir: t.TempDir(), Secrets: secretsOf(map[string]map[string]string{
		"good": {"username": "bot", "password": "hunter22"}, "wrong": {"username": "bot", "password": "hunter23"}, "other": {"identity": "x"}})}
	f := fetcher(t, opts)
	for _, tt := range []struct{ secret, want string }{
		{"good", ""},
		{"wrong", "401 Unauthorized: look at secret wrong"},
		{"other", "secret other: has none of the keys that are sent over http"},
		{"", "401 Unauthorized: the hub must be allowed to read it; name a secret that lets it in source.git.secretName"},
	} {
		src := gitSource(base+"/repo.git", nil)
		src.Git.SecretName = tt.secret
		_, err := f.Fetch(t.Context(), "default", src)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter")) {
			t.Errorf("%q: %v", tt.secret, err)
		}
	}
}

// login asks for a name and a password.
func login(next http.HandlerFunc, user, password string) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if u, p, _ := req.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", "Basic realm=\"r\"")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next(w, req)
	}
}
