package fleet

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestMaskWords(t *testing.T) {
	const secret = "correct-horse-battery"
	for text, want := range map[string]string{
		"it says correct-horse-battery here":      "it says *** here",
		"correct-horse-batterycorrect-horse":      "***correct-horse",
		Clip("it says "+secret+" and more", 20):   "it says ***…",
		Clip("'"+secret+"', '"+secret+"' xx", 40): "'***', '***…",
		"it says corr…":                           "it says ***…",
		"it says cor… and …":                      "it says cor… and …",
		`"correct-h"… and "correct"…`:             `"***"… and "***"…`,
		"nothing":                                 "nothing",
		"long-correct-horse-battery-staple":       "long-***",
	} {
		if got := MaskWords(text, []string{secret, "abc", "", secret + "-staple"}, 4); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Of words that overlap, begin alike or are cut all is masked that belongs to one, whichever of them is longer.
func TestMaskWordsThatMeet(t *testing.T) {
	words := []string{"abcd", "cdefgh", "abcdxyz", "aaaa", "ghij", "abcdxq"}
	for text, want := range map[string]string{
		"abcdefgh":          "***",
		"abcdefghij k":      "*** k",
		"aaaaaaa b":         "*** b",
		"abcdxyabcd":        "***xy***",
		"abcdabcd":          "******",
		"abcdx":             "***x",
		"abcdx…":            "***…",
		"cdefg…efgh":        "***…efgh",
		`"abcdx"… and cde…`: `"***"… and cde…`,
		"…abcdxy…":          "…***…",
		"abc cdef":          "abc cdef",
	} {
		if got := MaskWords(text, words, 4); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestManyWordsAreMasked: a text is not searched for each of the words by itself.
func TestManyWordsAreMasked(t *testing.T) {
	words := make([]string, 0, 200_000)
	for i := range cap(words) {
		words = append(words, fmt.Sprintf("value-%06d", i))
	}
	for i := range 50 {
		words = append(words, strings.Repeat("value-", i))
	}
	line := "it says value-000001, value-00000… and \"value-1999\"…; " + strings.Repeat("value-", 50) + " values of a vault\n"
	text := strings.Repeat(line, 3000)
	began := time.Now()
	got := MaskWords(text, words, 6)
	if want := "it says ***, ***… and \"***\"…; *** values of a vault\n"; !strings.HasPrefix(got, want) {
		t.Errorf("%.200q", got)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("took %s", took)
	}
}

// TestMaskWordsAsOneByOne compares with a search for each word at each place.
func TestMaskWordsAsOneByOne(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	of := func(letters []string, most int) string {
		var out strings.Builder
		for range random.IntN(most) {
			out.WriteString(letters[random.IntN(len(letters))])
		}
		return out.String()
	}
	for range 20_000 {
		words := make([]string, random.IntN(6))
		for i := range words {
			words[i] = of([]string{"a", "b"}, 8)
		}
		text := of([]string{"a", "b", "a", "b", "…", `"`}, 20)
		if got, want := MaskWords(text, words, 2), maskedOneByOne(text, words, 2); got != want {
			t.Fatalf("%q in %q: %q, want %q", words, text, got, want)
		}
	}
}

func maskedOneByOne(text string, words []string, least int) string {
	ends := make([]int, len(text)) // of what is to be masked from each place on
	for _, w := range words {
		for n := least; n <= len(w); n++ {
			for at := range text {
				rest, found := strings.CutPrefix(text[at:], w[:n])
				if found && (n == len(w) || strings.HasPrefix(rest, clipMark) || strings.HasPrefix(rest, `"`+clipMark)) {
					ends[at] = max(ends[at], at+n)
				}
			}
		}
	}
	var out strings.Builder
	masked := 0
	for at := range len(text) {
		switch {
		case at >= masked && ends[at] > 0:
			out.WriteString(Masked)
		case at >= masked:
			out.WriteByte(text[at])
		}
		masked = max(masked, ends[at])
	}
	return out.String()
}
