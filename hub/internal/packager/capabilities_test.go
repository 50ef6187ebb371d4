package packager

import (
	"fmt"
	"strings"
	"testing"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/render"
)

// asking is a chart whose sub-chart asks for an API, and whose values ask for the version through tpl.
func asking() map[string][]byte {
	return map[string][]byte{
		"Chart.yaml":                  []byte("apiVersion: v2\nname: web\nversion: 1.0.0\n"),
		"README.md":                   []byte("Explains `.Capabilities` at length."),
		"values.yaml":                 []byte("extra: 'version: {{ .Capabilities.KubeVersion.Version }}'\n"),
		"templates/a.yaml":            []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: { {{- tpl .Values.extra . -}} }\n"),
		"charts/sub/Chart.yaml":       []byte("apiVersion: v2\nname: sub\nversion: 1.0.0\n"),
		"charts/sub/templates/b.yaml": []byte("{{ if .Capabilities.APIVersions.Has \"monitoring.coreos.com/v1/ServiceMonitor\" }}\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n{{ end }}\n"),
	}
}

// TestChartSeesItsClusters: what a chart and its sub-charts ask is what the cluster answers, and nothing of what Helm knows itself; what
// the module declares wins; what was rendered for one cluster leaves nothing for the next.
func TestChartSeesItsClusters(t *testing.T) {
	can := &fleet.Capabilities{KubeVersion: "v1.31.2+k3s1", APIs: []string{"monitoring.coreos.com/v1", "monitoring.coreos.com/v1/ServiceMonitor", "v1"}}
	bare := &fleet.Capabilities{KubeVersion: "v1.30.0", APIs: []string{"v1"}}
	asked := render.Reads{Version: true, APIs: []string{"monitoring.coreos.com/v1/ServiceMonitor"}}
	for _, tt := range []struct {
		name    string
		h       render.Helm
		version string
		b       bool
		reads   render.Reads
	}{
		{"one", render.Helm{Capabilities: can}, "v1.31.2+k3s1", true, asked},
		{"another", render.Helm{Capabilities: bare}, "v1.30.0", false, asked},
		{"none has told", render.Helm{}, "v1.20.0", false, asked}, // what Helm takes in a test
		{"declared version", render.Helm{Capabilities: can, KubeVersion: "1.29.1"}, "v1.29.1", false, render.Reads{}},
		{"declared APIs", render.Helm{Capabilities: bare, APIVersions: []string{"monitoring.coreos.com/v1/ServiceMonitor"}}, "v1.20.0", true, render.Reads{}},
	} {
		h := tt.h
		h.ReleaseName, h.Namespace = "web", "default"
		got, err := Build(render.Job{Files: asking(), Helm: &h})
		must(t, err)
		var text string
		for _, part := range got.Texts {
			text += string(part)
		}
		if !strings.Contains(text, "version: "+tt.version) || strings.Contains(text, "name: b") != tt.b || fmt.Sprint(got.Reads) != fmt.Sprint(tt.reads) {
			t.Errorf("%s: reads %+v\n%s", tt.name, got.Reads, text)
		}
	}
}

// TestChartThatAsksNothing is rendered the same wherever it is, and lookup stays refused.
func TestChartThatAsksNothing(t *testing.T) {
	files := asking()
	delete(files, "values.yaml")
	delete(files, "charts/sub/templates/b.yaml")
	files["templates/a.yaml"] = []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")
	h := render.Helm{ReleaseName: "web", Namespace: "default", Capabilities: &fleet.Capabilities{KubeVersion: "v1.30.0"}}
	got, err := Build(render.Job{Files: files, Helm: &h})
	if err != nil || got.Reads.Any() {
		t.Errorf("reads %+v, %v", got.Reads, err)
	}
	files["templates/a.yaml"] = []byte("{{ .Capabilities.KubeVersion }}{{ lookup \"v1\" \"Secret\" \"a\" \"b\" }}")
	if _, err = Build(render.Job{Files: files, Helm: &h}); err == nil || !strings.Contains(err.Error(), "lookup of v1 Secret/a/b is refused") {
		t.Errorf("lookup: %v", err)
	}
}
