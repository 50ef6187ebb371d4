package manifest

import (
	"fmt"
	"strings"
	"testing"
	"time"
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
		"lines of tags":  {tagged("a%d", MaxTokens/16), "has too many %TAG lines"},
		"too many lines": {strings.Repeat("a:\n", MaxTokens+1), "has too many values"},
	} {
		_, err := Root("x", []byte(tt.text))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

// tagged is a document behind so many bytes of %TAG lines.
func tagged(name string, size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%%TAG !"+name+"! b\n", i)
	}
	return b.String() + "--- {a: 1}\n"
}

// TestTagLines: the parser compares each %TAG line with all before it, also where they are not in front. 1 MiB of them takes it half a minute.
func TestTagLines(t *testing.T) {
	object := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"
	for name, text := range map[string]string{
		"behind an end":     object + "...\n" + tagged("a%d", 1<<19),
		"behind a return":   object + "...\r" + strings.ReplaceAll(tagged("a%d", 1<<19), "\n", "\r"),
		"behind NEL":        object + "...\u0085" + strings.ReplaceAll(tagged("a%d", 1<<19), "\n", "\u0085"),
		"behind a version":  "%YAML 1.1\n" + tagged("a%d", 1<<19),
		"behind a comment":  "# a\n" + tagged("a%d", 1<<19),
		"text that is none": object + "data: {a: '" + strings.Repeat(" %TAG", 5000) + "'}\n",
	} {
		began := time.Now()
		_, err := ParseSet(map[string][]byte{"a.yaml": []byte(text)}, Options{Namespace: "b"})
		if took := time.Since(began); took > 2*time.Second || (err == nil) != (name == "text that is none") {
			t.Errorf("%s: took %v: %.200v", name, took, err)
		}
	}
}
