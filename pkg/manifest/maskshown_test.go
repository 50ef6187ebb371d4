package manifest

import (
	"reflect"
	"strings"
	"testing"
)

// What a viewer is shown of a file without Secrets has the same values, whatever style they are written in.
func TestShownValuesStay(t *testing.T) {
	head := "# a comment\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: open}\ndata:\n"
	for name, data := range map[string]string{
		"folded, plain":           "  a: >\n    one\n    two\n",
		"folded, more indented":   "  a: >\n    sum(\n      rate(x[5m])\n    )\n",
		"folded, stripped":        "  a: >-\n    sum(\n      rate(x[5m])\n    )\n",
		"folded, kept":            "  a: >+\n    one\n\n  b: c\n",
		"folded, paragraphs":      "  a: >\n    one\n\n    two\n\n\n    three\n",
		"folded, list":            "  a: >\n    steps:\n\n      * one\n      * two\n\n    end\n",
		"literal":                 "  a: |\n    one\n      two\n\n    three\n",
		"literal, trailing space": "  a: |\n    one \n    two\n",
		"literal, leading":        "  a: |2\n      one\n    two\n",
		"literal, leading break":  "  a: |\n\n    one\n",
		"literal, kept":           "  a: |+\n    one\n\n\n  b: c\n",
		"literal, script":         "  a: |\n    #!/bin/sh\n    # says\n    echo '#1'\n",
		"single, over lines":      "  a: 'one\n    two\n\n    three'\n",
		"double, over lines":      "  a: \"one\\\n    two\n    three\"\n",
		"plain, over lines":       "  a: one\n    two\n\n    three\n",
		"merge":                   "  <<: &x {a: b}\n  c: d\n",
		"unicode":                 "  a: \"\\u2028one\\u0085\"\n  b: é☃\n",
		"long key":                "  ? " + strings.Repeat("k", 200) + "\n  : v\n",
		"folded, long":            "  a: >\n    " + strings.Repeat("word ", 60) + "\n    end\n",
		"empty":                   "  a: ''\n  b: \"\"\n  c: |\n\n",
	} {
		text := head + data
		want, err := readFile("a.yaml", []byte(text), false)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		shown, err := MaskFile("a.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := readFile("a.yaml", shown, false)
		if err != nil {
			t.Errorf("%s: what is shown cannot be read: %v\n%s", name, err, shown)
			continue
		}
		if len(got) != 1 || !reflect.DeepEqual(got[0].value, want[0].value) {
			t.Errorf("%s: was %q\n  is %q\n%s", name, want[0].value["data"], got[0].value["data"], shown)
		}
	}
}

// An annotation that was masked is not taken for what is to be applied.
func TestMaskedAnnotationIsSeen(t *testing.T) {
	for name, text := range map[string]string{
		"no data":    "apiVersion: v1\nkind: Secret\nmetadata: {name: s, annotations: {example.org/rules: '[{\"a\":1}]'}}\n",
		"empty data": "apiVersion: v1\nkind: Secret\nmetadata: {name: s, annotations: {example.org/rules: '{\"a\":1}'}}\ndata: {}\n",
		"token":      "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/service-account-token\nmetadata: {name: s, annotations: {kubernetes.io/service-account.name: sa, field.cattle.io/x: '[\"a\"]'}}\n",
	} {
		shown, err := MaskFile("a.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if !MaskedIn("a.yaml", shown) && string(shown) != text {
			t.Errorf("%s: put back, this takes the place of the annotation:\n%s", name, shown)
		}
	}
}

// An example of a Secret in a text is none that was masked, unless it is written as one that was.
func TestExamplesAreNoMaskedValues(t *testing.T) {
	const in = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: docs}\ndata:\n  a: "
	block := func(text string) string { return in + "|\n    " + strings.ReplaceAll(text, "\n", "\n    ") + "\n" }
	example := "apiVersion: v1\nkind: Secret\nmetadata:\n  name: db\nstringData:\n  password: \"***\""
	for what, c := range map[string]struct {
		text   string
		masked bool
	}{
		"YAML":                  {block(example), false},
		"YAML beside another":   {block(example + "\n---\nkind: Secret\nstringData: {p: open}"), false},
		"JSON":                  {in + `'{"kind": "Secret", "stringData": {"password": "***"}}'` + "\n", false},
		"base64":                {in + encoded(example) + "\n", false},
		"two":                   {block(example) + "  b: |\n    " + strings.ReplaceAll(strings.ReplaceAll(example, `"***"`, `'***'`), "\n", "\n    ") + "\n", true},
		"the object":            {strings.ReplaceAll(example, `"***"`, "'***'") + "\n", true},
		"the object, otherwise": {example + "\n", true},
		"in another object":     {"apiVersion: a.b/v1\nkind: Holder\nmetadata: {name: x}\nspec: {of: {apiVersion: v1, kind: Secret, metadata: {name: x}, stringData: {p: \"***\"}}}\n", true},
	} {
		if got := MaskedIn("a.yaml", []byte(c.text)); got != c.masked {
			t.Errorf("%s: taken for masked: %v\n%s", what, got, c.text)
		}
	}
	for what, text := range map[string]string{"YAML": block(strings.ReplaceAll(example, "***", password)), "JSON": in + "'" + copyOf + "'\n",
		"JSON in JSON": in + `'{"spec":"` + strings.ReplaceAll(copyOf, `"`, `\"`) + "\"}'\n", "YAML in JSON": in + `'{"spec":"` + strings.ReplaceAll(strings.ReplaceAll(example, `"***"`, password), "\n", `\n`) + "\"}'\n",
		"a list": block("- " + copyOf), "what was no map": block("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: " + password)} {
		shown, err := MaskFile("a.yaml", []byte(text))
		if err != nil || !MaskedIn("a.yaml", shown) {
			t.Errorf("%s: what was masked is taken: %v\n%s", what, err, shown)
		}
		edited := strings.ReplaceAll(string(shown), "kind: Secret", "# edited\n    kind: Secret")
		if strings.HasSuffix(what, "YAML") && !MaskedIn("a.yaml", []byte(edited)) {
			t.Errorf("%s: what was masked and edited is taken:\n%s", what, edited)
		}
	}
}
