package hub_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExamplesOfTheSecretsPage: the commands of docs/secrets.md do what stands there, in their order, and its module is one that the hub
// takes.
func TestExamplesOfTheSecretsPage(t *testing.T) {
	g := readGuide(t, "../docs/secrets.md")
	if len(g.yaml) != 1 || len(g.commands) != 12 {
		t.Fatalf("%d examples and %d commands found", len(g.yaml), len(g.commands))
	}
	w := newWorld(t, true)
	towline, dir := w.cli(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "key.txt"), []byte("hush"), 0o600))
	t.Chdir(dir)
	if out, err := towline(g.yaml[0], "apply", "-f", "-"); err != nil || !strings.Contains(out, "secret repo is not there yet; the rollout waits for it: towline secret set repo KEY=-") {
		t.Errorf("%v\n%s", err, out)
	}
	keys := []string{"password, username", "header.X-Api-Key, password, username", "password, username"}
	for i, command := range g.commands {
		args, err := words(command)
		must(t, err)
		out, err := towline("hush\n", args[1:]...)
		if err != nil || strings.Contains(out, "hush") {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
		if i < len(keys) {
			if got := strings.Join(w.secret("repo").GetKeys(), ", "); got != keys[i] {
				t.Errorf("%s: has %s, want %s", command, got, keys[i])
			}
		}
	}
	if got := w.secret("repo").GetKeys(); len(got) != 1 || got[0] != "token" {
		t.Errorf("after the last: %v", got)
	}
}
