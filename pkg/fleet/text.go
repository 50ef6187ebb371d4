package fleet

import (
	"fmt"
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

const clipMark = "…"

// Clip is s in at most most bytes; an ellipsis stands for what is cut off.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(clipMark)], "") + clipMark
}

// Clipped is a text without the ellipsis, and reports that something was cut off there.
func Clipped(s string) (string, bool) { return strings.CutSuffix(s, clipMark) }

// AndMore ends a list of some things by how many of all are not on it.
func AndMore(list []string, all int) []string {
	if more := all - len(list); more > 0 {
		return append(list, fmt.Sprintf("and %d more", more))
	}
	return list
}

// Some names the first of some things, at most most of them, in the order in which they come, and counts the others.
func Some[S ~string](list []S, most int) string {
	var out strings.Builder
	for i, name := range list[:min(len(list), most)] {
		if i > 0 {
			out.WriteString(", ")
		}
		out.WriteString(string(name))
	}
	if more := len(list) - most; more > 0 {
		fmt.Fprintf(&out, " and %d more", more)
	}
	return out.String()
}
