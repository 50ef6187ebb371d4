package pack

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// folder writes files; a content that begins with "->" is a symbolic link.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, link := strings.CutPrefix(content, "->"); link {
			err = os.Symlink(to, at)
		} else {
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(p *Pack) []string { return slices.Sorted(maps.Keys(p.Files)) }

// TestSameFilesSameDigest: wherever a folder is, whatever its times and modes are, and by what way it is named.
func TestSameFilesSameDigest(t *testing.T) {
	files := map[string]string{"a.yaml": "a", "sub/b.yaml": "b", "sub/empty": ""}
	one, err := Dir(folder(t, files))
	if err != nil {
		t.Fatal(err)
	}
	files[".git/HEAD"], files[IgnoreFile], files["sub/.git"], files["x.log"], files["low/.Git/config"] = "ref: refs/heads/main", "*.log\n", "gitdir: elsewhere", "left out", "x"
	other := folder(t, files)
	if err := os.Chmod(filepath.Join(other, "a.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(t.TempDir(), "way")); err != nil {
		t.Fatal(err)
	}
	two, err := Dir(other + "/./")
	if err != nil {
		t.Fatal(err)
	}
	if one.Digest != two.Digest || one.Digest != fleet.DigestOf(artifact.Encode(one.Files)) {
		t.Errorf("digests %s and %s of %q and %q", one.Digest, two.Digest, names(one), names(two))
	}
	packed, err := two.Packed()
	if err != nil {
		t.Fatal(err)
	}
	dec, err := zstd.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	defer dec.Close()
	if err := artifact.Check(dec); err != nil {
		t.Error(err)
	}
}

func TestLinks(t *testing.T) {
	p, err := Dir(folder(t, map[string]string{"base/a.yaml": "a", "file.yaml": "->base/a.yaml", "dir": "->base", "deep/up": "->../base/a.yaml"}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"base/a.yaml", "deep/up", "dir/a.yaml", "file.yaml"}, names(p)); diff != "" {
		t.Error(diff)
	}
	outside := folder(t, map[string]string{"secret": "s"})
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"outside":        {map[string]string{"a": "x", "b": "->" + outside + "/secret"}, "b: is a symbolic link to " + outside + "/secret, outside of the folder"},
		"parent":         {map[string]string{"a": "x", "b": "->.."}, "b: is a symbolic link to "},
		"loop":           {map[string]string{"a": "->b", "b": "->a"}, "a: cannot be read: "},
		"nothing":        {map[string]string{"a": "->gone"}, "a: cannot be read: no such file or directory"},
		"itself":         {map[string]string{"sub/a": "x", "sub/b": "->."}, "sub/b: is a symbolic link to a folder that it is in"},
		"above":          {map[string]string{"sub/a": "x", "sub/in/b": "->../.."}, "sub/in/b: is a symbolic link to a folder that it is in"},
		"each":           {map[string]string{"x/a": "->../y", "y/b": "->../x"}, "is a symbolic link to a folder that it is in"},
		"into git":       {map[string]string{".git/config": "x", "b": "->.git/config"}, "b: is a symbolic link into "},
		"into git below": {map[string]string{"sub/.git/config": "url = https://user:token@host/", "cfg": "->sub/.git/config"}, "cfg: is a symbolic link into "},
		"to git below":   {map[string]string{"sub/.git/config": "x", "all": "->sub/.git"}, "all: is a symbolic link into "},
		"Git":            {map[string]string{".GIT/config": "x", "cfg": "->.GIT/config"}, "cfg: is a symbolic link into "},
	} {
		dir := folder(t, tt.files)
		if _, err := Dir(dir); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), dir) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	dir := folder(t, map[string]string{".git": "gitdir: elsewhere", "a": "x", "cfg": "->other"}) // another name of the same, as on some file systems
	if err := os.Link(filepath.Join(dir, ".git"), filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	if _, err := Dir(dir); err == nil || !strings.Contains(err.Error(), "cfg: is a symbolic link into ") {
		t.Errorf("another name of .git: %v", err)
	}
	if _, err := Dir(folder(t, map[string]string{"a": "x", "b": "->" + outside, IgnoreFile: "/b\n"})); err != nil {
		t.Errorf("a link that is left out: %v", err)
	}
}

func TestWhatCannotBePacked(t *testing.T) {
	many := map[string]string{}
	for i := range artifact.MaxEntries + 1 {
		many[fmt.Sprint(i)] = ""
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"nothing":     {map[string]string{".git/HEAD": "x"}, "has no files, or all of them are left out by .towlineignore"},
		"case":        {map[string]string{"A": "x", "a": "x"}, `"A" and "a" differ in case only`},
		"backslash":   {map[string]string{`a\b`: "x"}, "has a backslash"},
		"bad pattern": {map[string]string{"a": "x", "s/b": "x", "s/" + IgnoreFile: "ok\na[b\n"}, `s/.towlineignore: line 2: "a[b" is no pattern`},
		"many":        {many, "has more than 10000 files"},
	} {
		if _, err := Dir(folder(t, tt.files)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	dir := folder(t, map[string]string{"a": "x"})
	if _, err := Dir(filepath.Join(dir, "gone")); !errors.Is(err, fleet.ErrNotFound) || !strings.Contains(err.Error(), "gone: cannot be read: no such file") {
		t.Errorf("no folder: %v", err)
	}
	if _, err := Dir(filepath.Join(dir, "a")); err == nil || !strings.Contains(err.Error(), "is a file: name the folder") {
		t.Errorf("a file: %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfifo", filepath.Join(dir, "pipe")).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	if _, err := Dir(dir); err == nil || !strings.Contains(err.Error(), "pipe: is a named pipe") {
		t.Errorf("a pipe: %v", err)
	}
}

func TestUnreadableIsNamed(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root reads everything")
	}
	dir := folder(t, map[string]string{"sub/a": "x"})
	if err := os.Chmod(filepath.Join(dir, "sub/a"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Dir(dir); err == nil || !strings.Contains(err.Error(), "sub/a: cannot be read: permission denied") {
		t.Errorf("got %v", err)
	}
}

// TestSizes: files are bounded together before and after they are packed.
func TestSizes(t *testing.T) {
	dir := folder(t, map[string]string{"a": "x", "big": ""})
	if err := os.Truncate(filepath.Join(dir, "big"), artifact.MaxUnpackedBytes); err != nil {
		t.Fatal(err)
	}
	if _, err := Dir(dir); !errors.Is(err, fleet.ErrExhausted) || !strings.Contains(err.Error(), "has more than 200 MiB of files (at big)") {
		t.Errorf("unpacked: %v", err)
	}
	noise := make([]byte, artifact.MaxPackedBytes+1)
	_, _ = rand.Read(noise)
	p := &Pack{Files: map[string][]byte{"noise": noise}}
	if _, err := p.Packed(); !errors.Is(err, fleet.ErrExhausted) || !strings.Contains(err.Error(), "has more than 64 MiB packed") {
		t.Errorf("packed: %v", err)
	}
}

// TestLinksThatMultiply: folders that link to each other are bounded, also if there is no file in them.
func TestLinksThatMultiply(t *testing.T) {
	files := map[string]string{"a.yaml": "a", "f16/empty": "->../none"}
	for i := range 16 {
		for j := range 8 {
			files[fmt.Sprintf("f%02d/%d", i, j)] = fmt.Sprintf("->../f%02d", i+1)
		}
	}
	files[IgnoreFile] = "empty\n"
	dir := folder(t, files)
	if _, err := Dir(dir); !errors.Is(err, fleet.ErrExhausted) || !strings.Contains(err.Error(), "symbolic links lead to more than 10000 folders (at f00/0/") {
		t.Errorf("got %v", err)
	}
}

// meanwhile is a file that something happens to while it is read.
type meanwhile struct {
	fs.File
	do func()
}

func (m *meanwhile) Read(b []byte) (int, error) {
	n, err := m.File.Read(b[:min(len(b), 2)])
	if m.do != nil {
		m.do()
		m.do = nil
	}
	return n, err
}

// TestFileThatIsWrittenMeanwhile: what is half of an old file and half of a new one is not packed.
func TestFileThatIsWrittenMeanwhile(t *testing.T) {
	at := filepath.Join(t.TempDir(), "a")
	put := func(text string, later time.Duration) func() {
		return func() {
			if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			then := time.Unix(1600000000, 0).Add(later)
			if err := os.Chtimes(at, then, then); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tt := range map[string]struct {
		do    func()
		most  int64
		taken bool
	}{
		"nothing":           {func() {}, 100, true},
		"more than is read": {func() {}, 3, true},
		"cut":               {put("k", 0), 100, false},
		"longer":            {put("key: old, and more", 0), 100, false},
		"as long":           {put("key: new", time.Millisecond), 100, false},
		"another file":      {func() { _ = os.Remove(at); put("key: new", time.Hour)() }, 100, true},
	} {
		put("key: old", 0)()
		f, err := os.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		data, err := steady(&meanwhile{f, tt.do}, tt.most)
		if taken := err == nil; taken != tt.taken || taken && string(data) != "key: old"[:min(tt.most, 8)] {
			t.Errorf("%s: %q, %v", name, data, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
