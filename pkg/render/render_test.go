package render

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

func configMap(name string) []byte {
	return []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + ", namespace: shop}\n")
}

func TestPlainTakesManifestsUnderThePath(t *testing.T) {
	files := map[string][]byte{
		"README.md":              []byte("# no manifest"),
		"values.txt":             []byte("{{"),
		"base/a.yaml":            configMap("a"),
		"base/deep/er/b.YML":     configMap("b"),
		"base/c.json":            []byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"shop"}}`),
		"base/.github/ci.yaml":   []byte("on: push"),
		"base/.hidden.yaml":      []byte("nonsense"),
		"baseline/d.yaml":        configMap("d"),
		"other/broken.yaml":      []byte("a: ["),
		"other/single/only.yaml": configMap("only"),
	}
	for _, tt := range []struct{ path, want string }{
		{"base", "a b c"},
		{"base/", "a b c"},
		{"./base/deep", "b"},
		{"baseline", "d"},
		{"other/single/only.yaml", "only"},
	} {
		objects, err := Plain(files, Options{Path: tt.path})
		if err != nil {
			t.Fatalf("%s: %v", tt.path, err)
		}
		var got []string
		for _, o := range objects {
			got = append(got, o.ID.Name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: got %v, want %s", tt.path, got, tt.want)
		}
	}
}

func TestPlainErrors(t *testing.T) {
	files := map[string][]byte{"deploy/a.yaml": configMap("a"), "docs/empty.yaml": []byte("# nothing\n---\n"), "x/README.md": nil}
	for _, tt := range []struct{ path, want string }{
		{"prod", "package.plain.path: folder prod has no *.yaml, *.yml or *.json file; folders that have: deploy, docs"},
		{"x", "folder x has no"},
		{"docs", "package: its 1 files hold no objects; set allowEmpty"},
		{"../etc", `"../etc" is no path in the source`},
		{"a/../deploy", "is no path in the source"},
		{"/deploy", "is no path in the source"},
		{`deploy\a`, "is no path in the source"},
	} {
		_, err := Plain(files, Options{Path: tt.path})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.path, err, tt.want)
		}
		if !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: %v is not ErrInvalid", tt.path, err)
		}
	}
	for _, p := range []string{"docs", "x"} {
		if objects, err := Plain(files, Options{Path: p, AllowEmpty: true}); err != nil || len(objects) != 0 {
			t.Errorf("%s with allowEmpty: %v, %v", p, objects, err)
		}
	}
	if _, err := Plain(map[string][]byte{"a.md": nil}, Options{}); err == nil || !strings.Contains(err.Error(), "the source has no") {
		t.Errorf("no manifests at all: %v", err)
	}
}

// A folder that is not there, misspelt or renamed by a push, is an error as it is of a Git source, a chart and a kustomization: else all that
// the module has would go.
func TestFolderThatIsNotThereIsNotEmpty(t *testing.T) {
	files := map[string][]byte{"deploy/a.yaml": configMap("a")}
	for _, p := range []string{"depoly", "deploy/a", "dep"} {
		if got, err := Plain(files, Options{Path: p, AllowEmpty: true}); err == nil || !strings.Contains(err.Error(), "folders that have: deploy") {
			t.Errorf("%s: rendered to %d objects, %v", p, len(got), err)
		}
	}
}

// A folder that comes to be a file, as a symbolic link does that was copied where there are none, is not there any more either.
func TestFolderThatBecameAFileIsNotEmpty(t *testing.T) {
	files := map[string][]byte{"deploy": []byte("../k8s/prod"), "k8s/prod/a.yaml": configMap("a")}
	if got, err := Plain(files, Options{Path: "deploy", AllowEmpty: true}); err == nil || !strings.Contains(err.Error(), `"deploy" is a file that is no *.yaml, *.yml or *.json`) {
		t.Errorf("rendered to %d objects, %v", len(got), err)
	}
}

// TestFolderBelowThatBecameAFile: git on Windows, and what copies files, may leave a symbolic link as a file with the path that it leads to. What is
// there is left out, and all of it goes where it was a folder before.
func TestFolderBelowThatBecameAFile(t *testing.T) {
	for text, refused := range map[string]bool{
		"../base": true, "../k8s/prod": true, "./../base": true, "../base/": true, "../../elsewhere": true, "../k8s": true, "..": true, "../": true, "./..": true, "../..": true,
		".base": true, "prod/.base": true,
		"../nowhere": false, "base": false, "prod": false, "see ../base\n": false, "../base\n\nmore": false, "": false, ".": false, "../LICENSE": false, "../docs": false, "../base/a.yaml": false,
	} {
		files := map[string][]byte{"deploy/a.yaml": configMap("a"), "deploy/shared": []byte(text), "deploy/prod/b.yaml": configMap("b"),
			"deploy/.base/a.yaml": configMap("e"), "deploy/prod/.base/a.yaml": configMap("f"), "LICENSE": nil, "docs/a.md": nil,
			"base/a.yaml": configMap("c"), "k8s/prod/a.yaml": configMap("d"), "shared": []byte("../base")}
		got, err := Plain(files, Options{Path: "deploy"})
		if (err != nil) != refused || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("\"deploy/shared\" is a file with the path %q in it, as a symbolic link is that was copied as text", text)) {
			t.Errorf("%q: rendered to %d objects, %v", text, len(got), err)
		}
	}
	nested := map[string][]byte{"a/a.yaml": configMap("a"), "a/shared": []byte("../base"), "base/a.yaml": configMap("c")}
	if _, err := Plain(nested, Options{}); err != nil { // what is there is read all the same
		t.Error(err)
	}
	dots := map[string][]byte{"deploy/a.yaml": configMap("a"), "deploy/.shared": []byte("../base"), "base/a.yaml": configMap("c")}
	if _, err := Plain(dots, Options{Path: "deploy"}); err != nil { // what begins with a dot is not read either way
		t.Error(err)
	}
}

func TestPlainPassesOptionsOn(t *testing.T) {
	files := map[string][]byte{"a.yaml": []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: 'a-${CLUSTER}'}\n")}
	objects, err := Plain(files, Options{Options: manifest.Options{Namespace: "shop", Declared: []string{"CLUSTER"}}})
	if err != nil {
		t.Fatal(err)
	}
	if got := objects[0].ID.Path(); got != "shop/a-${CLUSTER}" {
		t.Errorf("got %s", got)
	}
}
