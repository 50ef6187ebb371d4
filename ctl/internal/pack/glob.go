package pack

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// glob translates a pattern of a .gitignore to a regular expression, byte by byte as git matches it. Of a path a slash is only matched by a
// slash or by **; else the pattern is one of a name, and ** is as *. A pattern that git would take and match nothing with is an error.
func glob(pattern string, ofPath bool) (*regexp.Regexp, error) {
	g := globber{rest: pattern, ofPath: ofPath}
	// git compares what is literal at the beginning by itself, so that ** behind it stands at the beginning of what is left.
	if ofPath {
		literal := pattern
		if i := strings.IndexAny(pattern, `*?[\`); i >= 0 {
			literal = pattern[:i]
		}
		g.out.WriteString(regexp.QuoteMeta(latin1(literal)))
		g.rest = pattern[len(literal):]
	}
	g.begins = true
	for g.rest != "" {
		if err := g.next(); err != nil {
			return nil, err
		}
	}
	return regexp.Compile(`(?s)\A` + g.out.String() + `\z`)
}

// latin1 makes each byte a rune: git matches bytes, and a regular expression runes.
func latin1(s string) string {
	out := make([]rune, len(s))
	for i := range len(s) {
		out[i] = rune(s[i])
	}
	return string(out)
}

// globber is a translation under way.
type globber struct {
	rest   string
	out    strings.Builder
	ofPath bool
	begins bool // the rest is at its beginning, or behind a slash
}

func (g *globber) next() error {
	c := g.rest[0]
	switch c {
	case '*':
		g.stars()
		return nil
	case '[':
		return g.class()
	case '?':
		g.out.WriteString(g.one())
	case '\\':
		if len(g.rest) == 1 {
			return errors.New("ends with a backslash that escapes nothing")
		}
		g.rest = g.rest[1:]
		c = g.rest[0]
		fallthrough
	default:
		g.out.WriteString(regexp.QuoteMeta(string(rune(c))))
	}
	g.rest, g.begins = g.rest[1:], c == '/'
	return nil
}

// one is any character.
func (g *globber) one() string {
	if g.ofPath {
		return `[^/]`
	}
	return `.`
}

// stars takes one star or several. Several are folders if they are between slashes, and else one.
func (g *globber) stars() {
	rest := strings.TrimLeft(g.rest, "*")
	several := len(g.rest)-len(rest) > 1
	alone := g.begins && (rest == "" || rest[0] == '/' || strings.HasPrefix(rest, `\/`))
	g.rest, g.begins = rest, false
	switch {
	case !several || !alone || !g.ofPath:
		g.out.WriteString(g.one() + `*`)
	case rest != "" && rest[0] == '/':
		g.out.WriteString(`(?:.*/)?`)
		g.rest, g.begins = rest[1:], true
	default:
		g.out.WriteString(`.*`)
	}
}

// class takes a set of characters in brackets.
func (g *globber) class() error {
	s := setReader{rest: g.rest[1:]}
	if err := s.read(); err != nil {
		return err
	}
	if g.ofPath {
		s.set['/'] = false
	}
	g.out.WriteByte('[')
	none := true
	for c, in := range s.set {
		if in {
			fmt.Fprintf(&g.out, `\x%02x`, c)
			none = false
		}
	}
	if none { // such as [z-a]
		g.out.WriteString(`^\x00-\x{10ffff}`)
	}
	g.out.WriteByte(']')
	g.rest, g.begins = s.rest, false
	return nil
}

// setReader reads what stands behind an opening bracket.
type setReader struct {
	rest string
	set  [256]bool
}

// errNoEnd is that of a set without its bracket.
var errNoEnd = errors.New("has a [ without its ]")

func (s *setReader) read() error {
	negated := s.rest != "" && (s.rest[0] == '!' || s.rest[0] == '^')
	if negated {
		s.rest = s.rest[1:]
	}
	from := -1 // what a range would begin with
	for first := true; first || s.rest == "" || s.rest[0] != ']'; first = false {
		var err error
		if from, err = s.member(from); err != nil {
			return err
		}
	}
	s.rest = s.rest[1:]
	if negated {
		for c := range s.set {
			s.set[c] = !s.set[c]
		}
	}
	return nil
}

// member reads a character, a range's end or a class, and returns what a range could begin with.
func (s *setReader) member(from int) (int, error) {
	if s.rest == "" {
		return 0, errNoEnd
	}
	if s.rest[0] == '-' && from >= 0 && len(s.rest) > 1 && s.rest[1] != ']' {
		s.rest = s.rest[1:]
		to, err := s.char()
		for c := from; c <= int(to); c++ {
			s.set[c] = true
		}
		return -1, err
	}
	if after, is := strings.CutPrefix(s.rest, "[:"); is {
		name, rest, ended := strings.Cut(after, "]")
		if !ended {
			return 0, errNoEnd
		}
		if name, is = strings.CutSuffix(name, ":"); is {
			s.rest = rest
			return -1, s.named(name)
		}
	}
	c, err := s.char()
	s.set[c] = s.set[c] || err == nil
	return int(c), err
}

// char reads a character, which may be escaped.
func (s *setReader) char() (byte, error) {
	s.rest = strings.TrimPrefix(s.rest, `\`)
	if s.rest == "" {
		return 0, errNoEnd
	}
	c := s.rest[0]
	s.rest = s.rest[1:]
	return c, nil
}

// named adds a class of POSIX, of ASCII and as git has them.
func (s *setReader) named(class string) error {
	in, known := classes[class]
	if !known {
		return fmt.Errorf("has a class [:%s:] that is not known", class)
	}
	for c := range byte(128) {
		s.set[c] = s.set[c] || in(c)
	}
	return nil
}

var classes = map[string]func(c byte) bool{
	"alnum":  func(c byte) bool { return isDigit(c) || isLower(c) || isUpper(c) },
	"alpha":  func(c byte) bool { return isLower(c) || isUpper(c) },
	"blank":  func(c byte) bool { return c == ' ' || c == '\t' },
	"cntrl":  func(c byte) bool { return c < ' ' || c == 127 },
	"digit":  isDigit,
	"graph":  isGraph,
	"lower":  isLower,
	"print":  func(c byte) bool { return c == ' ' || isGraph(c) },
	"punct":  func(c byte) bool { return isGraph(c) && !isDigit(c) && !isLower(c) && !isUpper(c) },
	"space":  func(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' },
	"upper":  isUpper,
	"xdigit": func(c byte) bool { return isDigit(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' },
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isLower(c byte) bool { return c >= 'a' && c <= 'z' }
func isUpper(c byte) bool { return c >= 'A' && c <= 'Z' }
func isGraph(c byte) bool { return c > ' ' && c < 127 }
