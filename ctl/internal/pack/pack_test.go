package pack

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	files[".git/HEAD"], files[IgnoreFile], files["sub/.git"], files["x.log"] = "ref: refs/heads/main", "*.log\n", "gitdir: elsewhere", "left out"
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
		"outside":  {map[string]string{"a": "x", "b": "->" + outside + "/secret"}, "b: is a symbolic link to " + outside + "/secret, outside of the folder"},
		"parent":   {map[string]string{"a": "x", "b": "->.."}, "b: is a symbolic link to "},
		"loop":     {map[string]string{"a": "->b", "b": "->a"}, "a: cannot be read: "},
		"nothing":  {map[string]string{"a": "->gone"}, "a: cannot be read: no such file or directory"},
		"itself":   {map[string]string{"sub/a": "x", "sub/b": "->."}, "sub/b: is a symbolic link to a folder that it is in"},
		"above":    {map[string]string{"sub/a": "x", "sub/in/b": "->../.."}, "sub/in/b: is a symbolic link to a folder that it is in"},
		"each":     {map[string]string{"x/a": "->../y", "y/b": "->../x"}, "is a symbolic link to a folder that it is in"},
		"into git": {map[string]string{".git/config": "x", "b": "->.git/config"}, "b: is a symbolic link into .git"},
	} {
		dir := folder(t, tt.files)
		if _, err := Dir(dir); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), dir) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
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

// TestIgnoreIsGits: what is left out is what git would leave out by the same lines.
func TestIgnoreIsGits(t *testing.T) {
	paths := []string{"a", "a.txt", "b/a", "b/a.txt", "b/c/a", "b/c/a.log", "doc/x.md", "doc/sub/y.md", "foo/bar/baz", "x/foo/bar", ".hidden",
		"b/.hidden", "a b", "#c", "!d", "build/out", "src/build/out", "tmp1", "tmp2", "tmpx", "[z]", "{a,b}"}
	patterns := []string{"a", "/a", "a/", "b/", "/b/", "*.txt", "*.log", "!b/a.txt", "!*.log", "**/a", "b/**", "b/**/a", "doc/*.md", "doc/**/*.md",
		"foo/", "foo/bar", "/foo/bar/", "**/bar", "**/foo/bar", "foo/**/baz", ".*", ".hidden", `a\ b`, "a b", `\#c`, `\!d`, "build", "/build",
		"build/*", "tmp[12]", "tmp[!12]", "tmp[1-2]", "tmp?", "# comment", "", "  ", "*", "!a", "*/", "!*/", "b/*", "!b/c", "b/c/*", "a.txt ", `\[z]`,
		"b/c/", "!b/c/a", "{a,b}", "*.md", "/*", "!/doc", "**", "doc/**", "!doc/sub/"}
	r := mathrand.New(mathrand.NewPCG(1, 2))
	rounds := make([][]string, 0, len(patterns)+80)
	for _, p := range patterns {
		rounds = append(rounds, []string{p})
	}
	for range 80 {
		var lines []string
		for range 2 + r.IntN(4) {
			lines = append(lines, patterns[r.IntN(len(patterns))])
		}
		rounds = append(rounds, lines)
	}
	files := map[string]string{}
	for _, p := range paths {
		files[p] = "x"
	}
	dir := folder(t, files)
	git := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).Output()
		if err != nil {
			t.Fatalf("git %q: %v", args, err)
		}
		return string(out)
	}
	git("init", "-q")
	for _, lines := range rounds {
		text := []byte(strings.Join(lines, "\n") + "\n")
		for _, at := range []string{".", "b"} { // a second file further down holds for what is there
			if err := os.WriteFile(filepath.Join(dir, at, IgnoreFile), text, 0o644); err != nil {
				t.Fatal(err)
			}
			want := slices.DeleteFunc(strings.Split(git("ls-files", "-z", "--others", "--exclude-per-directory="+IgnoreFile), "\x00"),
				func(s string) bool { return s == "" || strings.HasSuffix(s, IgnoreFile) })
			slices.Sort(want)
			var got []string
			if p, err := Dir(dir); err == nil {
				got = names(p)
			} else if !strings.Contains(err.Error(), "has no files") {
				t.Fatalf("%q: %v", lines, err)
			}
			if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
				t.Errorf("%q in %s: (-git +got)\n%s", lines, at, diff)
			}
		}
		if err := os.Remove(filepath.Join(dir, "b", IgnoreFile)); err != nil {
			t.Fatal(err)
		}
	}
}
