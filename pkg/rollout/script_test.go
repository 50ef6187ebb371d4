package rollout_test

import (
	"bufio"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts yield into testdata")

// A script is a story: blocks of commands, "----", and what is seen. Each file begins with a comment that says what
// must be seen. See world_test.go for the commands.
func TestStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 60 {
		t.Errorf("%d stories, want at least 60: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { play(t, file) })
	}
}

func play(t *testing.T, file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(b), "# ") {
		t.Errorf("%s: does not begin with a comment that says what must be seen", file)
	}
	blocks := parse(string(b))
	w := newWorld(t)
	var out strings.Builder
	for _, bl := range blocks {
		for _, line := range bl.lines {
			out.WriteString(line + "\n")
			w.command(line)
		}
		got := w.flush()
		if bl.bare && got == "" {
			continue
		}
		out.WriteString("----\n" + got + "\n")
		if !*rewrite && got != bl.want {
			t.Errorf("%s: after %q\ngot:\n%s\nwant:\n%s", file, bl.lines[len(bl.lines)-1], got, bl.want)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

type block struct {
	lines []string
	want  string
	bare  bool // no "----": nothing is seen
}

func parse(s string) []block {
	var out []block
	cur := block{bare: true}
	seeing := false
	flush := func() {
		if len(cur.lines) > 0 {
			out = append(out, cur)
		}
		cur, seeing = block{bare: true}, false
	}
	sc := bufio.NewScanner(strings.NewReader(s))
	for sc.Scan() {
		line := sc.Text()
		switch {
		case line == "" && seeing:
			flush()
		case line == "----":
			seeing, cur.bare = true, false
		case seeing:
			cur.want += line + "\n"
		default:
			cur.lines = append(cur.lines, line)
		}
	}
	flush()
	return out
}

// args splits "name k=v k=\"v w\"" into words and settings.
func args(line string) (words []string, kv map[string]string) {
	kv = map[string]string{}
	var cur strings.Builder
	quoted, any := false, false
	add := func() {
		if !any {
			return
		}
		s := cur.String()
		if k, v, ok := strings.Cut(s, "="); ok {
			kv[k] = v
		} else {
			words = append(words, s)
		}
		cur.Reset()
		any = false
	}
	for _, r := range line {
		switch {
		case r == '"':
			quoted, any = !quoted, true
		case r == ' ' && !quoted:
			add()
		default:
			cur.WriteRune(r)
			any = true
		}
	}
	add()
	return words, kv
}

// expand reads c1..c3 and c1,c7.
func expand(s string) []string {
	var out []string
	for _, part := range strings.Split(s, ",") {
		a, b, ok := strings.Cut(part, "..")
		if !ok {
			out = append(out, part)
			continue
		}
		stem := strings.TrimRight(a, "0123456789")
		lo, _ := strconv.Atoi(a[len(stem):])
		hi, _ := strconv.Atoi(strings.TrimPrefix(b, stem))
		for i := lo; i <= hi; i++ {
			out = append(out, stem+strconv.Itoa(i))
		}
	}
	return out
}
