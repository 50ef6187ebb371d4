package resource

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

// most is what reading a small file may allocate altogether. Far more would end the hub, which reads what others push.
const most = 256 << 20

// refused reads a file within bounds, which is refused with want in a text of a few lines.
func refused(t *testing.T, text, want string) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	_, err := Parse("modules/shop.yaml", []byte(text), Options{Kinds: inFiles, Whole: true})
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > most {
		t.Errorf("%d bytes of a file: %d MiB were allocated, in %v", len(text), got>>20, time.Since(began))
	}
	if s := fmt.Sprint(err); !strings.Contains(s, want) || len(s) > 1<<20 {
		t.Errorf("got %.400s (%d bytes), want %s", s, len(s), want)
	}
}

// TestWhatHasItselfIsRefused: an alias to what it is part of has no end, and each level would have a longer path.
func TestWhatHasItselfIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"values":           "spec: {package: {helm: {values: &x {a: *x}}}}",
		"a list of values": "spec: {package: {helm: {values: {a: &x [*x, *x]}}}}",
		"over two":         "spec: {package: {helm: {values: &x {a: {b: [&y {c: *x, d: *y}]}}}}}",
		"a merge":          "spec: {package: {helm: {values: &x {a: 1, <<: *x}}}}",
		"a list of merges": "spec: {package: {helm: {values: {<<: &x [*x, *x]}}}}",
		"fields":           "spec: &x {<<: [*x]}",
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, head+text+"\n", "has itself: an alias in it refers to what it is part of")
		})
	}
}

// TestValuesThatAreDeepAreRefused: also where no alias is, since keys may be long.
func TestValuesThatAreDeepAreRefused(t *testing.T) {
	deep := func(levels int, key string) string {
		return head + "spec: {package: {helm: {values: {" + strings.Repeat(key+": {", levels) + strings.Repeat("}", levels) + "}}}}\n"
	}
	refused(t, deep(9000, strings.Repeat("k", 100)), "is more than 250 levels deep")
	refused(t, head+"spec: {package: {helm: {values: {a: "+strings.Repeat("[", 9000)+strings.Repeat("]", 9000)+"}}}}\n", "is more than 250 levels deep")
	if _, err := Parse("f", []byte(deep(200, "k")), Options{Kinds: inFiles}); err != nil {
		t.Error(err)
	}
}

// TestLongKeys: neither a path nor what is told of a file grows with what its keys are.
func TestLongKeys(t *testing.T) {
	long := strings.Repeat("k", 1000) // the parser takes no longer ones
	values := strings.Repeat("{"+long+": ", 200) + "[" + strings.Repeat("!x a,", 20_000) + "]" + strings.Repeat("}", 200)
	refused(t, head+"spec: {package: {helm: {values: "+values+"}}}\n", "more is wrong than is told here")
	var fields strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&fields, "%s%d: 1,", long, i)
	}
	refused(t, head+"spec: {"+fields.String()+"}\n", "more is wrong than is told here")
}

// TestMergesThatMultiply: what merge keys bring counts as often as they bring it.
func TestMergesThatMultiply(t *testing.T) {
	var b strings.Builder
	b.WriteString(head + "spec: {package: {helm: {values: {a: &a {")
	for i := range 4000 {
		fmt.Fprintf(&b, "k%d: 1,", i)
	}
	b.WriteString("}, b: {<<: [" + strings.Repeat("*a,", 12_000) + "]}}}}}\n")
	refused(t, b.String(), "the document has more than 200000 values with its aliases expanded")
}

// TestListsInListsAreReadOnce: what is inside of many of them is copied once, not by each of them.
func TestListsInListsAreReadOnce(t *testing.T) {
	text := strings.Repeat("{kind: List, items: [", 500) + "{a: [" + strings.Repeat("1,", 20_000) + "]}" + strings.Repeat("]}", 500)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	found, err := ParseDocuments("f", []byte(text))
	runtime.ReadMemStats(&after)
	if err != nil || len(found) != 1 {
		t.Errorf("got %d documents, %v", len(found), err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > most {
		t.Errorf("%d bytes of a file: %d MiB were allocated", len(text), got>>20)
	}
}

// TestErrorsShowNoValues: what is wrong with a chart's value, or with YAML, is told to whoever reads a catalog, who may not read the value.
func TestErrorsShowNoValues(t *testing.T) {
	for text, want := range map[string]string{
		"spec:\n  package: {helm: {values: {password: *hunter2}}}":         "shop.yaml:5: is no YAML: unknown anchor: put text that begins with * in quotes",
		"spec:\n  source:\n    inline:\n      files:\n        a: *hunter2": "shop.yaml:8: is no YAML: unknown anchor",
		"spec:\n  bindings:\n  - {name: A, value: *hunter2}":               "shop.yaml:6: is no YAML: unknown anchor",
		"spec: {package: {helm: {values: {pin: 12345678901234567890}}}}":   "values.pin: has more digits",
		"spec: {package: {helm: {values: {pin: 98712345678901234567}}}}":   "values.pin: has more digits",
		"spec: {package: {helm: {values: {token: !hunter2 x}}}}":           "values.token: has a tag",
		"spec: {package: {helm: {values: {token: !!int hunter2}}}}":        "values.token: ",
		"spec: {package: {helm: {values: {token: !!float hunter2}}}}":      "values.token: ",
		"spec: {package: {helm: {values: {token: !!float hunt.er2}}}}":     "values.token: takes a number that JSON has",
	} {
		_, err := Parse("shop.yaml", []byte(head+text), Options{Kinds: inFiles})
		s := fmt.Sprint(err)
		if !strings.Contains(s, want) {
			t.Errorf("%s\n   got %s, want %s", text, s, want)
		}
		for _, value := range []string{"hunter2", "hunt.er2", "12345678"} {
			if strings.Contains(s, value) {
				t.Errorf("%s\n   shows: %s", text, s)
			}
		}
	}
}

// TestFilesOfManyValues: the parser takes memory for each value of a file, before anything is known of it, and the values of all files of a
// folder are kept until the last one is read.
func TestFilesOfManyValues(t *testing.T) {
	refused(t, "["+strings.Repeat("1,", 2<<20)+"]", "modules/shop.yaml: has too many values: split it")
	refused(t, "["+strings.Repeat("1,\n", 2<<20)+"]", "has too many values")
	var tags strings.Builder
	for i := range 50_000 {
		fmt.Fprintf(&tags, "%%TAG !a%d! b\n", i)
	}
	refused(t, tags.String()+"--- {a: 1}\n", "has too many %TAG lines: split it")
	files := map[string][]byte{}
	for i := range 64 {
		files[fmt.Sprintf("%02d.yaml", i)] = []byte(head + "spec: {package: {helm: {values: {a: [" + strings.Repeat("1,", 100_000) + "]}}}}\n")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := LoadFiles(files, "", Options{Kinds: inFiles})
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 6*most || !strings.Contains(fmt.Sprint(err), "20.yaml: has, with the files before it, more values than are read of a folder") {
		t.Errorf("a folder: %d MiB were allocated, and got %v", got>>20, err)
	}
}

// A text is one value: a folder of many modules with long manifests inline, and many comments, is read.
func TestFolderOfLongTexts(t *testing.T) {
	files := map[string][]byte{}
	for i := range 40 {
		files[fmt.Sprintf("%02d.yaml", i)] = []byte(head + "spec:\n  source:\n    inline:\n      files:\n        a.yaml: |\n" + strings.Repeat("          a: b\n", 60_000) + strings.Repeat("# a: b\n", 10_000))
	}
	found, _, err := LoadFiles(files, "", Options{Kinds: inFiles})
	if err != nil || len(found) != len(files) {
		t.Errorf("read %d of %d: %v", len(found), len(files), err)
	}
}
