package packager

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// Whatever the values of a chart are, in files and in the module, they are merged to the same end twice or refused by the name of the
// file or field, and so is a chart that uses them.
func FuzzValues(f *testing.F) {
	for _, s := range [][2]string{
		{"a: 1\nb: {c: [1, 2]}\n", `{"b":{"c":null,"d":"x"}}`},
		{"a: &x {b: 1}\nc: *x\nd: {<<: *x}\n", `{"a":"text"}`},
		{"- a\n", `{}`},
		{"a: !!binary aGk=\nb: .nan\nc: 1e400\nd: 0o17\n", `{"a":{"b":{"c":{"d":{}}}}}`},
		{"{{ .Values }}: x\n", `{"a":"{{ fail .Values.a }}"}`},
		{"\ufeffa: 1\r\nb:\t2\n", `{"":{"":""}}`},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, file, values string) {
		if !json.Valid([]byte(values)) {
			values = "{}"
		}
		files := map[string][]byte{
			"Chart.yaml":          []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n"),
			"values.yaml":         []byte("a: default\nb: {c: 1}\n"),
			"prod.yaml":           []byte(file),
			"templates/a.yaml":    []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata:\n  values: {{ toJson .Values | quote }}\n"),
			"templates/tpl.yaml":  []byte("{{- with .Values.a }}\n# {{ . | toString | quote }}\n{{- end }}\n"),
			"templates/_help.tpl": []byte(`{{ define "x" }}{{ .Values.b }}{{ end }}`),
		}
		h := render.Helm{Path: ".", ReleaseName: "web", Namespace: "default", Values: []byte(values), ValuesFiles: []string{"prod.yaml"}}
		first, err := Build(render.Job{Files: maps.Clone(files), Helm: &h})
		second, errAgain := Build(render.Job{Files: maps.Clone(files), Helm: &h})
		if (err == nil) != (errAgain == nil) {
			t.Fatalf("once %v, again %v", err, errAgain)
		}
		if err != nil {
			if !errors.Is(err, fleet.ErrInvalid) || strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("%q is no sentence about what was written", err)
			}
			return
		}
		if !maps.EqualFunc(first.Texts, second.Texts, func(a, b []byte) bool { return string(a) == string(b) }) {
			t.Fatalf("once %s, again %s", first.Texts, second.Texts)
		}
	})
}
