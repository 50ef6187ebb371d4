package fleet

import (
	"fmt"
	"slices"
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

// MaskWords puts Masked in place of words in a text. Of a word that Clip has cut, what is left is masked, too. Words of fewer than least
// bytes are left: they are parts of others.
func MaskWords(text string, words []string, least int) string {
	words = slices.Clone(words)
	slices.SortFunc(words, func(a, b string) int { return len(b) - len(a) }) // one may hold another
	for _, w := range words {
		if len(w) < least || w == "" {
			continue
		}
		text = maskCut(strings.ReplaceAll(text, w, Masked), w, least)
	}
	return text
}

// maskCut masks the beginnings of a word that an ellipsis follows, which may stand behind a quotation mark.
func maskCut(text, word string, least int) string {
	for from := 0; ; {
		at := strings.Index(text[from:], clipMark)
		if at < 0 {
			return text
		}
		at += from
		from = at + len(clipMark)
		at -= len(text[:at]) - len(strings.TrimSuffix(text[:at], `"`))
		for n := min(len(word)-1, at); n >= least; n-- {
			if text[at-n:at] == word[:n] {
				text, from = text[:at-n]+Masked+text[at:], from-n+len(Masked)
				break
			}
		}
	}
}
