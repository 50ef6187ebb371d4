package pack

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// rules are those of the ignore files of a folder and of those above it.
type rules struct {
	above *rules
	list  []rule
}

// rule is a line of an ignore file.
type rule struct {
	pattern string // of the path below the folder that is packed
	keeps   bool   // takes back what lines before it leave out
	folders bool   // counts for folders only
}

// in adds the rules of the ignore file in a folder; without one they are those of before.
func (r *rules) in(name, at string) (*rules, error) {
	text, err := os.ReadFile(filepath.Join(at, IgnoreFile)) //nolint:gosec // the folder is the caller's own
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, unreadable(IgnoreFile, err)
	}
	out := &rules{above: r}
	lines := bufio.NewScanner(bytes.NewReader(bytes.TrimPrefix(text, []byte("\ufeff"))))
	for n := 1; lines.Scan(); n++ {
		x, ok := parseRule(lines.Text(), name)
		if !ok {
			continue
		}
		if !doublestar.ValidatePattern(x.pattern) {
			return nil, fmt.Errorf("line %d: %q is no pattern of a .gitignore", n, lines.Text())
		}
		out.list = append(out.list, x)
	}
	return out, lines.Err()
}

// excludes reports that a file or folder is left out: the last rule that matches decides, those of nearer folders after those above.
func (r *rules) excludes(name string, folder bool) bool {
	for ; r != nil; r = r.above {
		for i := len(r.list) - 1; i >= 0; i-- {
			x := r.list[i]
			if x.folders && !folder {
				continue
			}
			if ok, _ := doublestar.Match(x.pattern, name); ok {
				return !x.keeps
			}
		}
	}
	return false
}

// parseRule reads a line of the ignore file of a folder.
func parseRule(line, of string) (x rule, ok bool) {
	line = trimRight(strings.TrimSuffix(line, "\r"))
	if line == "" || line[0] == '#' {
		return rule{}, false
	}
	if line[0] == '!' {
		x.keeps, line = true, line[1:]
	}
	if cut, found := strings.CutSuffix(line, "/"); found {
		x.folders, line = true, cut
	}
	if line == "" {
		return rule{}, false
	}
	// A slash at the beginning or in the middle ties the pattern to the folder; else it holds at any depth.
	switch {
	case strings.HasPrefix(line, "/"):
		line = line[1:]
	case !strings.Contains(line, "/"):
		line = "**/" + line
	}
	if strings.HasSuffix(line, "/**") { // what is inside, and not the folder itself
		line += "/*"
	}
	line = literalBraces(line)
	if of != "" {
		line = quoted(of) + "/" + line
	}
	x.pattern = line
	return x, true
}

// trimRight drops spaces at the end but one that is escaped.
func trimRight(s string) string {
	for strings.HasSuffix(s, " ") && !strings.HasSuffix(s, `\ `) {
		s = s[:len(s)-1]
	}
	return s
}

// literalBraces escapes braces, which are text in a .gitignore.
func literalBraces(s string) string {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			out.WriteByte(s[i])
			i++
		case s[i] == '{' || s[i] == '}':
			out.WriteByte('\\')
		}
		out.WriteByte(s[i])
	}
	return out.String()
}

// quoted is a pattern that matches the text only.
func quoted(s string) string {
	var out strings.Builder
	for _, c := range s {
		if strings.ContainsRune(`*?[]{}\`, c) {
			out.WriteByte('\\')
		}
		out.WriteRune(c)
	}
	return out.String()
}
