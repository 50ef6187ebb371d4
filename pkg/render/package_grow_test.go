package render

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
)

// TestChartThatGrows: what a chart says of itself is read by the hub, too, and takes little memory, whatever it says.
func TestChartThatGrows(t *testing.T) {
	files := map[string][]byte{"Chart.yaml": []byte("name: a\nx: &a " + strings.Repeat("z", 50<<10) + "\ny:\n" + strings.Repeat("- *a\n", 2000))}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := addRoots(t.Context(), map[string]bool{}, files, "."); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 64 {
		t.Errorf("%d MiB for %d bytes", grown, len(files["Chart.yaml"]))
	}
}

// TestChartsOfNobodyAreNotRead: what charts depend on is not looked for any more when who asked has gone.
func TestChartsOfNobodyAreNotRead(t *testing.T) {
	ctx, gone := context.WithCancel(t.Context())
	gone()
	files := map[string][]byte{"Chart.yaml": []byte("name: a\ndependencies:\n- {name: b, repository: \"file://../b\"}\n")}
	roots := map[string]bool{}
	if err := addRoots(ctx, roots, files, "."); !errors.Is(err, context.Canceled) || len(roots) != 0 {
		t.Errorf("%v, %v", roots, err)
	}
}
