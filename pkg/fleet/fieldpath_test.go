package fleet_test

import (
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

func TestFieldPathsThatMayBeLeft(t *testing.T) {
	for text, want := range map[string]string{
		"/spec/replicas": "", "/spec/template/spec/containers/0/resources": "", "/spec/template/spec/containers/name=app/image": "",
		"/spec/ports/*/nodePort": "", "/metadata/annotations/a.example~1b": "", "/metadata/labels/team": "", "/data": "",
		"":               "begins with /",
		"spec/replicas":  "begins with /",
		"/":              "names no field",
		"/spec//x":       "empty step",
		"/spec/~2":       "~ stands before 0 or 1",
		"/kind":          "holds kind",
		"/apiVersion":    "holds apiVersion",
		"/metadata":      "holds metadata.name",
		"/metadata/name": "holds metadata.name", "/metadata/namespace": "holds metadata.namespace", "/metadata/uid": "holds metadata.uid",
		"/metadata/labels":                      "holds metadata.labels.towline.dev/hub",
		"/metadata/labels/*":                    "holds metadata.labels.towline.dev/hub",
		"/metadata/labels/towline.dev~1hub":     "holds metadata.labels.towline.dev/hub",
		"/metadata/annotations":                 "holds metadata.annotations.towline.dev/owner",
		"/*":                                    "holds apiVersion",
		"/metadata/managedFields/0":             "holds metadata.managedFields",
		"/a" + strings.Repeat("/a", 64):         "more than 64 steps",
		"/metadata/annotations/towline.dev~1ow": "",
	} {
		_, err := fleet.ParseFieldPath(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
