package manifest

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\n"

func TestLimits(t *testing.T) {
	head := fmt.Sprintf(configMap, "a")
	big := strings.Repeat("x", 1<<20)
	long := strings.Repeat("x", 64<<10)
	for _, tt := range []struct{ name, text, want string }{
		{"a 64 KB string aliased 2,000 times", head + "a: &a " + long + "\nb: [" + strings.Repeat("*a, ", 2000) + "]\n",
			"a.yaml:4: aliases repeat more than"},
		{"the classic alias bomb", head + bomb(9, 9), ": aliases repeat more than"},
		{"aliases that read as keys", head + "a: &a " + long + "\nb:\n" + strings.Repeat("- {*a : x}\n", 2000), ": aliases repeat more than"},
		{"one object too large", head + "data: {a: " + big + "}\n", "a.yaml:1: ConfigMap shop/a: has 1048"},
		{"a 50 MB scalar", head + "a: " + strings.Repeat(big, 50), "a.yaml: brings the manifests to more than 32 MiB"},
		{"a huge document", head + "# " + strings.Repeat(big, 17), "a.yaml:1: begins a document of more than 16 MiB"},
		{"a document of very many values", head + "a: [" + strings.Repeat("a,", 3<<20) + "]", "a.yaml:1: begins a document that has too many values"},
		{"5,001 objects", objects(5001), "a.yaml:20002: is object 5001; at most 5000 objects are allowed: split the module"},
		{"5,001 items", "apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n", 5001), "a.yaml:5004: is object 5001"},
		{"100,000 empty documents", strings.Repeat("---\n", 100000), "a.yaml:10001: begins document 10001; at most 10000 are allowed"},
		{"100,000 JSON values", strings.Repeat("{}\n", 100000), "a.json:10001: begins document 10001"},
		{"a key of 1 MB", head + "? " + big + "\n: x\n", "has 1048"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name, _, _ := strings.Cut(tt.want, ":")
			if !strings.HasPrefix(name, "a.") {
				name = "a.yaml"
			}
			_, err := ParseSet(map[string][]byte{name: []byte(tt.text)}, Options{Namespace: "shop"})
			refused(t, err, tt.want)
			if len(err.Error()) > 1000 {
				t.Errorf("the message has %d bytes", len(err.Error()))
			}
		})
	}
}

// bomb is n lists of which each holds the one before it many times.
func bomb(n, times int) string {
	var b strings.Builder
	b.WriteString("l0: &l0 [lol]\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "l%d: &l%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d,", i-1), times), ","))
	}
	return b.String()
}

func objects(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("---\n")
		fmt.Fprintf(&b, configMap, fmt.Sprintf("a%d", i))
	}
	return b.String()
}

func TestTotalOverManyFiles(t *testing.T) {
	files := map[string][]byte{}
	for i := range 40 {
		files[fmt.Sprintf("f%02d.yaml", i)] = fmt.Appendf(nil, configMap+"data: {a: %s}\n", fmt.Sprintf("a%d", i), strings.Repeat("x", 900<<10))
	}
	_, err := ParseSet(files, Options{Namespace: "shop"})
	refused(t, err, "f36.yaml: brings the manifests to more than 32 MiB")
}

func TestAliasesWithinTheBudget(t *testing.T) {
	text := fmt.Sprintf(configMap, "a") + "base: &base {cpu: 100m, memory: 1Gi}\nuses: [" + strings.Repeat("*base, ", 500) + "]\n"
	if _, err := ParseSet(map[string][]byte{"a.yaml": []byte(text)}, Options{Namespace: "shop"}); err != nil {
		t.Error(err)
	}
}

// TestMemory holds the memory of the worst inputs to what a hub can bear.
func TestMemory(t *testing.T) {
	head := []byte(fmt.Sprintf(configMap, "a"))
	for name, text := range map[string][]byte{
		"very many values": append(bytes.Clone(head), "a: ["+strings.Repeat("a,", 1<<20-100)+"]"...),
		"deep":             append(bytes.Clone(head), "a: "+strings.Repeat("[", 9000)...),
		"comments":         bytes.Repeat([]byte("# a comment of some length\n"), 500000),
		"long lines":       append(bytes.Clone(head), "a: "+strings.Repeat("x ", 7<<20)...),
	} {
		t.Run(name, func(t *testing.T) {
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _ = ParseSet(map[string][]byte{"a.yaml": text}, Options{Namespace: "shop"})
			runtime.ReadMemStats(&after)
			allocated := after.TotalAlloc - before.TotalAlloc
			t.Logf("%d MiB of input allocate %d MiB", len(text)>>20, allocated>>20)
			if allocated > 512<<20 {
				t.Errorf("%d MiB of input allocate %d MiB", len(text)>>20, allocated>>20)
			}
		})
	}
}
