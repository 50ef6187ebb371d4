package manifest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"towline.dev/towline/pkg/fleet"
)

// TestPlaceholdersAreReadOnce: references without an end, and those inside of one another, take time by the length of a text, not by its
// square. By the square a text of 1 MiB, which an object may have, takes minutes, and nothing ends that.
func TestPlaceholdersAreReadOnce(t *testing.T) {
	const size = 1 << 20
	values := map[string]string{"A": "x", "B": "y"}
	names := map[string]bool{"A": true}
	how := &fleet.Substitution{Strict: true}
	opts := Options{Namespace: "b", Declared: []string{"A"}}
	for name, text := range map[string]string{
		"without an end":            fill("${A:-", size),
		"inside of one another":     fill("${A:-", size) + "}",
		"of a name that is none":    fill("${B:-", size) + "}",
		"escaped and without":       fill("$${A:-", size),
		"escaped inside":            fill("$${A:-$${B:-", size) + "}",
		"of many names":             strings.Join(manyNames(100_000), ""),
		"names without an end":      fill("${AAAAAAAAAAAAAAA", size),
		"in lines":                  fill("${A:-${A:-${A:-\n", size),
		"that end, but not all":     fill("${A:-x}${A:-${A:-", size),
		"one name without an end":   "${" + fill("A", size),
		"signs of dollar":           fill("$", size) + "{A}",
		"whole, many":               fill("${A}", size),
		"with much that stands in":  fill("${A:-"+fill("x", 1000)+"}", size),
		"many ends":                 fill("}", size) + fill("${A:-", size),
		"inside, with a line break": fill("${A:-", size) + "\n}",
	} {
		for what, do := range map[string]func(){
			"Expand":     func() { Expand(text, values) },
			"Names":      func() { Names(text) },
			"IsExtended": func() { IsExtended(text) },
			"CheckText":  func() { _ = CheckText(text, opts) },
			"NamesIn":    func() { _, _, _ = NamesIn(Canonical(map[string]any{"a": text}), names, how) },
			"Substitute": func() { _ = Substitute(map[string]any{"a": text}, values, how, MaxObjectBytes) },
			"ParseSet": func() {
				quoted := strings.ReplaceAll(text, "\n", `\n`)
				_, _ = ParseSet(map[string][]byte{"a.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: \"" + quoted[:min(len(quoted), size-1000)] + "\"}\n")}, opts)
			},
		} {
			began := time.Now()
			do()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s, %s: took %v", name, what, took)
			}
		}
	}
}

func fill(s string, size int) string { return strings.Repeat(s, size/len(s)) }

func manyNames(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("${A%d}", i))
	}
	return out
}

// TestExpandMeansTheSame: what is read in one go is what the plain way of reading finds, in any text.
func TestExpandMeansTheSame(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	parts := []string{"$", "{", "}", "${", "${A", "${A}", "${B", "${B:-", "${A:-", ":-", ":", "-", "\n", "A", "x", "_", "1", "$$", "$${A}", "é", ""}
	for range 200_000 {
		var b strings.Builder
		for range rnd.IntN(14) {
			b.WriteString(parts[rnd.IntN(len(parts))])
		}
		sameExpansion(t, b.String(), uint8(rnd.IntN(256)))
	}
}

// FuzzExpand: as TestExpandMeansTheSame, of texts that the fuzzer finds.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"${A:-${B:-x}}", "$${A:-$${B}}", "${A:-\n}${A", "$$${A}", "${A:-$", "${}${A:-}${A}"} {
		f.Add(s, uint8(7))
	}
	f.Fuzz(sameExpansion)
}

// sameExpansion compares both ways with what is replaced chosen by bits, and all that they find.
func sameExpansion(t *testing.T, s string, bits uint8) {
	t.Helper()
	full := bits&1 != 0
	run := func(expand func(string, bool, func(reference) (string, bool)) string) (string, []reference) {
		var found []reference
		out := expand(s, full, func(r reference) (string, bool) {
			found = append(found, r)
			switch {
			case r.nested:
				return "n", bits&2 != 0
			case r.escaped:
				return r.text, bits&4 != 0
			case r.name == "A":
				return "", bits&8 != 0
			}
			return "${A}", bits&16 != 0
		})
		return out, found
	}
	got, found := run(expand)
	want, wanted := run(expandBySquare)
	if got != want || !slices.Equal(found, wanted) {
		t.Fatalf("%q (%08b): %q with %+v, not %q with %+v", s, bits, got, found, want, wanted)
	}
}

// expandBySquare is what expand means, written so that it is easy to follow: the rest of the text is a text of its own.
func expandBySquare(s string, full bool, replace func(reference) (string, bool)) string {
	var out strings.Builder
	for {
		before, r, after, found := cutBySquare(s, full)
		if !found {
			break
		}
		v, ok := replace(r)
		if !ok { // what is inside of it may be one
			v = s[len(before) : len(s)-len(after)]
			if r.nested {
				v, after = v[:len(v)-len(r.text)+2], r.text[2:]+after
			}
		}
		out.WriteString(before)
		out.WriteString(v)
		s = after
	}
	if out.Len() == 0 {
		return s
	}
	out.WriteString(s)
	return out.String()
}

// cutBySquare cuts s around its first reference.
func cutBySquare(s string, full bool) (before string, r reference, after string, found bool) {
	for from := 0; ; {
		at := strings.Index(s[from:], "${")
		if at < 0 {
			return "", reference{}, s, false
		}
		at += from
		r, n := readBySquare(s[at:], full)
		if n == 0 {
			from = at + 2
			continue
		}
		before, after = s[:at], s[at+n:]
		if full && strings.HasSuffix(before, "$") {
			before, r.escaped = before[:len(before)-1], true
		}
		return before, r, after, true
	}
}

// readBySquare reads the reference that s begins with, and says how long it is; 0: it is none.
func readBySquare(s string, full bool) (r reference, n int) {
	i := 2
	for i < len(s) && (s[i] >= 'A' && s[i] <= 'Z' || i > 2 && (s[i] >= '0' && s[i] <= '9' || s[i] == '_')) {
		i++
	}
	r.name = s[2:i]
	if r.name == "" || i == len(s) {
		return reference{}, 0
	}
	if full && strings.HasPrefix(s[i:], ":-") {
		end := strings.IndexAny(s[i:], "}\n")
		if end < 0 || s[i+end] != '}' {
			return reference{}, 0
		}
		r.fallback, r.hasFallback = s[i+2:i+end], true
		r.nested = strings.Contains(r.fallback, "${")
		i += end
	}
	if s[i] != '}' {
		return reference{}, 0
	}
	r.text = s[:i+1]
	return r, i + 1
}
