package render

import (
	"fmt"
	"testing"

	"towline.dev/towline/pkg/fleet"
)

// TestWhatATemplateAsks: what is plainly asked is told apart; of anything else it may be everything.
func TestWhatATemplateAsks(t *testing.T) {
	for text, want := range map[string]Reads{
		"kind: ConfigMap": {},
		`{{ include "common.capabilities.ingress" . }}`:                                                                         {},
		"{{ .Capabilities.HelmVersion.Version }}":                                                                               {},
		`{{ if semverCompare ">=1.25-0" $.Capabilities.KubeVersion.Version }}`:                                                  {Version: true},
		`{{ if .Capabilities.APIVersions.Has "policy/v1" }}{{ else if (.Capabilities.APIVersions.Has  ` + "`a.b/v1/C`" + `) }}`: {APIs: []string{"a.b/v1/C", "policy/v1"}},
		`{{ .Capabilities.APIVersions.Has "v1" }} {{ .Capabilities.APIVersions.Has "v1" }} {{ .Capabilities.KubeVersion }}`:     {Version: true, APIs: []string{"v1"}},
		`{{ .Capabilities.APIVersions.Has (printf "%s/v1" .Values.group) }}`:                                                    {All: true},
		`{{ .Capabilities.APIVersions.Has .Values.api }}`:                                                                       {All: true},
		`{{ .Capabilities.APIVersions.Has "a\nb" }}`:                                                                            {All: true},
		"{{ range .Capabilities.APIVersions }}":                                                                                 {All: true},
		"{{ $c := .Capabilities }}{{ $c.KubeVersion }}":                                                                         {All: true},
		`{{ index . "Capabilities" }}`:                                                                                          {All: true},
	} {
		if got := ReadsIn(text); fmt.Sprint(got) != fmt.Sprint(want) || got.Any() != (fmt.Sprint(want) != fmt.Sprint(Reads{})) {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// TestPartOfCapabilities: clusters that answer alike what is asked are the same, whatever else they can do.
func TestPartOfCapabilities(t *testing.T) {
	a := fleet.Capabilities{KubeVersion: "v1.33.4", APIs: []string{"apps/v1", "apps/v1/Deployment", "policy/v1"}}
	b := fleet.Capabilities{KubeVersion: "v1.34.0", APIs: []string{"apps/v1", "x.example.com/v1"}}
	for _, tt := range []struct {
		reads Reads
		same  bool
	}{
		{Reads{}, true}, {Reads{APIs: []string{"apps/v1", "none/v1"}}, true}, {Reads{APIs: []string{"policy/v1"}}, false}, {Reads{APIs: []string{"apps/v1/Deployment"}}, false},
		{Reads{Version: true}, false}, {Reads{All: true}, false},
	} {
		if same := tt.reads.Of(a).Digest() == tt.reads.Of(b).Digest(); same != tt.same {
			t.Errorf("%+v: alike %t", tt.reads, same)
		}
	}
	if both := (Reads{APIs: []string{"b", "c"}}).And(Reads{Version: true, APIs: []string{"a", "b"}}); fmt.Sprint(both) != fmt.Sprint(Reads{Version: true, APIs: []string{"a", "b", "c"}}) {
		t.Errorf("together: %+v", both)
	}
	if part := (Reads{All: true}).Of(a); part.Digest() != a.Digest() || a.Digest() == b.Digest() || !(fleet.Capabilities{}).Digest().IsZero() {
		t.Error("all of it is another digest, or none has one")
	}
}
