package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"towline.dev/towline/hub/internal/source/sourcetest"
)

// TestFolderLeadsNowhereElse: a repository in a folder has what is in that folder. Who may write into it has the hub read no other one, by
// alternates, by symbolic links or by its refs.
func TestFolderLeadsNowhereElse(t *testing.T) {
	hidden := sourcetest.NewRepo(t)
	commit := hidden.Branch("main", map[string]any{"secret.yaml": "hidden"})
	for name, lead := range map[string]func(dir string) error{
		"alternates": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "objects/info/alternates"), []byte(filepath.Join(hidden.Dir, "objects")+"\n"), 0o600)
		},
		"relative alternates": func(dir string) error {
			rel, err := filepath.Rel(filepath.Join(dir, "objects"), filepath.Join(hidden.Dir, "objects"))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "objects/info/alternates"), []byte(rel+"\n"), 0o600)
		},
		"a link to its objects": func(dir string) error {
			if err := os.RemoveAll(filepath.Join(dir, "objects")); err != nil {
				return err
			}
			return os.Symlink(filepath.Join(hidden.Dir, "objects"), filepath.Join(dir, "objects"))
		},
		"links to its packs and folders of objects": func(dir string) error {
			entries, err := os.ReadDir(filepath.Join(hidden.Dir, "objects"))
			if err != nil {
				return err
			}
			for _, e := range entries {
				to := filepath.Join(dir, "objects", e.Name())
				_ = os.RemoveAll(to)
				if err := os.Symlink(filepath.Join(hidden.Dir, "objects", e.Name()), to); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := sourcetest.NewRepo(t)
			r.Branch("main", map[string]any{"a.yaml": "a"})
			if err := os.MkdirAll(filepath.Join(r.Dir, "objects/info"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := lead(r.Dir); err != nil {
				t.Fatal(err)
			}
			for _, ref := range []string{"refs/heads/main", "HEAD"} {
				if err := os.WriteFile(filepath.Join(r.Dir, ref), []byte(commit+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			a, err := fetcher(t, Options{AllowFiles: true}).Fetch(t.Context(), "default", gitSource("file://"+r.Dir, nil))
			if err == nil || a.Files != nil {
				t.Errorf("got %q", a.Files)
			}
			t.Log(err)
		})
	}
	t.Run("a ref that is a link", func(t *testing.T) {
		r := sourcetest.NewRepo(t)
		r.Branch("main", map[string]any{"a.yaml": "a"})
		outside := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(outside, []byte("canary-token\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(r.Dir, "refs/heads/other")); err != nil {
			t.Fatal(err)
		}
		for _, ref := range []string{"main", "other"} {
			_, err := fetcher(t, Options{AllowFiles: true}).Fetch(t.Context(), "default", gitSource("file://"+r.Dir, branch(ref)))
			t.Log(err)
			if err != nil && strings.Contains(err.Error(), "canary") {
				t.Errorf("%s: %v", ref, err)
			}
		}
	})
}

// TestFolderWhoseGitIsALink: who may write into a folder leads the hub to no other repository, also not by the folder .git.
func TestFolderWhoseGitIsALink(t *testing.T) {
	hidden := sourcetest.NewRepo(t)
	hidden.Branch("main", map[string]any{"secret.yaml": "hidden"})
	dir := t.TempDir()
	if err := os.Symlink(hidden.Dir, filepath.Join(dir, ".git")); err != nil {
		t.Fatal(err)
	}
	a, err := fetcher(t, Options{AllowFiles: true}).Fetch(t.Context(), "default", gitSource("file://"+dir, nil))
	if err == nil || a.Files != nil || !strings.Contains(err.Error(), "is no Git repository") {
		t.Errorf("got %q, %v", a.Files, err)
	}
}
