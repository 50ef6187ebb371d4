package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestReachEnds: a chart may say of very many folders that it depends on them. They are looked for within the time that a source has.
func TestReachEnds(t *testing.T) {
	var folders []string
	for i := range 1000 {
		folders = append(folders, on("a", "1.x", fmt.Sprintf("file://../none%d", i)))
	}
	files := map[string][]byte{"web/Chart.yaml": []byte(chartYAML("web", "1.0.0", folders...))}
	if _, err := (usedFolders{"web": ""}).reach(&endsAfter{Context: t.Context(), left: 10}, files); !errors.Is(err, context.Canceled) {
		t.Errorf("went on after its time was over: %v", err)
	}
}

// TestReach: what is used are the folders that charts name, and those that these do, whatever else begins as their names do.
func TestReach(t *testing.T) {
	files := map[string][]byte{
		"charts/web/Chart.yaml":      []byte(chartYAML("web", "1.0.0", on("lib", "1.x", "file://../lib"), on("out", "1.x", "file://../../.."))),
		"charts/lib/Chart.yaml":      []byte(chartYAML("lib", "1.0.0")),
		"charts/lib/sub/Chart.yaml":  []byte(chartYAML("sub", "1.0.0", on("base", "1.x", "file://../../base"))),
		"charts/lib-more/Chart.yaml": []byte(chartYAML("more", "1.0.0", on("no", "1.x", "file://../no"))),
		"charts/lib0/Chart.yaml":     []byte(chartYAML("more", "1.0.0", on("no", "1.x", "file://../no"))),
		"charts/base/a.yaml":         nil,
	}
	all, err := (usedFolders{"charts/web": ""}).reach(t.Context(), files)
	if got := fmt.Sprint(all); err != nil || got != "map[charts/base:charts/lib/sub charts/lib:charts/web charts/web:]" {
		t.Errorf("got %s, %v", got, err)
	}
	if all, err = (usedFolders{".": ""}).reach(t.Context(), files); err != nil || len(all) != 4 || !strings.Contains(fmt.Sprint(all), "charts/no:") {
		t.Errorf("all of it: %v, %v", all, err)
	}
}
