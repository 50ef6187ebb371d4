package manifest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/pkg/fleet"
)

func parse(t *testing.T, text string, opts Options) []Object {
	t.Helper()
	objects, err := ParseSet(map[string][]byte{"web.yaml": []byte(text)}, opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return objects
}

// refused asserts that the error is a FieldError that names file and line and says want.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %q", want)
	}
	var fe *fleet.FieldError
	if !errors.As(err, &fe) || !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("%T is no FieldError: %v", err, err)
	}
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestDocuments(t *testing.T) {
	text := "\ufeff# a comment\r\n%YAML 1.1\r\n---\r\napiVersion: v1\r\nkind: ConfigMap\r\nmetadata:\r\n  name: one\r\ndata:\r\n  text: |\r\n    a\r\n    b\r\n" +
		"---\n# nothing\n---\n--- # again\nnull\n---\n" +
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"two"},"data":{"face":"\ud83d\ude00"}}` + "\n" +
		"---\n" +
		"apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: three}\n- {apiVersion: v1, kind: Secret, metadata: {name: four}}\n" +
		"--- {apiVersion: v1, kind: ConfigMapList, items: [{metadata: {name: five}}]}\n...\n"
	var got []string
	for _, o := range parse(t, text, Options{Namespace: "shop"}) {
		got = append(got, fmt.Sprintf("%s %s", o.Place(), o.ID))
	}
	want := []string{
		"web.yaml:27 ConfigMap shop/five", "web.yaml:4 ConfigMap shop/one",
		"web.yaml:23 ConfigMap shop/three", "web.yaml:18 ConfigMap shop/two", "web.yaml:26 Secret shop/four",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	raw := string(parse(t, text, Options{Namespace: "shop"})[1].Raw)
	if want := `{"apiVersion":"v1","data":{"text":"a\nb\n"},"kind":"ConfigMap","metadata":{"name":"one","namespace":"shop"}}`; raw != want {
		t.Errorf("got  %s\nwant %s", raw, want)
	}
}

// TestLinesThatEndWithACarriageReturn: a file of old line ends that begins with a comment, or with a directive, has the objects that it has, and
// is not taken for one of nothing but comments, so that all that it had would be dropped.
func TestLinesThatEndWithACarriageReturn(t *testing.T) {
	const one = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: one\n  namespace: shop\n"
	for name, tc := range map[string]struct {
		text string
		want int
	}{
		"a comment":              {"# a comment\n" + one, 1},
		"an indented comment":    {"  # a\n  # b\n\n" + one, 1},
		"a directive":            {"%YAML 1.1\n---\n" + one, 1},
		"comments between":       {"# a\n---\n# b\n" + one, 1},
		"nothing but a comment":  {"# a comment\n# " + one[:14] + "\n", 0},
		"nothing but separators": {"---\n---\n", 0},
	} {
		for _, end := range []string{"\r", "\u0085", "\u2028", "\u2029"} {
			if end != "\r" && strings.Contains(tc.text, "---") {
				continue // nobody separates documents by these
			}
			objects, err := ParseSet(map[string][]byte{"web.yaml": []byte(strings.ReplaceAll(tc.text, "\n", end))}, Options{})
			if err != nil || len(objects) != tc.want {
				t.Errorf("%s, lines end with %q: %d objects, want %d: %v", name, end, len(objects), tc.want, err)
			}
		}
	}
}

// TestByteOrderMarkInTheMiddle: files that begin with a byte order mark and were put one behind the other, as by cat, have the objects of all.
func TestByteOrderMarkInTheMiddle(t *testing.T) {
	const one, two = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: two}\n"
	const json = `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "two"}}`
	for name, text := range map[string]string{
		"behind a separator":         one + "---\n\ufeff" + two,
		"behind one with CRLF":       one + "---\r\n\ufeff" + two,
		"before a separator":         one + "\ufeff---\n" + two,
		"before one and behind":      "\ufeff---\n\ufeff" + one + "\ufeff---\n\ufeff" + two,
		"between two separators":     one + "---\n\ufeff---\n\ufeff# a comment\n" + two,
		"before a JSON":              one + "---\n\ufeff" + json,
		"before an empty one":        one + "---\n\ufeff\n---\n" + two,
		"in a text, where it stands": one + "---\n" + two + "data: {a: \"\ufeff\"}\n",
	} {
		objects := parse(t, text, Options{Namespace: "shop"})
		if len(objects) != 2 || objects[0].ID.Name != "one" || objects[1].ID.Name != "two" {
			t.Errorf("%s: %v", name, objects)
		}
		if raw := string(objects[len(objects)-1].Raw); strings.Contains(raw, "\ufeff") != strings.HasPrefix(name, "in a text") {
			t.Errorf("%s: %s", name, raw)
		}
	}
}

// TestListsThatHaveAName: to kubectl a List is one whatever its metadata say. A kind of somebody else that ends so may be an object.
func TestListsThatHaveAName(t *testing.T) {
	const items = "metadata: {name: all}\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n"
	for head, want := range map[string]string{
		"apiVersion: v1\nkind: List\n":                               "ConfigMap shop/a",
		"apiVersion: v1\nkind: ConfigMapList\n":                      "ConfigMap shop/a",
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleList\n": "ConfigMap shop/a",
		"apiVersion: net.example.com/v1\nkind: AllowList\n":          "AllowList.net.example.com shop/all",
		"apiVersion: net.example.com/v1\nkind: List\n":               "List.net.example.com shop/all",
	} {
		got := parse(t, head+items, Options{Namespace: "shop"})
		if len(got) != 1 || got[0].ID.String() != want {
			t.Errorf("%s: %v, want %s", head, got, want)
		}
	}
}

// TestListOfNull: a program prints null for a list that it made of nothing, as of what it did not find. All that the file had would go. To Helm,
// as to kubectl, such a List of a chart's has no items: its values may say so.
func TestListOfNull(t *testing.T) {
	for name, text := range map[string]string{
		"a.yaml": "apiVersion: v1\nkind: List\nitems: null\n",
		"b.yaml": "apiVersion: v1\nkind: List\nitems:\n",
		"c.yaml": "apiVersion: v1\nkind: ConfigMapList\nmetadata: {}\nitems: ~\n",
		"d.json": `{"apiVersion": "v1", "kind": "List", "items": null}`,
	} {
		files := map[string][]byte{name: []byte(text)}
		got, err := ParseSet(files, Options{Namespace: "shop"})
		if err == nil {
			t.Errorf("%s: read as %d objects", name, len(got))
			continue
		}
		refused(t, err, name+":1: ")
		refused(t, err, "items is null: write them, or items: [] where there are none")
		if got, err := ParseSet(files, Options{Namespace: "shop", Chart: true}); err != nil || len(got) != 0 {
			t.Errorf("%s of a chart: %d objects, %v", name, len(got), err)
		}
	}
}

// TestKeysBeforeAMerge: Helm, as kubectl, has what << brings take the place of the keys that stand before it.
func TestKeysBeforeAMerge(t *testing.T) {
	for labels, want := range map[string]string{
		"{a: own, <<: {a: base, b: base}}":            `{"a":"base","b":"base"}`,
		"{<<: {a: base, b: base}, a: own}":            `{"a":"own","b":"base"}`,
		"{a: own, <<: [{a: one}, {a: two, b: two}]}":  `{"a":"one","b":"two"}`,
		"{a: own, <<: {a: base, b: base}, b: behind}": `{"a":"base","b":"behind"}`,
	} {
		o := parse(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: "+labels+"}\n", Options{Chart: true})
		if raw := string(o[0].Raw); !strings.Contains(raw, `"labels":`+want) {
			t.Errorf("%s: %s", labels, raw)
		}
	}
	same := "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {a: base, <<: {a: base}}}\n"
	if o := parse(t, same, Options{}); !strings.Contains(string(o[0].Raw), `{"a":"base"}`) {
		t.Errorf("%s", o[0].Raw)
	}
}

func TestScalarsReadAsKubectlDoes(t *testing.T) {
	for in, want := range map[string]string{
		"NO": "false", "yes": "true", "on": "true", "y": "true", "~": "null", "": "null",
		"010": "8", "0o17": "15", "0x1F": "31", "0b101": "5", "0b-1": "-1", ".1_0": "0.1", "._1": `"._1"`, ".1_": `".1_"`, "-0b-1": `"-0b-1"`, "1_000": "1000", "+12": "12", "-7": "-7",
		"9223372036854775807": "9223372036854775807", "-9223372036854775808": "-9223372036854775808",
		"1.0": "1", "0.5": "0.5", ".5": "0.5", "1e3": "1000", "1e20": "1e+20", "-0.0": "0", "1.5e-9": "1.5e-09", "0.1": "0.1",
		"1.2.3": `"1.2.3"`, "10Gi": `"10Gi"`, "2001-12-14": `"2001-12-14"`, "12:30:45": `"12:30:45"`, "-": `["x"]`,
		"'010'": `"010"`, `"NO"`: `"NO"`, "!!str 12": `"12"`, "!!int 12": "12", "!!float 12": "12", "a<b>&c": `"a<b>&c"`,
		"\"\\u2028\\u0001\\b\"": "\"\u2028\\u0001\\u0008\"",
	} {
		if in == "-" {
			in = "[x]"
		}
		t.Run(in, func(t *testing.T) {
			o := parse(t, "apiVersion: x.dev/v1\nkind: Any\nmetadata: {name: a}\nspec:\n  v: "+in+"\n", Options{})
			_, got, _ := strings.Cut(string(o[0].Raw), `"spec":{"v":`)
			if got = strings.TrimSuffix(got, "}}"); got != want {
				t.Errorf("%s: got %s, want %s", in, got, want)
			}
		})
	}
}

func TestAliasesAndMergeKeys(t *testing.T) {
	o := parse(t, `apiVersion: x.dev/v1
kind: Any
metadata: {name: a}
base: &base {cpu: 1, memory: 2}
more: &more {memory: 3, disk: 4}
one: {<<: *base, cpu: 9}
two:
  <<: [*base, *more]
  disk: 0
name: &n text
again: *n
*n : key
`, Options{})
	want := `"name":"text","one":{"cpu":9,"memory":2},"text":"key","two":{"cpu":1,"disk":0,"memory":2}}`
	if got := string(o[0].Raw); !strings.HasSuffix(got, want) {
		t.Errorf("got %s", got)
	}
}

func TestNamespaces(t *testing.T) {
	crd := "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: x.x.dev, namespace: oops}\nspec: {group: x.dev, scope: Cluster, names: {kind: X}}\n"
	for _, tt := range []struct{ name, object, namespace, want string }{
		{"own", "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: own}", "shop", "Secret own/a"},
		{"default", "apiVersion: v1\nkind: Secret\nmetadata: {name: a}", "shop", "Secret shop/a"},
		{"null", "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: }", "shop", "Secret shop/a"},
		{"cluster-scoped", "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: 'system:a'}", "shop", "ClusterRole.rbac.authorization.k8s.io system:a"},
		{"cluster-scoped with a namespace", "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, namespace: b}", "", "Namespace a"},
		{"CRD in the set", "apiVersion: x.dev/v1\nkind: X\nmetadata: {name: a, namespace: b}\n" + crd, "shop", "X.x.dev a"},
		{"unknown with default", "apiVersion: y.dev/v1\nkind: Yt\nmetadata: {name: a}", "shop", "Yt.y.dev shop/a"},
		{"unknown without default", "apiVersion: y.dev/v1\nkind: Yt\nmetadata: {name: a}", "", "Yt.y.dev a"},
		{"unknown with own", "apiVersion: y.dev/v1\nkind: Yt\nmetadata: {name: a, namespace: own}", "", "Yt.y.dev own/a"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objects := parse(t, tt.object, Options{Namespace: tt.namespace})
			if got := objects[len(objects)-1].ID.String(); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
	_, err := ParseSet(map[string][]byte{"a.yaml": []byte("\napiVersion: v1\nkind: Secret\nmetadata: {name: a}")}, Options{})
	refused(t, err, "a.yaml:2: Secret a: has no namespace: write metadata.namespace, or spec.namespace of the module")
}

func TestWhatTheServerWritesIsDropped(t *testing.T) {
	o := parse(t, `apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  uid: 1-2
  resourceVersion: "5"
  generation: 3
  creationTimestamp: null
  deletionTimestamp: 2020-01-01T00:00:00Z
  deletionGracePeriodSeconds: 3
  managedFields: [{manager: x}]
  selfLink: /x
  ownerReferences: []
  finalizers: []
  labels:
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}"}
status: {loadBalancer: {}}
`, Options{})
	if got, want := string(o[0].Raw), `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop"}}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestWaveAndLabels(t *testing.T) {
	o := parse(t, "apiVersion: v1\nkind: Secret\nmetadata: {name: a, labels: {app: web, note: }, annotations: {towline.dev/wave: '-5'}}", Options{Namespace: "shop"})[0]
	if o.Wave != -5 {
		t.Errorf("wave %d", o.Wave)
	}
	if diff := cmp.Diff(map[string]string{"app": "web", "note": ""}, o.Labels); diff != "" {
		t.Error(diff)
	}
	if e := o.Entry(); e.APIVersion() != "v1" || e.Wave != -5 || e.Digest != fleet.DigestOf(o.Raw) || e.ID != o.ID {
		t.Errorf("entry %+v", e)
	}
}

func TestDigestIsOfContent(t *testing.T) {
	a := parse(t, "# one way\nkind: Secret\napiVersion: v1\nmetadata:\n  namespace: shop\n  name: a\nstringData: {b: \"1\", a: 'x'}", Options{})
	b := parse(t, `{"apiVersion":"v1","stringData":{"a":"x","b":"1"},"kind":"Secret","metadata":{"name":"a"}}`, Options{Namespace: "shop"})
	if a[0].Digest() != b[0].Digest() {
		t.Errorf("%s\n%s", a[0].Raw, b[0].Raw)
	}
	again, err := Decode(a[0].Raw)
	if err != nil || string(Canonical(again)) != string(a[0].Raw) {
		t.Errorf("%v: %s", err, Canonical(again))
	}
}

func TestBundleOrder(t *testing.T) {
	objects := parse(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: b}}
---
{apiVersion: v1, kind: Service, metadata: {name: b}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}}
`, Options{Namespace: "shop"})
	var got []string
	for _, e := range ToBundle([]Object{objects[2], objects[0], objects[1]}) {
		got = append(got, e.ID.Short())
	}
	if want := "Service shop/b, Deployment shop/a, Deployment shop/b"; strings.Join(got, ", ") != want {
		t.Errorf("got %v", got)
	}
}

// TestRefused reads testdata/refused: each file begins with the error it must give.
func TestRefused(t *testing.T) {
	cases, err := filepath.Glob("testdata/refused/*")
	if err != nil || len(cases) < 40 {
		t.Fatalf("%d cases, %v", len(cases), err)
	}
	for _, file := range cases {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, text, _ := strings.Cut(string(data), "\n")
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			_, err := ParseSet(map[string][]byte{name: []byte(text)}, Options{Namespace: "shop", Declared: []string{"CLUSTER", "REGION"}})
			refused(t, err, name+":"+want)
		})
	}
}
