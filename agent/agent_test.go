package agent

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"towline.dev/towline/agent/internal/desired"
	"towline.dev/towline/agent/internal/identity"
	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/fleet"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func TestCommandSaysWhatIsMissing(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	empty := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	kubeconfig := writeKubeconfig(t)
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no hub":          {[]string{"run"}, "--hub: is required"},
		"no port":         {[]string{"run", "--hub", "hub"}, `--hub: "hub" is no HOST:PORT`},
		"two tokens":      {[]string{"run", "--hub", "hub:1", "--join-token", "a", "--join-token-file", "b"}, "not both"},
		"no kubeconfig":   {[]string{"run", "--hub", "hub:1", "--kubeconfig", "/nowhere"}, "--kubeconfig: stat /nowhere"},
		"nothing at all":  {[]string{"run", "--hub", "hub:1"}, "--kubeconfig: is required"},
		"state is a file": {[]string{"run", "--hub", "hub:1", "--kubeconfig", kubeconfig, "--state-dir", empty}, "state directory"},
		"unknown flag":    {[]string{"run", "--hubb", "x"}, "unknown flag"},
		"an argument":     {[]string{"run", "x"}, "unknown command"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := run(t, tc.args...); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want one that says %q", err, tc.says)
			}
		})
	}
	if out, err := run(t, "version"); err != nil || strings.TrimSpace(out) == "" {
		t.Errorf("version: %q, %v", out, err)
	}
}

func writeKubeconfig(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := os.WriteFile(path, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u"}}],"users":[{"name":"u","user":{}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	o := Options{Hubs: []string{"hub:1"}, Config: &rest.Config{}, JoinTokenFile: path}
	if a, err := New(o); err != nil || a.token.text != "" {
		t.Errorf("a missing file is no error once the agent has joined: %v", err)
	}
	if err := os.WriteFile(path, []byte("towline1.abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	a, err := New(o)
	if err != nil || a.token.text != "towline1.abc" {
		t.Fatalf("token %q, %v", a.token.text, err)
	}
	for _, step := range []struct{ text, want string }{{"towline1.def", "towline1.def"}, {"\n", "towline1.def"}, {"", "towline1.def"}, {"towline1.ghi", "towline1.ghi"}} {
		if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := a.token.given(); got != step.want {
			t.Errorf("after %q is written the token is %q", step.text, got)
		}
	}
	if text := log.String(); strings.Count(text, "is empty") != 1 || strings.Contains(text, "towline1.") {
		t.Errorf("logged:\n%s", text)
	}
}

// TestTokenFileOfNoUse: an agent that belongs to no hub says what is wrong with the file that was to have its join token.
func TestTokenFileOfNoUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := New(Options{Hubs: []string{"hub:1"}, Config: &rest.Config{}, JoinTokenFile: path})
	if err != nil {
		t.Fatal(err)
	}
	store, err := state.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	id, err := identity.Open(t.Context(), identity.Options{State: store, Dial: a.dialer.next, Token: a.token.given(), ClusterUID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.join(t.Context(), id, desired.Held{}); err == nil || !strings.Contains(err.Error(), path+" is empty") {
		t.Errorf("ends with: %v", err)
	}
}

func TestSecondAgentOnOneStateDirectory(t *testing.T) {
	dir := t.TempDir()
	first, err := state.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	a, err := New(Options{Hubs: []string{"hub:1"}, Config: &rest.Config{}, StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); !errors.Is(err, fleet.ErrExists) {
		t.Errorf("error %v", err)
	}
}

func TestLeaseNameIsKept(t *testing.T) {
	dir, err := state.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	one, err := leaseName(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if two, err := leaseName(t.Context(), dir); err != nil || two != one || one == "" {
		t.Errorf("%q, then %q, %v", one, two, err)
	}
}

func TestDialerTakesTurns(t *testing.T) {
	d := &dialer{hubs: []string{"a:1", "b:1"}}
	var got []string
	for range 3 {
		conn, err := d.next(&tls.Config{})
		if err != nil {
			t.Fatal(err)
		}
		_, addr, _ := strings.Cut(conn.Target(), ":///")
		got = append(got, addr)
		_ = conn.Close()
	}
	if strings.Join(got, " ") != "a:1 b:1 a:1" {
		t.Errorf("dialed %q", got)
	}
	if _, _, err := net.SplitHostPort(got[0]); err != nil {
		t.Error(err)
	}
}

func TestMaskHidesSecretsEverywhere(t *testing.T) {
	const secret = "hunter2"
	object := func(kind string) map[string]any {
		return map[string]any{"kind": kind, "data": map[string]any{"password": secret}, "stringData": map[string]any{"token": secret},
			"metadata": map[string]any{"name": "a", "managedFields": []any{"long"},
				"annotations": map[string]any{fleet.LastApplied: `{"data":{"password":"` + secret + `"}}`, "note": "kept"}}}
	}
	s := object("Secret")
	b, err := json.Marshal(shown(s))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(b); strings.Contains(text, secret) || !strings.Contains(text, `"password":"***"`) || !strings.Contains(text, `"note":"kept"`) ||
		strings.Contains(text, "managedFields") {
		t.Errorf("masked: %s", text)
	}
	m := object("ConfigMap")
	if b, _ := json.Marshal(shown(m)); !strings.Contains(string(b), secret) || strings.Contains(string(b), "managedFields") {
		t.Errorf("a ConfigMap: %s", b)
	}
	shown(map[string]any{"kind": "Secret"}) // nothing to hide
	work := map[string]any{"kind": "ManifestWork", "spec": map[string]any{"workload": map[string]any{"manifests": []any{object("Secret"), object("ConfigMap")}}}}
	work["spec"].(map[string]any)["workload"].(map[string]any)["manifests"].([]any)[1] = map[string]any{"kind": "ConfigMap", "data": map[string]any{"a": "open"}}
	if b, _ := json.Marshal(shown(work)); strings.Contains(string(b), secret) || !strings.Contains(string(b), "open") {
		t.Errorf("a Secret in another object: %s", b)
	}
}
