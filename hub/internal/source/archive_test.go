package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// item is an entry of a test archive; Size is filled in from the body.
type item struct {
	tar.Header
	body string
}

func file(name, body string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644}, body}
}

func special(name string, kind byte, to string) item {
	return item{tar.Header{Name: name, Typeflag: kind, Linkname: to, Mode: 0o644}, ""}
}

func tarOf(t testing.TB, items ...item) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		i.Size = int64(len(i.body))
		if err := w.WriteHeader(&i.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, i.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestUnpack(t *testing.T) {
	long := strings.Repeat("folder/", 40) + "long.yaml"
	packed := zip(t, tarOf(t,
		item{tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "a commit"}}, ""},
		special("./", tar.TypeDir, ""), special("base/", tar.TypeDir, ""), special("base/", tar.TypeDir, ""),
		file("./base/a.yaml", "a"), file("base/b.yaml", ""), file(long, "long"), file("ümlaut.yaml", "u"),
		item{tar.Header{Name: "unreadable.yaml", Typeflag: tar.TypeReg, Mode: 0o4000}, "setuid"},
		item{tar.Header{Name: "closed/", Typeflag: tar.TypeDir, Mode: 0}, ""}, file("closed/c.yaml", "c"),
	))
	dir := t.TempDir()
	files, err := unpack(t.Context(), packed, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][]byte{"base/a.yaml": []byte("a"), "base/b.yaml": {}, long: []byte("long"), "ümlaut.yaml": []byte("u"),
		"unreadable.yaml": []byte("setuid"), "closed/c.yaml": []byte("c")}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Error(diff)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestArchivesRefused is the corpus of archives that a hub must not unpack: an error that says why, nothing written.
func TestArchivesRefused(t *testing.T) {
	good := tarOf(t, file("a.yaml", "a"), file("b.yaml", strings.Repeat("b", 2000)))
	many := make([]item, MaxEntries+1)
	for i := range many {
		many[i] = file(fmt.Sprint("f", i), "")
	}
	for _, tt := range []struct {
		name   string
		packed []byte
		want   string
		kind   error
	}{
		{"parent", zip(t, tarOf(t, file("../x.yaml", ""))), `"../x.yaml" leads outside of the source`, fleet.ErrInvalid},
		{"parent in the middle", zip(t, tarOf(t, file("a/../../x", ""))), "leads outside", fleet.ErrInvalid},
		{"parent at the end", zip(t, tarOf(t, special("a/..", tar.TypeDir, ""))), "leads outside", fleet.ErrInvalid},
		{"absolute", zip(t, tarOf(t, file("/etc/x", ""))), "is an absolute path", fleet.ErrInvalid},
		{"twice slashed", zip(t, tarOf(t, file(".//etc/x", ""))), "is an absolute path", fleet.ErrInvalid},
		{"backslash", zip(t, tarOf(t, file(`..\x`, ""))), "has a backslash", fleet.ErrInvalid},
		{"not clean", zip(t, tarOf(t, file("a//b", ""))), "is not a clean path", fleet.ErrInvalid},
		{"control character", zip(t, tarOf(t, file("a\x1b[2Jb", ""))), "has a control character", fleet.ErrInvalid},
		{"not UTF-8", zip(t, tarOf(t, item{tar.Header{Name: "a\xff", Typeflag: tar.TypeReg, Format: tar.FormatGNU}, ""})), "is not UTF-8", fleet.ErrInvalid},
		{"no name", zip(t, tarOf(t, item{tar.Header{Name: "", Typeflag: tar.TypeReg}, ""})), "is no file name", fleet.ErrInvalid},
		{"4 KiB path", zip(t, tarOf(t, file(strings.Repeat("abcdefg/", 512)+"x", ""))), "more than 1024 bytes", fleet.ErrInvalid},
		{"long part", zip(t, tarOf(t, file(strings.Repeat("a", 300), ""))), "more than 255 bytes", fleet.ErrInvalid},
		{"symbolic link", zip(t, tarOf(t, special("a", tar.TypeSymlink, "b"))), `"a" is a symbolic link`, fleet.ErrInvalid},
		{"chain of links", zip(t, tarOf(t, special("a", tar.TypeSymlink, "."), special("a/b", tar.TypeSymlink, ".."), file("a/b/x", ""))), "is a symbolic link", fleet.ErrInvalid},
		{"hard link", zip(t, tarOf(t, special("a", tar.TypeLink, "/etc/passwd"))), "is a hard link", fleet.ErrInvalid},
		{"link, then a folder", zip(t, tarOf(t, special("a", tar.TypeSymlink, "/tmp"), special("a/", tar.TypeDir, ""), file("a/x", ""))), "is a symbolic link", fleet.ErrInvalid},
		{"device", zip(t, tarOf(t, special("a", tar.TypeBlock, ""))), "is a device", fleet.ErrInvalid},
		{"pipe", zip(t, tarOf(t, special("a", tar.TypeFifo, ""))), "is a named pipe", fleet.ErrInvalid},
		{"twice", zip(t, tarOf(t, file("a", "1"), file("./a", "2"))), `"a" is there twice`, fleet.ErrInvalid},
		{"case", zip(t, tarOf(t, file("a/x", "1"), file("A/y", "2"))), `"a" and "A" differ in case only`, fleet.ErrInvalid},
		{"folded case", zip(t, tarOf(t, file("k", "1"), file("\u212a", "2"))), "differ in case only", fleet.ErrInvalid},
		{"file and folder", zip(t, tarOf(t, file("a", "1"), file("a/b", "2"))), `"a" is both a file and a folder`, fleet.ErrInvalid},
		{"folder and file", zip(t, tarOf(t, file("a/b", "1"), file("a", "2"))), `"a" is both a file and a folder`, fleet.ErrInvalid},
		{"too many", zip(t, tarOf(t, many...)), "has more than 10000 entries", fleet.ErrExhausted},
		{"gzip bomb", zip(t, tarOf(t, file("a", strings.Repeat("\x00", 20<<20)))), "unpacks to more than 100 times its size", fleet.ErrExhausted},
		{"sparse 1 TB", zip(t, sparse(t)), "more than 200 MiB unpacked", fleet.ErrExhausted},
		{"no tar", zip(t, []byte(strings.Repeat("apiVersion: v1\n", 200))), "is gzip but holds no tar", fleet.ErrInvalid},
		{"gzip in gzip", zip(t, zip(t, good)), "is gzip but holds no tar", fleet.ErrInvalid},
		{"empty gzip", zip(t, nil), "may be cut off", fleet.ErrInvalid},
		{"garbage behind gzip", append(zip(t, good), "garbage"...), "is damaged or cut off at its end", fleet.ErrInvalid},
		{"garbage behind tar", zip(t, append(slices.Clone(good), "garbage"...)), "has bytes behind its end", fleet.ErrInvalid},
		{"second gzip with more", append(zip(t, good), zip(t, []byte("more"))...), "has bytes behind its end", fleet.ErrInvalid},
		{"wrong header checksum", zip(t, flip(good, 148)), "is gzip but holds no tar", fleet.ErrInvalid},
		{"wrong gzip checksum", flip(zip(t, good), -8), "is damaged or cut off at its end", fleet.ErrInvalid},
		{"tar cut off between entries", zip(t, good[:1024]), "may be cut off", fleet.ErrInvalid},
		{"tar cut off in an entry", zip(t, good[:2000]), "is cut off", fleet.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			start := time.Now()
			files, err := unpack(t.Context(), tt.packed, dir)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, tt.kind) {
				t.Fatalf("got %d files, %v; want %q", len(files), err, tt.want)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %s", took)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("written: %v, %v", left, err)
			}
		})
	}
}

// sparse is a tar whose only file says that it has 1 TB.
func sparse(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := tar.NewWriter(&b).WriteHeader(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 1 << 40, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	return append(b.Bytes(), make([]byte, 4096)...)
}

func flip(data []byte, at int) []byte {
	out := slices.Clone(data)
	if at < 0 {
		at += len(out)
	}
	out[at] ^= 0x55
	return out
}

// TestCutOffAnywhere: no prefix of an archive is an archive, so a broken upload never removes objects.
func TestCutOffAnywhere(t *testing.T) {
	packed := zip(t, tarOf(t, file("a.yaml", "a"), file("b/c.yaml", strings.Repeat("0123456789", 300))))
	dir := t.TempDir()
	for n := range packed {
		if files, err := unpack(t.Context(), packed[:n], dir); err == nil {
			t.Fatalf("the first %d of %d bytes gave %d files", n, len(packed), len(files))
		}
	}
}

func TestUnpackStopsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := unpack(ctx, zip(t, tarOf(t, file("a", "a"))), t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(tarOf(f, file("a.yaml", "a"), special("d/", tar.TypeDir, ""), file("d/b", "b")))
	f.Add(tarOf(f, special("a", tar.TypeSymlink, ".."), file("a/b", "")))
	f.Add(tarOf(f, file(strings.Repeat("long/", 60)+"x", "x")))
	f.Add(sparse(f))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		files, err := unpack(t.Context(), zip(t, content), dir)
		if left, lsErr := os.ReadDir(dir); lsErr != nil || len(left) > 0 {
			t.Fatalf("left behind: %v, %v", left, lsErr)
		}
		if err != nil {
			return
		}
		again, err := artifact.Decode(artifact.Encode(files))
		if err != nil || !cmp.Equal(files, again) {
			t.Fatalf("not the same again: %v", err)
		}
	})
}
