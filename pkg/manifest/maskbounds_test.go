package manifest

import (
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
)

// manyTimes is a text that has another one as often as the aliases of one text may repeat it.
func manyTimes(s string) string {
	n, k := 50000/(len(s)+9), 1
	for (k+1)*(k+1)*(k+1) <= n {
		k++
	}
	times := func(a string) string { return "[" + strings.TrimSuffix(strings.Repeat("*"+a+",", k), ",") + "]" }
	return "[&a '" + strings.ReplaceAll(s, "'", "''") + "', &b " + times("a") + ", &c " + times("b") + ", " + times("c") + "]"
}

func openConfigMap(data map[string]any) map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "open"}, "data": data}
}

// allocatedBy is what something allocates, and how long it takes.
func allocatedBy(f func()) (bytes uint64, took time.Duration) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	began := time.Now()
	f()
	took = time.Since(began)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, took
}

// What aliases repeat in a text are texts again: what is looked into is bounded over the whole object, not for each of them.
func TestTextsOfTextsAreBounded(t *testing.T) {
	inner, deepest := "{kind: Secret, data: {a: ib}}", 4
	for depth, s := 1, inner; depth <= deepest && !t.Failed(); depth++ {
		s = manyTimes(s)
		var shown string
		allocated, took := allocatedBy(func() {
			out, masked := Mask(openConfigMap(map[string]any{"a": s, "b": "open"}))
			if shown = fmt.Sprint(out); !masked || !strings.Contains(shown, "b:open") {
				t.Errorf("texts in %d texts: nothing is masked, or too much", depth)
			}
		})
		if allocated > 256<<20 || took > 20*time.Second || len(shown) > maxUnpacked {
			t.Errorf("a text of %d bytes, with texts in %d texts, takes %d MiB and %v, and is shown as %d bytes", len(s), depth, allocated>>20, took, len(shown))
		}
		if strings.Contains(shown, "ib}") {
			t.Errorf("texts in %d texts: a value is shown", depth)
		}
	}
}

// What is too much to be looked into is not shown if it may hold a Secret; what says nothing of one is.
func TestWhatIsNotLookedIntoIsNotShown(t *testing.T) {
	data := map[string]any{"open": strings.Repeat("nothing of that kind\n", 10_000), "value": strings.Repeat("x", 30_000)}
	for i := range 20 {
		data[fmt.Sprint("k", i)] = "kind: Secret\ndata: {a: hunter22}\n---\na: " + strings.Repeat("x", 1<<20)
	}
	out, masked := Mask(openConfigMap(data))
	got := out["data"].(map[string]any)
	if !masked || strings.Contains(fmt.Sprint(got), "hunter22") || got["open"] != data["open"] || got["value"] != data["value"] {
		t.Error("what is too much to be looked into is shown, or what says nothing of a Secret is not")
	}
}

// A ConfigMap as large as one may be, that speaks of secrets and holds none, is shown as it is.
func TestLargeTextsAreShown(t *testing.T) {
	var panels, rules strings.Builder
	for i := range 4000 {
		fmt.Fprintf(&panels, `{"id":%d,"title":"Secrets of {{namespace}}","targets":[{"expr":"sum(kube_secret_info{namespace=~\"$ns\"}) by (kind)","kind":"Secret"}],"type":"stat"},`, i)
		fmt.Fprintf(&rules, "- alert: SecretIsOld%d\n  annotations: {summary: 'kind: Secret is old'}\n  expr: |\n    time() - kube_secret_created > 1\n", i)
	}
	object := openConfigMap(map[string]any{"dashboard.json": `{"panels":[` + strings.TrimSuffix(panels.String(), ",") + `]}`, "rules.yaml": "groups:\n" + rules.String()})
	if n := len(fmt.Sprint(object)); n < 1_000_000 {
		t.Fatalf("the object has %d bytes only", n)
	}
	var out map[string]any
	var masked bool
	allocated, took := allocatedBy(func() { out, masked = Mask(object) })
	if masked || !reflect.DeepEqual(out, object) {
		t.Error("an object without a Secret is masked")
	}
	if allocated > 512<<20 || took > 20*time.Second {
		t.Errorf("takes %d MiB and %v", allocated>>20, took)
	}
}

// A Secret with as many values as it may have, and as long annotations, takes no time by the one times the other.
func TestRepeatedValuesAreBounded(t *testing.T) {
	data := map[string]any{}
	for i := range 40_000 {
		data[fmt.Sprint("k", i)] = fmt.Sprintf("%08d", i)
	}
	notes := map[string]any{"a": strings.Repeat("x", 128<<10), "b": strings.Repeat("y", 128<<10)}
	_, took := allocatedBy(func() {
		Mask(map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": "a", "annotations": notes}, "stringData": data})
	})
	if took > 5*time.Second {
		t.Errorf("takes %v", took)
	}
}
