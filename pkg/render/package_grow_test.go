package render

import (
	"runtime"
	"strings"
	"testing"
)

// TestChartThatGrows: what a chart says of itself is read by the hub, too, and takes little memory, whatever it says.
func TestChartThatGrows(t *testing.T) {
	files := map[string][]byte{"Chart.yaml": []byte("name: a\nx: &a " + strings.Repeat("z", 50<<10) + "\ny:\n" + strings.Repeat("- *a\n", 2000))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	addRoots(map[string]bool{}, files, ".")
	runtime.ReadMemStats(&after)
	if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 64 {
		t.Errorf("%d MiB for %d bytes", grown, len(files["Chart.yaml"]))
	}
}
