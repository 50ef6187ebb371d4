package resource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

const head = "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {name: shop}\n"

var inFiles = []proto.Message{&v1.Module{}, &v1.Cluster{}, &v1.Project{}}

func parse(t *testing.T, text string) []Resource {
	t.Helper()
	found, err := Parse("shop.yaml", []byte(text), Options{Kinds: inFiles})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestErrorsSayWhereAndWhat holds the sentences that people read when a file is wrong.
func TestErrorsSayWhereAndWhat(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown field", head + "spec: {namspace: x}", "shop.yaml:4: module shop: spec.namspace: unknown field; did you mean namespace?"},
		{"unknown field, nothing near", head + "spec:\n  source:\n    zzz: {}", "shop.yaml:6: module shop: spec.source.zzz: unknown field; known are inline, http, git, oci, helm, upload, follow, verify"},
		{"proto's own name", head + "spec: {allow_empty: true}", "shop.yaml:4: module shop: spec.allow_empty: unknown field; did you mean allowEmpty?"},
		{"in a list", head + "spec:\n  rollout:\n    stages:\n    - {name: a}\n    - {nam: b}", "shop.yaml:8: module shop: spec.rollout.stages[1].nam: unknown field; did you mean name?"},
		{"list for mapping", head + "spec: []", "shop.yaml:4: module shop: spec: takes a mapping, not a list"},
		{"text for list", head + "spec: {policies: all}", `shop.yaml:4: module shop: spec.policies: takes a list, not a text`},
		{"mapping for text", head + "spec: {namespace: {a: b}}", "shop.yaml:4: module shop: spec.namespace: takes a text, not a mapping"},
		{"boolean for text", head + "spec: {namespace: true}", "shop.yaml:4: module shop: spec.namespace: takes a text, not the boolean true; put it in quotes"},
		{"text for number", head + "spec: {rollout: {revisionHistoryLimit: ten}}", `shop.yaml:4: module shop: spec.rollout.revisionHistoryLimit: takes a whole number, not the text "ten"`},
		{"fraction for number", head + "spec: {rollout: {revisionHistoryLimit: 1.5}}", "shop.yaml:4: module shop: spec.rollout.revisionHistoryLimit: takes a whole number, not 1.5"},
		{"number for boolean", head + "spec: {allowEmpty: 1}", "shop.yaml:4: module shop: spec.allowEmpty: takes true or false, not 1"},
		{"empty list item", head + "spec:\n  bindings:\n  - ", "shop.yaml:6: module shop: spec.bindings[0]: is empty; remove it or fill it in"},
		{"null label", "apiVersion: towline.dev/v1\nkind: Cluster\nmetadata: {name: c, labels: {env: }}", `shop.yaml:3: cluster c: metadata.labels["env"]: has no value; write "" for an empty text`},
		{"key twice", head + "spec:\n  namespace: a\n  namespace: b", "shop.yaml:6: module shop: spec.namespace: is set twice, first in line 5"},
		{"no kind", "apiVersion: towline.dev/v1\nmetadata: {name: a}", "shop.yaml:1: a: kind: is required: Module, Cluster or Project"},
		{"misspelt kind", "apiVersion: towline.dev/v1\nkind: Modul\nmetadata: {name: a}", `shop.yaml:2: modul a: kind: "Modul" is unknown; did you mean Module?`},
		{"a Kubernetes object", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}", `shop.yaml:2: configmap a: kind: "ConfigMap" is none of Module, Cluster or Project; Kubernetes objects belong into the source of a Module`},
		{"other version", "apiVersion: towline.dev/v2\nkind: Module\nmetadata: {name: a}", `shop.yaml:1: module a: apiVersion: is "towline.dev/v2", not towline.dev/v1`},
		{"no name", "apiVersion: towline.dev/v1\nkind: Module\nmetadata: {}", "shop.yaml:1: module: metadata.name: is required"},
		{"a scalar", "hello", `shop.yaml:1: takes a mapping with apiVersion, kind and metadata, not a text`},
		{"broken YAML", "a: b\nc: d: e\n", "shop.yaml:2: is no YAML: mapping values are not allowed in this context"},
		{"second document", head + "---\n" + head + "spec: {x: 1}", "shop.yaml:8: module shop: spec.x: unknown field; known are source, package, namespace, bindings, placement, rollout, policies, allowEmpty, healthRules, watch, overrides, dependsOn, bindingsMode, waves"},
		{"item of a list", "kind: List\nitems:\n- apiVersion: towline.dev/v1\n  kind: Module\n  metadata: {nam: a}", "shop.yaml:3: module: metadata.name: is required"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("shop.yaml", []byte(tc.text), Options{Kinds: inFiles})
			if err == nil || err.Error() != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
			if !errors.Is(err, fleet.ErrInvalid) {
				t.Error("is no fleet.ErrInvalid")
			}
		})
	}
}

func TestAllErrorsOfAFileAreTold(t *testing.T) {
	_, err := Parse("f", []byte(head+"spec: {a: 1, allowEmpty: 2, namespace: []}"), Options{Kinds: inFiles})
	if got := strings.Count(err.Error(), "\n") + 1; got != 3 {
		t.Errorf("%d errors, want 3:\n%v", got, err)
	}
}

func TestNumbersMayStandForText(t *testing.T) {
	found := parse(t, head+`
spec:
  rollout:
    maxFailures: 1
    stages: [{name: a, maxConcurrency: 2, soak: 0}, {name: b, maxConcurrency: 25%}]
    revisionHistoryLimit: "7"
  bindings: [{name: VERSION, value: 1.10}, {name: EMPTY, value: ""}, {name: NONE}]
`)
	spec := found[0].Message.(*v1.Module).GetSpec()
	got := []string{spec.GetRollout().GetMaxFailures(), spec.GetRollout().GetStages()[0].GetMaxConcurrency(),
		spec.GetRollout().GetStages()[1].GetMaxConcurrency(), spec.GetBindings()[0].GetValue()}
	if diff := cmp.Diff([]string{"1", "2", "25%", "1.10"}, got); diff != "" {
		t.Error(diff)
	}
	if spec.GetRollout().GetRevisionHistoryLimit() != 7 {
		t.Error("a number in quotes was not taken")
	}
	if spec.GetBindings()[1].Value == nil || spec.GetBindings()[2].Value != nil {
		t.Error("an empty value and none are not told apart")
	}
}

// TestSelectors: a missing or nil selector selects none, an empty one all.
func TestSelectors(t *testing.T) {
	for text, want := range map[string]bool{"{clusters: [a]}": false, "{selector: }": false, "{selector: null}": false, "{selector: {}}": true} {
		m := parse(t, head+"spec: {placement: "+text+"}")[0].Message.(*v1.Module)
		if got := m.GetSpec().GetPlacement().GetSelector() != nil; got != want {
			t.Errorf("%s: selector set is %t, want %t", text, got, want)
		}
	}
}

func TestAnchorsAndMergeKeys(t *testing.T) {
	m := parse(t, head+`
spec:
  rollout:
    stages:
    - &canary {name: canary, soak: 5m}
    - {<<: *canary, name: rest}
`)[0].Message.(*v1.Module)
	rest := m.GetSpec().GetRollout().GetStages()[1]
	if rest.GetName() != "rest" || rest.GetSoak() != "5m" {
		t.Errorf("got %v", rest)
	}
}

func TestAnchorsCannotExplode(t *testing.T) {
	text := head + "spec:\n  policies:\n"
	text += "  - {match: &m {names: &n [" + strings.Repeat("x,", 2000) + "x]}}\n" + strings.Repeat("  - {match: *m}\n", 2000)
	_, err := Parse("f", []byte(text), Options{Kinds: inFiles})
	if err == nil || !strings.Contains(err.Error(), "aliases expanded") || len(err.Error()) > 300 {
		t.Errorf("got %.400v", err)
	}
}

func TestJSONWithTabs(t *testing.T) {
	text := "{\n\t\"apiVersion\": \"towline.dev/v1\",\n\t\"kind\": \"Project\",\n\t\"metadata\": {\"name\": \"team\"}\n}"
	if found := parse(t, text); found[0].Meta().GetName() != "team" {
		t.Errorf("got %v", found)
	}
}

func TestLoadDirectories(t *testing.T) {
	dir := t.TempDir()
	doc := func(name string) string { return strings.Replace(head, "shop", name, 1) }
	for file, text := range map[string]string{"b.yaml": doc("b") + "---\n---\n" + doc("c"), "a.json": `{"apiVersion":"towline.dev/v1","kind":"Module","metadata":{"name":"a"}}`,
		"README.md": "no yaml", "sub/d.yml": doc("d")} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	names := func(o Options, paths ...string) string {
		found, err := Load(paths, o)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, r := range found {
			out = append(out, r.Meta().GetName())
		}
		return strings.Join(out, " ")
	}
	if got := names(Options{Kinds: inFiles}, dir); got != "a b c" {
		t.Errorf("got %s", got)
	}
	if got := names(Options{Kinds: inFiles, Recursive: true, Stdin: strings.NewReader(doc("z"))}, dir, "-"); got != "a b c d z" {
		t.Errorf("recursively: got %s", got)
	}
	for path, want := range map[string]string{filepath.Join(dir, "no.yaml"): "no such file or directory", t.TempDir(): "no *.yaml"} {
		if _, err := Load([]string{path}, Options{Kinds: inFiles}); err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, fleet.ErrInvalid) {
			t.Errorf("%s: got %v, want %q in it", path, err, want)
		}
	}
}

// TestLoadFilesReadsAsLoadDoes: files that somebody fetched are read as those of a directory, by the ends of their names in capitals, too; a
// document without anything is none, and what is wrong is said in the same words.
func TestLoadFilesReadsAsLoadDoes(t *testing.T) {
	module := func(name string) string { return strings.Replace(head, "shop", name, 1) }
	files := map[string][]byte{"a.YAML": []byte(module("a")), "b.YML": []byte("---\n# nothing\n---\n" + module("b") + "---\n"), "c.Json": []byte(`{"apiVersion": "towline.dev/v1", "kind": "Module", "metadata": {"name": "c"}}`),
		"empty.yaml": nil, "words.yaml": []byte("# a file for later\n"), "again.yaml": []byte(module("a")), "wrong.yaml": []byte("just words"), "readme.md": []byte("no YAML: ["), "below/d.yaml": []byte(module("d"))}
	dir := t.TempDir()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	said := func(found []Resource, err error) string {
		var out []string
		for _, r := range found {
			out = append(out, fmt.Sprintf("%s:%d %s", r.Source, r.Line, r.Meta().GetName()))
		}
		return strings.ReplaceAll(fmt.Sprint(out, err, Unique(found)), dir+string(filepath.Separator), "")
	}
	for _, recursive := range []bool{false, true} {
		opts := Options{Kinds: inFiles, Recursive: recursive}
		fetched, skipped, err := LoadFiles(files, "", opts)
		got := said(fetched, err)
		read, err := each([]string{dir}, opts, func(source string, data []byte) ([]Resource, error) { return Parse(source, data, opts) })
		if want := said(read, err); got != want || !strings.Contains(got, "is in a.YAML:1, too") && !strings.Contains(got, "is in again.yaml:1, too") || !strings.Contains(got, "wrong.yaml:1: takes a mapping") {
			t.Errorf("recursive %v:\n got %s\nwant %s", recursive, got, want)
		}
		if (len(skipped) == 0) != recursive {
			t.Errorf("recursive %v: skipped %v", recursive, skipped)
		}
	}
}

// TestLoadFollowsLinks: a directory that is a link is read with -R as one that is there; the ends of names count in capitals, too. A link to
// a directory that it is in, or to nothing, is an error and no loop.
func TestLoadFollowsLinks(t *testing.T) {
	root := t.TempDir()
	dir, shared := filepath.Join(root, "prod"), filepath.Join(root, "shared")
	for file, name := range map[string]string{filepath.Join(dir, "a.YAML"): "a", filepath.Join(shared, "b.yaml"): "b"} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.Replace(head, "shop", name, 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("../shared", "shared")
	read := func(recursive bool) (string, error) {
		found, err := Load([]string{dir}, Options{Kinds: inFiles, Recursive: recursive})
		names := ""
		for _, r := range found {
			names += r.Meta().GetName()
		}
		return names, err
	}
	for recursive, want := range map[bool]string{false: "a", true: "ab"} {
		if got, err := read(recursive); err != nil || got != want {
			t.Errorf("recursive %v: read %q, %v; want %q", recursive, got, err, want)
		}
	}
	link("nowhere", "gone")
	link("..", "up")
	if _, err := read(false); err != nil {
		t.Errorf("what is not read: %v", err)
	}
	_, err := read(true)
	for _, want := range []string{filepath.Join(dir, "gone") + ": no such file or directory", "is a symbolic link to a directory that it is in"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q in it", err, want)
		}
	}
}

// TestLinkThatWasCopiedAsText: where the files are all that there is to be, a symbolic link to a directory that is a file with its path, as git on
// Windows leaves it, is an error: what is in the directory is not read.
func TestLinkThatWasCopiedAsText(t *testing.T) {
	for text, refused := range map[string]bool{
		"../shared": true, "../shared/": true, "..": true, "../../nowhere": true, "../other/in": true,
		"sub": false, ".": false, "../docs": false, "../more": false, "../LICENSE": false, "see ../shared\n": false, "v1": false, "": false, "/etc": false,
	} {
		root := t.TempDir()
		files := map[string][]byte{"prod/a.yaml": []byte(head), "prod/sub/b.yaml": []byte(strings.Replace(head, "shop", "b", 1)), "prod/link": []byte(text),
			"shared/c.yaml": []byte(strings.Replace(head, "shop", "c", 1)), "docs/a.md": nil, "LICENSE": []byte("free"), "other/in/d.yml": nil, "more/e.yaml": []byte(strings.Replace(head, "shop", "e", 1))}
		if text == ".." { // the directory that both are in: it is read twice where that is a link
			delete(files, "other/in/d.yml")
		}
		for name, data := range files {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, opts := range []Options{{Whole: true, Recursive: true}, {Whole: true}, {Recursive: true}} {
			opts.Kinds = inFiles
			_, err := Load([]string{filepath.Join(root, "prod"), filepath.Join(root, "more")}, opts)
			wrong := refused && opts.Whole && opts.Recursive
			if (err != nil) != wrong || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%s: holds the path %q and nothing else", filepath.Join(root, "prod", "link"), text)) {
				t.Errorf("%q, %+v: %v", text, opts, err)
			}
			if text == "../more" { // only a command reads several
				continue
			}
			_, _, err = LoadFiles(files, "prod", opts)
			if (err != nil) != wrong || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("prod/link: holds the path %q and nothing else", text)) {
				t.Errorf("files, %q, %+v: %v", text, opts, err)
			}
		}
	}
}

// TestOutput: the same message always gives the same bytes, in the order of the fields, with numbers as numbers.
func TestOutput(t *testing.T) {
	m := &v1.Module{ApiVersion: "towline.dev/v1", Kind: "Module",
		Metadata: &v1.Metadata{Name: "shop", Labels: map[string]string{"b": "1", "a": "true"}, Generation: 7,
			CreationTimestamp: &timestamppb.Timestamp{Seconds: 1782875655, Nanos: 5_000_000}},
		Spec: &v1.ModuleSpec{Source: &v1.Source{Inline: &v1.InlineSource{Files: map[string]string{"a.yaml": "x: <y>\n"}}}, AllowEmpty: true}}
	var asJSON, asYAML strings.Builder
	if err := errors.Join(WriteJSON(&asJSON, Node(m)), WriteYAML(&asYAML, Node(m))); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"generation": 7`, `"creationTimestamp": "2026-07-01T03:14:15.005Z"`, `"a.yaml": "x: <y>\n"`, `"bindings": []`, `"allowEmpty": true`} {
		if !strings.Contains(asJSON.String(), want) {
			t.Errorf("%s is missing in:\n%s", want, asJSON.String())
		}
	}
	for _, want := range []string{"apiVersion: towline.dev/v1\nkind: Module\nmetadata:\n  name: shop\n", "    a: \"true\"\n    b: \"1\"\n", "        a.yaml: |\n          x: <y>\n"} {
		if !strings.Contains(asYAML.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, asYAML.String())
		}
	}
	for _, unwanted := range []string{"rollout", "status", "http", "deletionTimestamp"} {
		if strings.Contains(asYAML.String(), unwanted) {
			t.Errorf("the unset message %s is written:\n%s", unwanted, asYAML.String())
		}
	}
	for range 20 {
		var again strings.Builder
		if err := WriteJSON(&again, Node(m)); err != nil || again.String() != asJSON.String() {
			t.Fatalf("differs from one time to the next: %v", err)
		}
	}
	back := parse(t, asJSON.String())[0].Message
	want := proto.Clone(m).(*v1.Module)
	want.Metadata.Generation, want.Metadata.CreationTimestamp = 0, nil
	if diff := cmp.Diff(proto.Message(want), back, protocmp.Transform()); diff != "" {
		t.Errorf("does not come back as it was:\n%s", diff)
	}
}

func TestJSONPath(t *testing.T) {
	list := List([]*v1.Project{{Metadata: &v1.Metadata{Name: "a"}, Modules: 3}, {Metadata: &v1.Metadata{Name: "b"}}})
	for template, want := range map[string]string{
		"{.items[*].metadata.name}": "a b", ".items[0].modules": "3", "items[1].metadata.name": "b", ".items[0].nosuch": "",
		`{range .items[*]}{.metadata.name}={.modules}{"\n"}{end}`: "a=3\nb=0\n",
	} {
		path, err := JSONPath(template)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		if err := path(&b, list); err != nil || b.String() != want {
			t.Errorf("%s: got %q, %v, want %q", template, b.String(), err, want)
		}
	}
	if _, err := JSONPath("{.a"); err == nil {
		t.Error("a broken template was taken")
	}
}

func TestNearest(t *testing.T) {
	words := []string{"rollout", "placement", "policies", "namespace"}
	for s, want := range map[string]string{"rolout": "rollout", "Rollout": "rollout", "polices": "policies", "name": "namespace", "zebra": "", "x": ""} {
		if got := Nearest(s, words); got != want {
			t.Errorf("%s: got %q, want %q", s, got, want)
		}
	}
}

// TestByteOrderMarkInTheMiddle: of files that begin with a byte order mark and were put one behind the other every module is read.
func TestByteOrderMarkInTheMiddle(t *testing.T) {
	for _, between := range []string{"---\n\ufeff", "\ufeff---\n", "\ufeff---\r\n\ufeff"} {
		if found := parse(t, "\ufeff"+head+between+head); len(found) != 2 || found[1].Meta().GetName() != "shop" {
			t.Errorf("%q: %v", between, found)
		}
	}
}

// TestValuesOfAChart: they are read as Helm reads its files, and what is written is read as the same.
func TestValuesOfAChart(t *testing.T) {
	const values = `
      replicas: 3
      big: 12345678
      ratio: 0.25
      small: 1e-7
      none: null
      yes: yes
      text: "yes"
      number: "12"
      version: 1.2.3
      date: 2026-01-02
      octal: 0o17
      empty: {}
      list: [a, 1, true, {b: [c]}]
      &key anchored: &m {a: 1}
      merged: {<<: *m, b: 2}
      block: |
        two
        lines
      ${NAME}: "${NAME}"`
	m := parse(t, head+"spec:\n  package:\n    helm:\n      values:"+strings.ReplaceAll(values, "\n", "\n  "))[0].Message.(*v1.Module)
	got := m.GetSpec().GetPackage().GetHelm().GetValues()
	want := map[string]any{"replicas": 3.0, "big": 12345678.0, "ratio": 0.25, "small": 1e-7, "none": nil, "yes": true, "text": "yes", "number": "12", "version": "1.2.3",
		"date": "2026-01-02", "octal": 15.0, "empty": map[string]any{}, "list": []any{"a", 1.0, true, map[string]any{"b": []any{"c"}}}, "anchored": map[string]any{"a": 1.0},
		"merged": map[string]any{"a": 1.0, "b": 2.0}, "block": "two\nlines\n", "${NAME}": "${NAME}"}
	if diff := cmp.Diff(want, got.AsMap()); diff != "" {
		t.Error(diff)
	}
	var out strings.Builder
	if err := WriteYAML(&out, Node(m)); err != nil {
		t.Fatal(err)
	}
	again := parse(t, out.String())[0].Message.(*v1.Module)
	if diff := cmp.Diff(m, again, protocmp.Transform()); diff != "" {
		t.Errorf("%s\n%s", diff, out.String())
	}
	for text, want := range map[string]string{
		"{id: 12345678901234567890}": "spec.package.helm.values.id: has more digits than Helm keeps of a number; put it in quotes",
		"{id: 9007199254740993}":     "has more digits than Helm keeps",
		"{id: 98765432109876543210}": "has more digits than Helm keeps",
		"[a]":                        "spec.package.helm.values: takes a mapping, not a list",
		"{a: !!binary aGk=}":         "has a tag; write the value without it",
		"{a: 1, a: 2}":               "spec.package.helm.values.a: is set twice",
	} {
		if _, err := Parse("shop.yaml", []byte(head+"spec: {package: {helm: {values: "+text+"}}}"), Options{Kinds: inFiles}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}
