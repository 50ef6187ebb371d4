package source

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/fleet"
)

func TestEncode(t *testing.T) {
	files := map[string][]byte{"b.yaml": []byte("two"), "a/x.yaml": {}, "a.yaml": bytes.Repeat([]byte("x"), 300)}
	archive := Encode(files)
	if !bytes.Equal(archive, Encode(files)) {
		t.Error("two encodings of the same files differ")
	}
	again, err := Decode(archive)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(files, again); diff != "" {
		t.Error(diff)
	}
	for n := range archive {
		if _, err := Decode(archive[:n]); !errors.Is(err, fleet.ErrCorrupt) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	header := "towline-files-1\n"
	for name, data := range map[string]string{
		"more behind":  string(archive) + "x",
		"long varint":  header + "\x80\x00",
		"huge count":   header + "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"huge name":    header + "\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
		"out of order": header + "\x02\x01b\x00\x01a\x00",
		"twice":        header + "\x02\x01a\x00\x01a\x00",
		"bad name":     header + "\x01\x02..\x00",
		"another file": "PK\x03\x04",
	} {
		if _, err := Decode([]byte(data)); !errors.Is(err, fleet.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if files, err := Decode(Encode(nil)); err != nil || len(files) != 0 {
		t.Errorf("no files: %v, %v", files, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(Encode(map[string][]byte{"a": []byte("b"), "c/d": nil}))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		files, err := Decode(data)
		if err == nil && !bytes.Equal(Encode(files), data) {
			t.Fatal("two encodings of the same files")
		}
	})
}

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
