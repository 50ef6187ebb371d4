package fleet

import (
	"strings"
	"unicode"
)

// CleanText makes text that others wrote safe for one line of a terminal: white space is one blank, control characters go.
func CleanText(s string) string {
	unclean := func(r rune) bool { return r != ' ' && (unicode.IsSpace(r) || unicode.IsControl(r)) }
	if strings.IndexFunc(s, unclean) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r):
			return -1
		}
		return r
	}, strings.TrimSpace(s))
}

// Clip is s in at most most bytes; an ellipsis stands for what is cut off.
func Clip(s string, most int) string {
	const mark = "…"
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(mark)], "") + mark
}
