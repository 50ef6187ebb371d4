package fleet

import (
	"slices"
	"sort"
	"strings"
)

// MaskWords puts Masked in place of words in a text. Of a word that Clip has cut, what is left is masked, too. Words of fewer than least
// bytes are left: they are parts of others. The text is read once, and not once for each word: only words that begin with each other
// are tried one by one, where a text begins with all of them.
func MaskWords(text string, words []string, least int) string {
	known := newWordList(words, max(least, 1))
	if len(known.words) == 0 {
		return text
	}
	cuts := cutsIn(text)
	var out strings.Builder
	written, masked := 0, 0 // how much of the text is in out, and where the last word ends
	for at := range len(text) {
		end := known.end(text, at, cuts)
		if end <= masked {
			continue
		}
		if at >= masked {
			out.WriteString(text[written:at])
			out.WriteString(Masked)
		}
		written, masked = end, end
	}
	if written == 0 {
		return text
	}
	out.WriteString(text[written:])
	return out.String()
}

// cutsIn is where words may end that were cut: before an ellipsis, and before a quotation mark in front of it.
func cutsIn(text string) (out []int) {
	for from := 0; ; {
		at := strings.Index(text[from:], clipMark)
		if at < 0 {
			return out
		}
		out = append(out, from+len(strings.TrimSuffix(text[from:from+at], `"`)))
		from += at + len(clipMark)
	}
}

// wordList finds words by where a text begins with one.
type wordList struct {
	least  int
	words  []string            // sorted, each once
	within []int               // for each word the longest other one that it begins with; -1: there is none
	begins map[string]struct{} // the first least bytes of each word: most places of a text have none of them
}

func newWordList(words []string, least int) wordList {
	l := wordList{least: least, words: make([]string, 0, len(words)), begins: map[string]struct{}{}}
	for _, w := range words {
		if len(w) >= least {
			l.words = append(l.words, w)
			l.begins[w[:least]] = struct{}{}
		}
	}
	slices.Sort(l.words)
	l.words = slices.Compact(l.words)
	l.within = make([]int, len(l.words))
	for i, w := range l.words {
		l.within[i] = -1
		if i > 0 {
			l.within[i] = l.longest(i-1, common(l.words[i-1], w))
		}
	}
	return l
}

// longest is the longest word that a text begins with: the i-th, which is the last that does not come behind the text and has the given number of
// bytes in common with it, or one of those that this begins with. -1: it begins with none.
func (l wordList) longest(i, alike int) int {
	for i >= 0 && len(l.words[i]) > alike {
		i = l.within[i]
	}
	return i
}

// end is where what is to be masked ends that begins at a place of the text: a word, or the beginning of one up to a cut. 0: nothing is.
func (l wordList) end(text string, at int, cuts []int) (end int) {
	if at+l.least > len(text) {
		return 0
	}
	if _, some := l.begins[text[at:at+l.least]]; !some {
		return 0
	}
	rest, part := text[at:], 0 // how much of a word stands there: of the one before, or behind it, in the order of words
	next := sort.Search(len(l.words), func(i int) bool { return l.words[i] > rest })
	if next > 0 {
		part = common(l.words[next-1], rest)
		if i := l.longest(next-1, part); i >= 0 {
			end = at + len(l.words[i])
		}
	}
	if next < len(l.words) {
		part = max(part, common(l.words[next], rest))
	}
	behind := sort.SearchInts(cuts, at+part+1) // the first cut that is behind it
	if behind > 0 && cuts[behind-1] >= at+l.least {
		end = max(end, cuts[behind-1])
	}
	return end
}

// common is how many bytes two texts begin with alike.
func common(a, b string) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
