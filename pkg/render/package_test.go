package render

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// built is an engine that returns one text after the other.
type built struct {
	calls atomic.Int32
	texts []map[string][]byte
	errs  []error
}

// Build implements Engine.
func (b *built) Build(context.Context, Job) (map[string][]byte, error) {
	n := int(b.calls.Add(1) - 1)
	return b.texts[n%len(b.texts)], b.errs[n%len(b.errs)]
}

func texts(text string) map[string][]byte { return map[string][]byte{"built": []byte(text)} }

const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: db}\nstringData: {user: admin, password: %s}\n"

// TestBuiltTwice: what is not the same both times is an error that says where, and no value.
func TestBuiltTwice(t *testing.T) {
	one, two := fmt.Sprintf(secret, "canary1"), fmt.Sprintf(secret, "canary2")
	other := "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: more}\n"
	for name, tt := range map[string]struct{ first, second, want string }{
		"same":        {one, one, ""},
		"other bytes": {one, "# a comment\n" + one, ""},
		"other order": {one + other, other + "---\n" + one, ""},
		"value":       {one, two, "package: built:1: Secret shop/db is another each time it is rendered, at /stringData/password: "},
		"one more":    {one, one + other, "ConfigMap shop/more is there one time it is rendered, and not the next"},
		"one less":    {one + other, one, "ConfigMap shop/more is there one time"},
		"none":        {"", "", "package: renders to no objects; set allowEmpty"},
		"no YAML":     {"a: [", "a: [", "built:1: is not YAML"},
	} {
		e := &built{texts: []map[string][]byte{texts(tt.first), texts(tt.second)}, errs: []error{nil}}
		objects, err := Render(t.Context(), e, nil, Package{Kustomize: &Kustomize{}}, Options{Options: manifest.Options{Namespace: "shop"}})
		switch {
		case tt.want == "" && (err != nil || len(objects) == 0):
			t.Errorf("%s: %v, %v", name, objects, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: got %v, want %s", name, err, tt.want)
		case tt.want != "" && (strings.Contains(err.Error(), "canary") || !errors.Is(err, fleet.ErrInvalid)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneOfTwoBuildsFails: its error is the one that is told, whichever it is.
func TestOneOfTwoBuildsFails(t *testing.T) {
	wrong := fleet.Invalid("a.yaml", "is wrong")
	for _, errs := range [][]error{{nil, wrong}, {wrong, nil}, {context.Canceled, wrong}, {wrong, context.Canceled}} {
		e := &built{texts: []map[string][]byte{texts("")}, errs: errs}
		if _, err := Render(t.Context(), e, nil, Package{Kustomize: &Kustomize{}}, Options{}); !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%v: got %v", errs, err)
		}
	}
	if _, err := Render(t.Context(), nil, nil, Package{Kustomize: &Kustomize{}}, Options{}); !errors.Is(err, fleet.ErrPrecondition) {
		t.Errorf("without an engine: %v", err)
	}
	empty := &built{texts: []map[string][]byte{{}}, errs: []error{nil}}
	if objects, err := Render(t.Context(), empty, nil, Package{Kustomize: &Kustomize{}}, Options{AllowEmpty: true}); err != nil || len(objects) != 0 {
		t.Errorf("allowEmpty: %v, %v", objects, err)
	}
}
