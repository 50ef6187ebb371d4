package pack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/unicode/norm"
)

// maxIgnore is how large an ignore file may be.
const maxIgnore = 1 << 20

// rules are those of the ignore files of a folder and of those above it.
type rules struct {
	above *rules
	base  string // the folder, below the one that is packed
	list  []rule
}

// rule is a line of an ignore file.
type rule struct {
	match   *regexp.Regexp // of the name, or of the path below the folder of the file
	same    *regexp.Regexp // the pattern in the composed form of Unicode; nil: it is in that already
	ofPath  bool
	keeps   bool // takes back what lines before it leave out
	folders bool // counts for folders only
}

// and adds the rules of the ignore file in a folder; without one they are those of before.
func (r *rules) and(base string, list []rule) *rules {
	if len(list) == 0 {
		return r
	}
	return &rules{above: r, base: base, list: list}
}

// excludes reports that a file or folder is left out: the last rule that matches decides, those of nearer folders after those above.
func (r *rules) excludes(name string, folder bool) bool {
	base := formsOf(name[strings.LastIndexByte(name, '/')+1:])
	for ; r != nil; r = r.above {
		below := formsOf(strings.TrimPrefix(strings.TrimPrefix(name, r.base), "/"))
		for i := len(r.list) - 1; i >= 0; i-- {
			x, text := r.list[i], base
			if x.ofPath {
				text = below
			}
			if (folder || !x.folders) && x.matches(text) {
				return !x.keeps
			}
		}
	}
	return false
}

// forms is a name as it is written, and in the composed form of Unicode, byte by byte.
type forms struct{ written, composed string }

func formsOf(name string) forms {
	f := forms{written: latin1(name)}
	if f.composed = f.written; !norm.NFC.IsNormalString(name) {
		f.composed = latin1(norm.NFC.String(name))
	}
	return f
}

// matches reports that a rule is of a name, in whichever form of Unicode either is written: a Mac keeps é of a name as two signs, and has a person
// write one. Git knows that there, and who packs its folder elsewhere means the same.
func (x rule) matches(name forms) bool {
	return x.match.MatchString(name.written) || name.composed != name.written && x.match.MatchString(name.composed) || x.same != nil && x.same.MatchString(name.composed)
}

// readIgnore reads the ignore file in a folder, if there is one.
func readIgnore(at string) ([]rule, error) {
	at = filepath.Join(at, IgnoreFile)
	if _, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if info, err := os.Stat(at); err != nil { // such as of a link to nothing, which is no missing file
		return nil, cause(err)
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("is no file")
	}
	f, err := openFile(at)
	if err != nil {
		return nil, cause(err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIgnore+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxIgnore {
		return nil, fmt.Errorf("has more than %d KiB", maxIgnore>>10)
	}
	return parseIgnore(text)
}

// parseIgnore reads the text of an ignore file. What is no text would be rules that leave out nothing, so it is refused.
func parseIgnore(text []byte) (list []rule, err error) {
	if text, err = decode(text); err != nil {
		return nil, err
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")
		x, ok, err := parseRule(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %q is no pattern of a .gitignore: %w", n, line, err)
		}
		if ok {
			list = append(list, x)
		}
	}
	return list, nil
}

// decode makes the text UTF-8. Some shells write UTF-16, with a mark at the beginning.
func decode(text []byte) ([]byte, error) {
	const how = "save it as UTF-8"
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		out, err := unicode.UTF16(unicode.LittleEndian, unicode.ExpectBOM).NewDecoder().Bytes(text)
		if err != nil || bytes.ContainsRune(out, utf8.RuneError) || bytes.IndexByte(out, 0) >= 0 {
			return nil, errors.New("begins as UTF-16, and is none: " + how)
		}
		return out, nil
	}
	switch {
	case bytes.IndexByte(text, 0) >= 0:
		return nil, errors.New("has a NUL byte, so it is no text, or one in UTF-16: " + how)
	case !utf8.Valid(text):
		return nil, errors.New("is not UTF-8: " + how)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}

// parseRule reads a line of an ignore file.
func parseRule(line string) (x rule, ok bool, err error) {
	if strings.HasPrefix(line, "#") {
		return rule{}, false, nil
	}
	line = trimRight(line)
	if after, found := strings.CutPrefix(line, "!"); found {
		x.keeps, line = true, after
	}
	if before, found := strings.CutSuffix(line, "/"); found {
		x.folders, line = true, before
	}
	// A slash at the beginning or in the middle ties the pattern to the folder; else it holds at any depth.
	x.ofPath = strings.Contains(line, "/")
	line = strings.TrimPrefix(line, "/")
	if line == "" {
		return rule{}, false, nil
	}
	if x.match, err = glob(line, x.ofPath); err != nil {
		return x, false, err
	}
	if composed := norm.NFC.String(line); composed != line {
		x.same, err = glob(composed, x.ofPath)
	}
	return x, err == nil, err
}

// trimRight drops spaces at the end but one that is escaped.
func trimRight(s string) string {
	end := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\\' && i+1 < len(s):
			i++
			end = i + 1
		case s[i] != ' ':
			end = i + 1
		}
	}
	return s[:end]
}
