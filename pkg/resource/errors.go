package resource

import (
	"fmt"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Error says what is wrong where in a file. It is a fleet.ErrInvalid.
type Error struct {
	Source  string // file, or "stdin"
	Line    int    // 0: unknown
	Object  string // such as "module shop"; empty: unknown
	Path    string // such as spec.rollout.stages[0].soak
	Message string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Source)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
	}
	for _, part := range []string{e.Object, e.Path} {
		if part != "" {
			b.WriteString(": " + part)
		}
	}
	return b.String() + ": " + e.Message
}

// Is makes every Error an ErrInvalid.
func (e *Error) Is(target error) bool { return target == fleet.ErrInvalid }

// Nearest is the candidate that s begins, or that has the fewest edits from s; empty if none is near enough to be meant.
func Nearest(s string, candidates []string) string {
	if len(s) > maxKey {
		return ""
	}
	best, bestDistance := "", max(len(s)/3, 1)+1
	for _, c := range candidates {
		if len(s) > 2 && strings.HasPrefix(strings.ToLower(c), strings.ToLower(s)) {
			return c
		}
		if d := distance(strings.ToLower(s), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// quoteList is `a, b or c`.
func quoteList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
