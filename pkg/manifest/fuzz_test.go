package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
	sigs "sigs.k8s.io/yaml"

	"towline.dev/towline/pkg/fleet"
)

func seeds(f *testing.F) {
	files, err := filepath.Glob("testdata/refused/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		_, text, _ := bytes.Cut(data, []byte("\n"))
		f.Add(text[:min(len(text), 2000)])
	}
	for _, s := range []string{
		"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: b}\n",
		"{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}",
		"apiVersion: v1\r\nkind: List\r\nitems:\r\n- &a {apiVersion: v1, kind: Secret, metadata: {name: a}}\r\n- *a\r\n",
		"a: 1_0\nb: 09\nc: 0x1p4\nd: .5e+3\ne: +.5\nf: 1e3\ng: 0b11\nh: -0b11\ni: 1.\nj: ._1\nk: 0o7\n",
		"a: &x [1, {b: *x}]\n", "a: |\n  x\n   y\nb: >-\n  z\n\n  z\n", "? a\n: b\n", "'': x\n", "\u2028---\na: \u0085b",
		"a: {<<: [{b: 1}, {b: 2, c: 3}], d: 4}\n", "!!str a: !!float 1\n", "--- !!map {a: b}\n...\n%YAML 1.1\n---\nb: c\n",
	} {
		f.Add([]byte(s))
	}
}

// FuzzParseSet: whatever comes, there is an error that names the file, or objects that read back as they are.
func FuzzParseSet(f *testing.F) {
	seeds(f)
	opts := Options{Namespace: "shop", Declared: []string{"A", "B1"}}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"f.yaml", "f.json"} {
			objects, err := ParseSet(map[string][]byte{name: text}, opts)
			if err != nil {
				var fe *fleet.FieldError
				if !errors.As(err, &fe) || !strings.HasPrefix(fe.Path, name) {
					t.Fatalf("%T without a place: %v", err, err)
				}
				continue
			}
			for _, o := range objects {
				checkReadsBack(t, o, opts)
			}
		}
	})
}

func checkReadsBack(t *testing.T, o Object, opts Options) {
	t.Helper()
	if !json.Valid(o.Raw) {
		t.Fatalf("not JSON: %s", o.Raw)
	}
	again, err := ParseSet(map[string][]byte{"again.json": o.Raw}, opts)
	if err != nil || len(again) != 1 {
		t.Fatalf("%s does not read back: %d objects, %v", o.Raw, len(again), err)
	}
	if again[0].ID != o.ID || !bytes.Equal(again[0].Raw, o.Raw) {
		t.Fatalf("read back differently\n%s\n%s", o.Raw, again[0].Raw)
	}
	for _, name := range o.Placeholders {
		object, err := Decode(o.Raw)
		if err == nil {
			var how *fleet.Substitution
			if o.Extended {
				how = &fleet.Substitution{}
			}
			err = Substitute(object, map[string]string{name: ""}, how, 0)
		}
		if err != nil || bytes.Equal(Canonical(object), o.Raw) {
			t.Fatalf("placeholder %s of %s is not substituted: %v", name, o.Raw, err)
		}
	}
}

// FuzzLikeKubectl: what is accepted means what it means to kubectl, and in a chart to Helm.
func FuzzLikeKubectl(f *testing.F) {
	seeds(f)
	f.Add([]byte("x: &x {a: 1, b: 2}\nb: {a: 3, <<: *x, b: 4}\nc: {<<: [*x, {c: 5}], a: 6}\nd: {b: 2, <<: *x}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if bytes.Contains(text, []byte("!")) || checkText("f.yaml", text) != nil || json.Valid(text) {
			return // tags are read by the letter of YAML
		}
		asJSON, err := sigs.YAMLToJSON(text)
		if err != nil {
			return
		}
		theirs, err := Decode(asJSON)
		if err != nil {
			return
		}
		for _, chart := range []bool{false, true} {
			values, err := readYAML("f.yaml", text, chart)
			if err != nil || len(values) != 1 {
				continue
			}
			ours, ok := values[0].value.(map[string]any)
			if !ok {
				continue
			}
			if a, b := Canonical(ours), Canonical(theirs); !bytes.Equal(a, b) {
				t.Fatalf("%q, of a chart %t\nours   %s\ntheirs %s", text, chart, a, b)
			}
		}
	})
}

func FuzzSubstitute(f *testing.F) {
	f.Add("a ${A} b", "${A}", "x")
	f.Add("${A}${B}", `"\`, "")
	f.Add("${${A}}", "B", "x")
	f.Fuzz(func(t *testing.T, text, a, b string) {
		clean := func(s string) string { return strings.ToValidUTF8(s, "\ufffd") } // as all is that was parsed
		text, a, b = clean(text), clean(a), clean(b)
		object := map[string]any{"k": text}
		if err := Substitute(object, map[string]string{"A": a, "B": b}, nil, MaxObjectBytes); err != nil {
			return
		}
		got := Canonical(object)
		want := strings.NewReplacer("${A}", a, "${B}", b).Replace(text)
		if !bytes.Equal(got, Canonical(map[string]any{"k": want})) {
			t.Fatalf("%q with %q and %q: %s, want %q", text, a, b, got, want)
		}
	})
}

// TestCanonicalIsOneText: equal values have equal bytes, and the bytes read back to the same bytes.
func TestCanonicalIsOneText(t *testing.T) {
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		leaves := []*rapid.Generator[any]{
			rapid.Int64().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
		}
		if depth > 0 {
			leaves = append(leaves, rapid.SliceOfN(value(depth-1), 0, 4).AsAny(), rapid.MapOfN(rapid.String(), value(depth-1), 0, 4).AsAny())
		}
		return rapid.OneOf(leaves...)
	}
	rapid.Check(t, func(t *rapid.T) {
		obj := rapid.MapOfN(rapid.String(), value(3), 0, 5).Draw(t, "object")
		raw := Canonical(obj)
		if !json.Valid(raw) {
			t.Fatalf("not JSON: %s", raw)
		}
		again, err := Decode(raw)
		if err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		if twice := Canonical(again); !bytes.Equal(raw, twice) {
			t.Fatalf("%s\n%s", raw, twice)
		}
	})
}
