package source

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	fluxtar "github.com/fluxcd/pkg/tar"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

const ratioFloor = 1 << 20 // unpacked bytes from which the ratio counts

// unpack reads a tar.gz. All of it is looked at before the first file is written.
func unpack(ctx context.Context, packed []byte, tempDir string) (map[string][]byte, error) {
	found, err := scan(ctx, packed)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(tempDir, "towline-source-")
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrUnavailable, "cannot be unpacked: %v", err)
	}
	files, err := extract(ctx, packed, dir, found)
	return files, errors.Join(err, os.RemoveAll(dir))
}

// entry is a file of an archive that may be unpacked.
type entry struct {
	name string
	size int64
}

// scan reads the whole archive and refuses it if anything in it is not allowed.
func scan(ctx context.Context, packed []byte) ([]entry, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, refuse("is no gzip: %v", err)
	}
	limited := &meter{ctx: ctx, r: z, packed: int64(len(packed))}
	tr := tar.NewReader(limited)
	seen := artifact.NewNames()
	var found []entry
	var total int64
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, scanError(n, err)
		}
		if n == MaxEntries {
			return nil, tooLarge("has more than %d entries", MaxEntries)
		}
		e, isFile, err := checkEntry(h, seen)
		if err != nil {
			return nil, err
		}
		if total += h.Size; h.Size < 0 || total > MaxUnpackedBytes {
			return nil, tooLarge("has more than %d MiB unpacked", MaxUnpackedBytes>>20)
		}
		if isFile {
			found = append(found, e)
		}
		if _, err := io.Copy(io.Discard, tr); err != nil {
			return nil, scanError(n, err)
		}
	}
	if err := checkEnd(limited); err != nil {
		return nil, err
	}
	if limited.zeros < 512 {
		return nil, refuse("has no end mark after %d entries, so it may be cut off: pack it again", len(found))
	}
	return found, nil
}

// checkEntry allows files and folders with clean names.
func checkEntry(h *tar.Header, seen *artifact.Names) (e entry, isFile bool, err error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return entry{}, false, nil
	}
	name := strings.TrimPrefix(h.Name, "./")
	folder := h.Typeflag == tar.TypeDir
	if folder {
		name = strings.TrimSuffix(name, "/")
		if name == "" || name == "." {
			return entry{}, false, nil
		}
	}
	if !folder && h.Typeflag != tar.TypeReg {
		return entry{}, false, refuse("entry %q is %s: only files and folders are allowed", clip(h.Name), typeOf(h.Typeflag))
	}
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return entry{}, false, refuse("entry %q is a sparse file: only files and folders are allowed", clip(h.Name))
		}
	}
	if err := seen.Add(name, folder); err != nil {
		return entry{}, false, refuse("entry %s", err)
	}
	return entry{h.Name, h.Size}, !folder, nil
}

func typeOf(flag byte) string {
	switch flag {
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a named pipe"
	case tar.TypeGNUSparse:
		return "a sparse file"
	default:
		return fmt.Sprintf("of type %q", flag)
	}
}

// checkEnd reads behind the archive's end: zeros to fill a block are usual, and gzip's checksum is only then known.
func checkEnd(r io.Reader) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if bytes.ContainsFunc(buf[:n], func(c rune) bool { return c != 0 }) {
			return refuse("has bytes behind its end: pack it again")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return endError(err)
		}
	}
}

func endError(err error) error {
	if stopped(err) {
		return err
	}
	return refuse("is damaged or cut off at its end: %v", err)
}

// stopped reports that reading was ended here, for a limit or by the context.
func stopped(err error) bool {
	var named *fleet.Named
	return errors.As(err, &named) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// scanError explains an archive that cannot be read; n entries were.
func scanError(n int, err error) error {
	if stopped(err) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) && n == 0 {
		return refuse("is gzip but holds no tar, or is cut off: make it with tar -czf")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return refuse("is cut off after %d entries: upload it again", n)
	}
	if errors.Is(err, tar.ErrHeader) && n == 0 {
		return refuse("is gzip but holds no tar: make it with tar -czf")
	}
	return refuse("is damaged after %d entries: %v", n, err)
}

// extract writes the archive into the fresh folder dir and reads the files back, through a root that no path leaves.
func extract(ctx context.Context, packed []byte, dir string, found []entry) (map[string][]byte, error) {
	skip := func(_ string, fi fs.FileInfo) bool {
		h, ok := fi.Sys().(*tar.Header)
		return ok && h.Typeflag == tar.TypeXGlobalHeader
	}
	r := &meter{ctx: ctx, r: bytes.NewReader(packed), packed: int64(len(packed))}
	if err := fluxtar.Untar(r, dir, fluxtar.WithMaxUntarSize(MaxUnpackedBytes), fluxtar.WithFilter(skip)); err != nil {
		return nil, refuse("cannot be unpacked: %s", strings.ReplaceAll(err.Error(), dir, "."))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	files, err := readBack(root, found)
	return files, errors.Join(err, root.Close())
}

func readBack(root *os.Root, found []entry) (map[string][]byte, error) {
	files := make(map[string][]byte, len(found))
	for _, e := range found {
		name := strings.TrimPrefix(e.name, "./")
		if err := root.Chmod(name, 0o600); err != nil { // the archive's mode may forbid to read it
			return nil, err
		}
		data, err := root.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if int64(len(data)) != e.size {
			return nil, refuse("entry %q has %d bytes, not %d as it says", clip(e.name), len(data), e.size)
		}
		files[name] = data
	}
	return files, nil
}

// meter ends the reading of an archive that unpacks to too much.
type meter struct {
	ctx          context.Context
	r            io.Reader
	packed, read int64
	zeros        int // at the end of what was read
}

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.read += int64(n)
	if m.zeros += n; n > 0 {
		if last := bytes.TrimRight(p[:n], "\x00"); len(last) > 0 {
			m.zeros = n - len(last)
		}
	}
	const headers = MaxEntries * 2048
	if m.read > MaxUnpackedBytes+headers {
		return n, tooLarge("has more than %d MiB unpacked", MaxUnpackedBytes>>20)
	}
	if m.read > ratioFloor && m.read/MaxRatio > m.packed {
		return n, tooLarge("unpacks to more than %d times its size", MaxRatio)
	}
	return n, err
}

func refuse(format string, args ...any) error {
	return fleet.Errorf(fleet.ErrInvalid, "archive "+format, args...)
}

func tooLarge(format string, args ...any) error {
	return fleet.Errorf(fleet.ErrExhausted, "archive "+format+": put only what is to be delivered into it", args...)
}
