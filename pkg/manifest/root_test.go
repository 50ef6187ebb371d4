package manifest

import (
	"strings"
	"testing"
)

func TestRoot(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"a map":          {"a: &x 1\nb: *x\n---\nc: 2\n", ""},
		"nothing":        {"# nothing\n", ""},
		"no YAML":        {"a: [", "x:1: is not YAML"},
		"a long string":  {"a: &x " + strings.Repeat("z", 50<<10) + "\nb:\n" + strings.Repeat("- *x\n", 4000), "aliases repeat more than"},
		"maps of maps":   {"a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: [*d, *d, *d, *d, *d, *d, *d, *d]\n", "aliases repeat more than"},
		"itself":         {"a: &a [*a]\n", "levels deep"},
		"deep":           {strings.Repeat("[", 200) + strings.Repeat("]", 200), "levels deep"},
		"too many lines": {strings.Repeat("a:\n", maxDocumentTokens+1), "has too many values"},
	} {
		_, err := Root("x", []byte(tt.text))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
