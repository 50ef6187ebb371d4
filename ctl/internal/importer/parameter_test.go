package importer

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
)

// TestParameters: a parameter sets what helm --set sets.
func TestParameters(t *testing.T) {
	for name, tc := range map[string]struct {
		value  string
		quoted bool
		want   map[string]any
	}{
		"a":                {"1", false, map[string]any{"a": 1.0}},
		"a.b":              {"true", false, map[string]any{"a": map[string]any{"b": true}}},
		`a\.b.c`:           {"null", false, map[string]any{"a.b": map[string]any{"c": nil}}},
		"a[1].b":           {"x", false, map[string]any{"a": []any{nil, map[string]any{"b": "x"}}}},
		"a[0][1]":          {"x", false, map[string]any{"a": []any{[]any{nil, "x"}}}},
		"list":             {"{a,1,b\\,c}", false, map[string]any{"list": []any{"a", 1.0, "b,c"}}},
		"none":             {"{}", false, map[string]any{"none": []any{}}},
		"quoted":           {"1", true, map[string]any{"quoted": "1"}},
		"octal":            {"0644", false, map[string]any{"octal": "0644"}},
		"fraction":         {"1.5", false, map[string]any{"fraction": "1.5"}},
		"comma":            {`a\,b`, false, map[string]any{"comma": "a,b"}},
		"empty":            {"", false, map[string]any{"empty": ""}},
		"":                 {"1", false, nil},
		"a..b":             {"1", false, nil},
		"a.":               {"1", false, nil},
		"[0]":              {"1", false, nil},
		"a[x]":             {"1", false, nil},
		"a[":               {"1", false, nil},
		"a[99999999]":      {"1", false, nil},
		"large":            {"9007199254740993", false, nil},
		"taken.further":    {"1", false, nil},
		"taken[0].further": {"1", false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			into := &structpb.Struct{}
			if len(name) > 5 && name[:5] == "taken" {
				into.Fields = map[string]*structpb.Value{"taken": structpb.NewStringValue("x")}
			}
			err := setParameter(into, name, tc.value, tc.quoted)
			if (err != nil) != (tc.want == nil) {
				t.Fatalf("%v, want %v", err, tc.want)
			}
			if diff := cmp.Diff(tc.want, into.AsMap()); err == nil && diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// TestPointers: a jq path that only names fields is a JSON pointer.
func TestPointers(t *testing.T) {
	for jq, want := range map[string]string{
		".spec.replicas":                         "/spec/replicas",
		".spec.containers[0].image":              "/spec/containers/0/image",
		".webhooks[].clientConfig.caBundle":      "/webhooks/*/clientConfig/caBundle",
		".webhooks[]?.clientConfig":              "",
		`.metadata.annotations["a.b/c"]`:         "/metadata/annotations/a.b~1c",
		`.metadata.annotations."a/b"`:            "/metadata/annotations/a~1b",
		`.spec.containers[] | select(.name=="")`: "",
		".":                                      "",
		"spec":                                   "",
		".a[":                                    "",
		".a[x]":                                  "",
		`.a["b`:                                  "",
		"..":                                     "",
	} {
		if got, ok := pointerOf(jq); got != want && ok || ok != (want != "") {
			t.Errorf("%s is %q, %t, want %q", jq, got, ok, want)
		}
	}
}
