package artifact

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

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

// TestDeepNames: the folders above files count, for each file may be in many of its own.
func TestDeepNames(t *testing.T) {
	deep := strings.Repeat("/a", 99)
	files := map[string][]byte{}
	for i := range maxNamed / 100 {
		files[fmt.Sprintf("%04d%s/f", i, deep[2:])] = nil // 99 folders and a file
	}
	if err := CheckNames(files); err != nil {
		t.Errorf("as many as are taken: %v", err)
	}
	files["one"] = nil
	if err := CheckNames(files); !errors.Is(err, fleet.ErrExhausted) {
		t.Errorf("one more: %v", err)
	}
	if _, err := Decode(Encode(files)); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("decoded: %v", err)
	}
	for folders, want := range map[int]string{100: "", 101: "is in more than 100 folders"} {
		if why := BadName(strings.Repeat("a/", folders) + "f"); why != want {
			t.Errorf("in %d folders: %q, want %q", folders, why, want)
		}
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

// TestCheck: what Decode takes is taken without holding it, and the rest is refused with what is wrong.
func TestCheck(t *testing.T) {
	files := map[string][]byte{"b.yaml": []byte("two"), "a/x.yaml": {}, "a.yaml": bytes.Repeat([]byte("x"), 300)}
	archive := Encode(files)
	if err := Check(bytes.NewReader(archive)); err != nil {
		t.Error(err)
	}
	for n := range archive {
		if err := Check(bytes.NewReader(archive[:n])); !errors.Is(err, fleet.ErrCorrupt) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
	}
	many := map[string][]byte{}
	for i := range MaxEntries + 1 {
		many[fmt.Sprint(i)] = nil
	}
	header := "towline-files-1\n"
	for name, tt := range map[string]struct {
		data, want string
		kind       error
	}{
		"more behind":   {string(archive) + "x", "bytes follow its end", fleet.ErrCorrupt},
		"another file":  {"PK\x03\x04 and more than a header", "does not begin as one", fleet.ErrCorrupt},
		"long varint":   {header + "\x80\x00", "a number is none", fleet.ErrCorrupt},
		"out of order":  {header + "\x02\x01b\x00\x01a\x00", "names are out of order", fleet.ErrCorrupt},
		"twice":         {header + "\x02\x01a\x00\x01a\x00", `"a" is there twice`, fleet.ErrInvalid},
		"case":          {header + "\x02\x01A\x00\x01a\x00", `"A" and "a" differ in case only`, fleet.ErrInvalid},
		"file, folder":  {header + "\x02\x01a\x00\x03a/b\x00", `"a" is both a file and a folder`, fleet.ErrInvalid},
		"parent":        {header + "\x01\x05../ab\x00", "leads outside of the source", fleet.ErrInvalid},
		"absolute":      {header + "\x01\x02/a\x00", "is an absolute path", fleet.ErrInvalid},
		"backslash":     {header + "\x01\x03a\\b\x00", "has a backslash", fleet.ErrInvalid},
		"long name":     {header + "\x01\xff\xff\xff\xff\x0f", "has a file name of", fleet.ErrInvalid},
		"too many":      {string(Encode(many)), "has 10001 files; at most 10000", fleet.ErrExhausted},
		"endless file":  {header + "\x01\x01a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "more than 200 MiB", fleet.ErrExhausted},
		"two are large": {header + "\x02\x01a\x00\x01b\x81\x80\x80\x64", "more than 200 MiB", fleet.ErrExhausted},
	} {
		if err := Check(strings.NewReader(tt.data)); !errors.Is(err, tt.kind) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", name, err, tt.want)
		}
	}
	broken := errors.New("the line broke")
	if err := Check(io.MultiReader(bytes.NewReader(archive[:30]), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(Encode(map[string][]byte{"a": []byte("b"), "c/d": nil}))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, decoded := Decode(data)
		if checked := Check(bytes.NewReader(data)); (checked == nil) != (decoded == nil) {
			t.Fatalf("checked: %v; decoded: %v", checked, decoded)
		}
	})
}
