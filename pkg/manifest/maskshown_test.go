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
