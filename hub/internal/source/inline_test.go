package source

import (
	"errors"
	"strings"
	"testing"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func inline(files map[string]string) *towlinev1.Source {
	return &towlinev1.Source{Inline: &towlinev1.InlineSource{Files: files}}
}

func TestInline(t *testing.T) {
	f := fetcher(t, Options{})
	a, err := f.Fetch(t.Context(), "default", inline(map[string]string{"b.yaml": "b", "a.yaml": "a"}))
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest != fleet.DigestOf(a.Archive) || string(a.Files["b.yaml"]) != "b" || len(a.Files) != 2 {
		t.Errorf("%+v", a)
	}
	for name, tt := range map[string]struct {
		files map[string]string
		want  string
	}{
		"too large": {map[string]string{"a": strings.Repeat("x", MaxInlineBytes), "b": "x"}, "source.inline.files: have 1048577 bytes"},
		"bad name":  {map[string]string{"../a": "x"}, `source.inline.files: "../a" leads outside of the source`},
		"case":      {map[string]string{"a": "x", "A": "x"}, "differ in case only"},
	} {
		if _, err := f.Fetch(t.Context(), "default", inline(tt.files)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.Fetch(t.Context(), "default", nil); !errors.Is(err, fleet.ErrInvalid) {
		t.Errorf("no source: %v", err)
	}
}
