package rollout_test

import (
	"bufio"
	"flag"
	"os"
	"path/filepath"
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
