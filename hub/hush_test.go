package hub_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub"
	"towline.dev/towline/pkg/rollout"
)

// hush is what the values of secrets are here, as they are and in base64, wherever in that they begin.
var hush = regexp.MustCompile("hush-[a-z-]+|aHVzaC1|h1c2gt|odXNoL")

// findAll is what a pattern matches, where every match begins with one of these. They are looked for first: the pattern alone takes minutes
// over the files of a store under the race detector.
func findAll(pattern *regexp.Regexp, text string, begin ...string) []string {
	if !slices.ContainsFunc(begin, func(b string) bool { return strings.Contains(text, b) }) {
		return nil
	}
	return pattern.FindAllString(text, -1)
}

// hushed are values of every kind, by their keys.
func hushed() []string {
	pem := "-----BEGIN OPENSSH PRIVATE KEY-----\nhush-identity\n-----END OPENSSH PRIVATE KEY-----\n"
	return []string{"username", "hush-user", "password", "hush-password", "header.X-Key", "hush-header", "identity", pem, "known_hosts", "hush-hosts", "binary", "\x00hush-binary\xff"}
}

// untrusty is a server that does with what it is sent what it can to have others show it.
func untrusty(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		said := user + password + r.Header.Get("X-Key") + r.Header.Get("Authorization")
		w.Header().Set("X-Said", said)
		switch r.URL.Path {
		case "/redirect":
			w.Header().Set("Location", "https://"+r.Header.Get("X-Key")+".test/"+said)
			w.WriteHeader(http.StatusFound)
		case "/scheme":
			w.Header().Set("Location", r.Header.Get("X-Key")+"://x/"+said)
			w.WriteHeader(http.StatusFound)
		case "/good":
			_, _ = fmt.Fprint(w, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: default}\n")
		default:
			w.WriteHeader(http.StatusForbidden)
			_, _ = fmt.Fprint(w, said)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestSecretsAreFoundNowhere plants values in secrets and looks for them in what the hub logs at debug level, in every answer of every method
// to an admin, refusals included, in what the command line prints, and in every file of the hub but that of its key.
func TestSecretsAreFoundNowhere(t *testing.T) {
	var log lockedBuffer
	w := newWorldWith(t, func(o *hub.Options) {
		o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	w.join("a", nil, nil)
	server, said := untrusty(t), map[string]string{}
	w.setSecret("repo", hushed()...)
	w.setSecret("lost", hushed()...)
	for _, path := range []string{"shop", "redirect", "scheme", "good"} {
		m := module(path, nil)
		m.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: server + "/" + path, SecretName: "repo"}}
		ended := func(r *towlinev1.Rollout) bool { // where no name is answered for, the host of a redirect may be there later
			return !slices.Contains([]string{"Pending", "Progressing"}, r.GetStatus().GetState()) || r.GetStatus().GetReason() == rollout.ReasonSourceAway
		}
		if s := w.until(path, w.put(m).GetRevision(), ended).GetStatus(); (s.GetState() == "Succeeded") != (path == "good") {
			t.Errorf("%s: %v", path, s)
		}
	}
	waits := module("fetched", nil) // for a secret with too much of it
	waits.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: server + "/good", SecretName: "both"}}
	w.setSecret("both", "username", "hush-user", "password", "hush-password", "token", "hush-token\n")
	w.waitsForSecret("fetched", w.put(waits).GetRevision())
	bound(w, said)
	refusals(w, said)
	for method, text := range readAll(t, w.ctx, w.Client) {
		said[method] = text
	}
	if text := said["towline.v1.SecretService.ListSecrets"]; strings.Count(text, "known_hosts") < 2 || !strings.Contains(said["towline.v1.SecretService.GetSecret"], "header.X-Key") {
		t.Errorf("no secrets were listed: %q", text)
	}
	commands(w, said)
	said["the log"] = log.String()
	w.stopHub()
	said["the log of the stop"] = log.String()
	filesOf(w, said)
	for where, text := range said {
		if found := findAll(hush, text, "hush-", "aHVzaC1", "h1c2gt", "odXNoL"); len(found) > 0 {
			t.Errorf("%s shows %q", where, found)
		}
	}
}

// bound has an agent be sent a value, and says what of it can be seen on the way.
func bound(w *world, said map[string]string) {
	w.t.Helper()
	k := newKeyholder(w.t)
	w.enroll("b", nil)
	w.connectWith("b", k.options())
	m := listing("bound", "uses")
	m.Spec.Bindings = []*towlinev1.Binding{{Name: "PW", Secret: &towlinev1.BindingSecret{Name: "both", Key: "password"}},
		{Name: "OWN", Secret: &towlinev1.BindingSecret{Name: "scoped", Key: "password"}}}
	for _, scope := range []*towlinev1.SecretScope{{Cluster: "b"}, {LabelSelector: "env=prod"}} {
		_, err := w.Secrets.SetSecret(w.ctx, &towlinev1.SetSecretRequest{Name: "scoped", Scope: scope, Values: map[string][]byte{"password": []byte("hush-scoped")}})
		must(w.t, err)
	}
	m.Spec.Placement = &towlinev1.Placement{Clusters: []string{"b"}}
	w.put(m)
	k.await(w.ctx, "the value", func(has map[string]string) bool {
		return has["both"] == "password=hush-password;" && has["scoped"] == "password=hush-scoped;"
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, f := range k.frames {
		said[fmt.Sprintf("frame %d", i)] = f.String() + fmt.Sprintf("%s", f.GetSecrets())
	}
}

// refusals are what is said of what is not taken.
func refusals(w *world, said map[string]string) {
	w.t.Helper()
	for name, change := range map[string]func(*towlinev1.SetSecretRequest){
		"a bad name":      func(r *towlinev1.SetSecretRequest) { r.Name = "NO" },
		"a bad project":   func(r *towlinev1.SetSecretRequest) { r.Project = "none" },
		"too much":        func(r *towlinev1.SetSecretRequest) { r.Values["a"] = []byte(strings.Repeat("hush-much", 64<<10)) },
		"an old version":  func(r *towlinev1.SetSecretRequest) { r.ResourceVersion = 1 },
		"another uid":     func(r *towlinev1.SetSecretRequest) { r.Uid = "x" },
		"set and removed": func(r *towlinev1.SetSecretRequest) { r.Remove = []string{"username"} },
	} {
		req := setting("repo", hushed()...)
		change(req)
		_, err := w.Secrets.SetSecret(w.ctx, req)
		if err == nil {
			w.t.Errorf("%s: taken", name)
			continue
		}
		said["refused: "+name] = err.Error()
	}
}

// commands are what the command line prints.
func commands(w *world, said map[string]string) {
	w.t.Helper()
	run := w.cli()
	for _, command := range []string{
		"secret set repo password=- header.X-Key=-", "secret set repo password", "secret set repo a=-", "secret set repo password=-", "secret set repo username=@/nowhere",
		"get secrets -o yaml", "get secrets -A -o wide", "get secret repo -o json", "describe secret repo", "delete secret repo", "delete secret lost --yes",
		"get modules -o yaml", "describe module shop", "explain module redirect", "explain module fetched", "rollout status shop", "rollout status fetched --watch=false", "rollout history shop",
		"get rollouts -o yaml", "get revisions -o yaml", "get objects -o yaml", "get trackers -o yaml", "get projects -o yaml", "events module/shop", "render --help",
	} {
		out, err := run("hush-typed\n", strings.Fields(command)...)
		said["towline "+command] = fmt.Sprint(out, err)
	}
	if text := said["towline describe secret repo"]; !strings.Contains(text, "Used by:      good, redirect, scheme, shop") {
		w.t.Errorf("describe: %s", text)
	}
}

// filesOf are those of the hub: its store, with what is only in the log of that, and what stands beside it.
func filesOf(w *world, said map[string]string) {
	w.t.Helper()
	found := 0
	must(w.t, filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		found++
		said["file "+path] = string(text)
		return err
	}))
	key, err := os.ReadFile(filepath.Join(w.dir, "secrets.key"))
	must(w.t, err)
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(key)))
	if err != nil || len(raw) != 32 || found < 5 {
		w.t.Fatalf("%d files, and a key of %d bytes: %v", found, len(raw), errors.Join(err))
	}
	stored := false
	for where, text := range said {
		if strings.Contains(where, "etcd") {
			stored = stored || strings.Contains(text, "secrets/default/repo")
			if strings.Contains(text, string(raw)) || strings.Contains(text, strings.TrimSpace(string(key))) {
				w.t.Errorf("%s has the key", where)
			}
		}
	}
	if !stored {
		w.t.Error("the files of the store were not found")
	}
}
