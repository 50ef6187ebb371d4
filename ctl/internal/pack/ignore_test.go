package pack

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
)

// gitKeeps is which files of a folder git would keep by its ignore files.
func gitKeeps(t *testing.T, dir string) (kept []string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", "-C", dir, "ls-files", "-z", "--others", "--exclude-per-directory="+IgnoreFile).Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name != "" && path.Base(name) != IgnoreFile {
			kept = append(kept, name)
		}
	}
	slices.Sort(kept)
	return kept
}

// gitFolderOf makes a folder one of git, where git is installed.
func gitFolderOf(t *testing.T, dir string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not here")
	}
	if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v %s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "git", "-C", dir, "config", "core.ignorecase", "false").CombinedOutput(); err != nil {
		t.Fatalf("git config: %v %s", err, out)
	}
}

func write(t *testing.T, at, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestIgnoreIsGits: what is left out is what git would leave out by the same lines.
func TestIgnoreIsGits(t *testing.T) {
	paths := []string{"a", "a.txt", "b/a", "b/a.txt", "b/c/a", "b/c/a.log", "doc/x.md", "doc/sub/y.md", "foo/bar/baz", "x/foo/bar", ".hidden",
		"b/.hidden", "a b", "#c", "!d", "build/out", "src/build/out", "tmp1", "tmp2", "tmpx", "[z]", "{a,b}"}
	patterns := []string{"a", "/a", "a/", "b/", "/b/", "*.txt", "*.log", "!b/a.txt", "!*.log", "**/a", "b/**", "b/**/a", "doc/*.md", "doc/**/*.md",
		"foo/", "foo/bar", "/foo/bar/", "**/bar", "**/foo/bar", "foo/**/baz", ".*", ".hidden", `a\ b`, "a b", `\#c`, `\!d`, "build", "/build",
		"build/*", "tmp[12]", "tmp[!12]", "tmp[1-2]", "tmp?", "# comment", "", "  ", "*", "!a", "*/", "!*/", "b/*", "!b/c", "b/c/*", "a.txt ", `\[z]`,
		"b/c/", "!b/c/a", "{a,b}", "*.md", "/*", "!/doc", "**", "doc/**", "!doc/sub/", "tmp[^12]", "tmp[[:digit:]]", "[[:alpha:]]*.txt", "[]a]", "[a[]z]"}
	r := rand.New(rand.NewPCG(1, 2))
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
	dir := t.TempDir()
	for _, p := range paths {
		write(t, filepath.Join(dir, p), "x")
	}
	gitFolderOf(t, dir)
	for _, lines := range rounds {
		text := strings.Join(lines, "\n") + "\n"
		for _, at := range []string{".", "b"} { // a second file further down holds for what is there
			write(t, filepath.Join(dir, at, IgnoreFile), text)
			want := gitKeeps(t, dir)
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

// keeps is which files of a folder are not left out, whatever names they have.
func keeps(t *testing.T, dir, name string, above *rules) (kept []string) {
	t.Helper()
	at := filepath.Join(dir, name)
	own, err := readIgnore(at)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	list, err := os.ReadDir(at)
	if err != nil {
		t.Fatal(err)
	}
	above = above.and(name, own)
	for _, e := range list {
		switch in := path.Join(name, e.Name()); {
		case e.Name() == gitFolder || e.Name() == IgnoreFile || above.excludes(in, e.IsDir()):
		case e.IsDir():
			kept = append(kept, keeps(t, dir, in, above)...)
		default:
			kept = append(kept, in)
		}
	}
	slices.Sort(kept)
	return kept
}

// TestRandomIgnoreIsGits: of random lines and names git and we leave out the same. A line that is refused is one by which git leaves out nothing.
func TestRandomIgnoreIsGits(t *testing.T) {
	const folders, rounds = 60, 3
	r := rand.New(rand.NewPCG(ignoreSeed, 1))
	pick := func(of []string, n int) string {
		var out strings.Builder
		for range n {
			out.WriteString(of[r.IntN(len(of))])
		}
		return out.String()
	}
	letters := []string{"a", "a", "b", "b", "A", "1", "-", "]", "[", "!", "^", `\`, "*", "#", " ", "é", ".", "{", ",", "}", "_", "\t", "\r", "~"}
	tokens := []string{"a", "a", "b", "b", "A", "1", "*", "*", "**", "**", "/", "/", "/", "***", "?", "[ab]", "[a-b]", "[!a]", "[^a]", "[]a]", "[!]a]",
		"[[:alpha:]]", "[[:digit:]b]", "[![:upper:]]", "[[:punct:]]", "[[:space:]]", "[[:nope:]]", "[[:alpha]", "[a[:]b]", "[a", "[", "]", `[a\]]`, `[\a-b]`,
		"[b-a]", "[a-]", "[-a]", "[a-b-1]", "[é]", `\`, `\\`, `\a`, `\/`, `\*`, "!", "#", `\#`, `\!`, " ", `\ `, "\t", "é", ".", "{a,b}", "{", "}", "^", "-", "_", "\r", "~"}
	for round := range rounds {
		dir := t.TempDir()
		gitFolderOf(t, dir)
		texts := map[string]string{}
		for i := range folders {
			base := fmt.Sprintf("f%03d", i)
			for range 12 {
				write(t, filepath.Join(dir, base, strings.Trim(pick(letters, 1+r.IntN(3)), "./ ")+"x"), "")
				write(t, filepath.Join(dir, base, pick([]string{"a", "b", "ab", "1", "[a", "a b"}, 1), pick([]string{"a", "b", "*", "-", "A"}, 1+r.IntN(2))), "")
				write(t, filepath.Join(dir, base, "a.d", pick([]string{"a", "b"}, 1), pick([]string{"a", "b"}, 1), pick([]string{"a", "b", "ab", "1"}, 1)), "")
			}
			var lines []string
			for range 1 + r.IntN(3) {
				line := strings.TrimRight(pick(tokens, 1+r.IntN(5)), "\r") // one at the end would be of the end
				if _, _, err := parseRule(line); err == nil {
					lines = append(lines, line)
				} else {
					lines = []string{line} // alone, as it is refused
					break
				}
			}
			end := []string{"\n", "\n", "\r\n"}[r.IntN(3)]
			texts[base] = strings.Join(lines, end) + []string{end, ""}[r.IntN(2)]
			write(t, filepath.Join(dir, base, IgnoreFile), texts[base])
		}
		git := map[string][]string{}
		for _, name := range gitKeeps(t, dir) {
			base, _, _ := strings.Cut(name, "/")
			git[base] = append(git[base], name)
		}
		refused := 0
		for base, text := range texts {
			if _, err := parseIgnore([]byte(text)); err != nil {
				refused++
				if err := os.Remove(filepath.Join(dir, base, IgnoreFile)); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(git[base], keeps(t, dir, base, nil)); diff != "" {
				t.Errorf("round %d: %q: (-git +got)\n%s", round, text, diff)
			}
		}
		if refused == folders {
			t.Error("every text is refused")
		}
	}
}

// ignoreSeed is that of the random lines.
const ignoreSeed = 1

// utf16Of is a text as shells on Windows write it.
func utf16Of(s string, low, high int) string {
	out := make([]byte, 0, 2*len(s))
	for _, u := range utf16.Encode([]rune("\ufeff" + s)) {
		b := [2]byte{}
		b[low], b[high] = byte(u), byte(u>>8)
		out = append(out, b[:]...)
	}
	return string(out)
}

// TestIgnoreFilesThatAreNoText: what cannot be read as rules is refused by the name of the file, and never is a file without rules.
func TestIgnoreFilesThatAreNoText(t *testing.T) {
	for name, text := range map[string]string{
		"UTF-16LE": utf16Of("# Ä\r\n*.env\r\n", 0, 1), "UTF-16BE": utf16Of("*.env\r\n", 1, 0), "UTF-8 with its mark": "\ufeff*.env\r\n",
		"a last line without an end": "# x\n*.env",
	} {
		p, err := Dir(folder(t, map[string]string{"a.yaml": "a", "prod.env": "PASSWORD=x", IgnoreFile: text}))
		if err != nil || p.Files["prod.env"] != nil {
			t.Errorf("%s: prod.env is packed, or %v", name, err)
		}
	}
	for name, tt := range map[string]struct{ text, want string }{
		"UTF-16 without its mark": {utf16Of("*.env\r\n", 0, 1)[2:], "has a NUL byte, so it is no text, or one in UTF-16: save it as UTF-8"},
		"UTF-32":                  {"\xff\xfe\x00\x00*\x00\x00\x00", "begins as UTF-16, and is none: save it as UTF-8"},
		"half a letter":           {"\xff\xfe*\x00.", "begins as UTF-16, and is none"},
		"Latin-1":                 {"caf\xe9.env\n", "is not UTF-8: save it as UTF-8"},
		"NUL":                     {"*.env\x00\n", "has a NUL byte"},
		"an endless one":          {strings.Repeat("#", maxIgnore+1), "has more than 1024 KiB"},
		"a link to nothing":       {"->gone", "no such file or directory"},
		"a link to a folder":      {"->.", "is no file"},
		"a class":                 {"*.env\n[[:letter:]].env\n", `line 2: "[[:letter:]].env" is no pattern of a .gitignore: has a class [:letter:] that is not known`},
		"no end":                  {"[a-.env\n", "line 1: \"[a-.env\" is no pattern of a .gitignore: has a [ without its ]"},
		"a backslash":             {"a\\\n", "ends with a backslash that escapes nothing"},
	} {
		dir := folder(t, map[string]string{"a.yaml": "a", "sub/prod.env": "x", "sub/" + IgnoreFile: tt.text})
		want := filepath.Join(dir, "sub", IgnoreFile) + ": "
		if _, err := Dir(dir); err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s%s", name, err, want, tt.want)
		}
	}
}

// TestLinkToWhatIsLeftOut: what the ignore files leave out where it is, is packed by no link.
func TestLinkToWhatIsLeftOut(t *testing.T) {
	for _, rule := range []string{"/secret/\n", "secret/key.pem\n", "*.pem\n", "/secret/*\n", "/*\n!/a.yaml\n!/shown.txt\n"} {
		dir := folder(t, map[string]string{"a.yaml": "a", "secret/key.pem": "k", "shown.txt": "->secret/key.pem", IgnoreFile: rule})
		want := filepath.Join(dir, "shown.txt") + ": is a symbolic link to " + filepath.Join(dir, "secret", "key.pem") + ", which a .towlineignore leaves out"
		if _, err := Dir(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", rule, err, want)
		}
	}
	base := map[string]string{"base/a.yaml": "a", "base/secret.yaml": "s", "base/sub/b.env": "s", "base/sub/b.yaml": "b", "base/sub/" + IgnoreFile: "*.env\n",
		"app": "->base", "deep/app": "->../base/sub", IgnoreFile: "/base/secret.yaml\n"}
	p, err := Dir(folder(t, base))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"app/a.yaml", "app/sub/b.yaml", "base/a.yaml", "base/sub/b.yaml", "deep/app/b.yaml"}, names(p)); diff != "" {
		t.Errorf("by a link to a folder: %s", diff)
	}
	base["base/sub/"+IgnoreFile] = "*.yaml\n"
	base["one.yaml"] = "->base/sub/b.yaml"
	if _, err := Dir(folder(t, base)); err == nil || !strings.Contains(err.Error(), "one.yaml: is a symbolic link to ") {
		t.Errorf("by the rules of a folder further down: %v", err)
	}
	base[IgnoreFile] = "/base/\n!/app\n"
	if _, err := Dir(folder(t, base)); err == nil || !strings.Contains(err.Error(), "app: is a symbolic link to ") {
		t.Errorf("to a folder that is left out: %v", err)
	}
}

// TestSpelling: a link may lead to a file by another spelling, where the file system ignores case; the rules match its own.
func TestSpelling(t *testing.T) {
	names := map[string]bool{"secret": true, "Other": true, "x": true}
	same := func(as string) func(string) bool { return func(name string) bool { return name == as } }
	for asked, tt := range map[string]struct{ same, want string }{
		"secret": {"x", "secret"}, // a hard link is another name of its own
		"SECRET": {"secret", "secret"},
		"other":  {"Other", "Other"},
		"gone":   {"", "gone"},
	} {
		if got := spelling(names, asked, same(tt.same)); got != tt.want {
			t.Errorf("%s: %s, want %s", asked, got, tt.want)
		}
	}
}

// TestIgnoreInAnyForm: a rule leaves out a file whichever form of Unicode the file system gave its name, and an editor the rule.
func TestIgnoreInAnyForm(t *testing.T) {
	const one, two = "caf\u00e9", "cafe\u0301"
	for _, rule := range []string{one, two, "/" + one + ".key", two + "*", one + ".*", "d/" + two + ".key", "!x\n" + one + ".key"} {
		for _, name := range []string{one, two} {
			dir := t.TempDir()
			file := name + ".key"
			if rule == one || rule == two {
				file = name + "/a.key" // a folder
			}
			if strings.HasPrefix(rule, "d/") {
				file = "d/" + file
			}
			write(t, filepath.Join(dir, file), "secret")
			write(t, filepath.Join(dir, "a.yaml"), "a")
			write(t, filepath.Join(dir, IgnoreFile), rule+"\n")
			p, err := Dir(dir)
			if err != nil || len(p.Files) != 1 {
				t.Errorf("%+q leaves %+q: %v, %v", rule, file, p, err)
			}
		}
	}
}
