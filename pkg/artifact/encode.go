// Package artifact is the one encoding of a set of files, by which they have one digest wherever they come from. It owns the
// encoding, what a file may be called, and how much there may be; it must not know where files come from or what they mean.
package artifact

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"towline.dev/towline/pkg/fleet"
)

// Limits of an artifact.
const (
	MaxEntries       = 10000     // files
	MaxUnpackedBytes = 200 << 20 // of all files
	MaxPackedBytes   = 64 << 20  // of what is uploaded
)

const (
	magic   = "towline-files-1\n"
	maxName = 1024
	// maxNamed is how many files and folders there may be together: each file may be in many folders of its own.
	maxNamed = 5 * MaxEntries
	// maxDepth is how many folders a file may be in.
	maxDepth = 100
)

// Is reports whether a content is an artifact.
func Is(content []byte) bool { return bytes.HasPrefix(content, []byte(magic)) }

// Encode is the one encoding of a set of files: a header, the count, and for each file in the order of names the
// lengths of name and content (unsigned varints) and both.
func Encode(files map[string][]byte) []byte {
	out := bytes.NewBuffer(make([]byte, 0, Size(files)))
	_ = Write(out, files) // a buffer takes everything
	return out.Bytes()
}

// Size is how many bytes Encode needs at most.
func Size(files map[string][]byte) int {
	size := len(magic) + binary.MaxVarintLen64
	for name, data := range files {
		size += len(name) + len(data) + 2*binary.MaxVarintLen64
	}
	return size
}

// Write writes what Encode returns.
func Write(w io.Writer, files map[string][]byte) error {
	head := binary.AppendUvarint([]byte(magic), uint64(len(files)))
	if _, err := w.Write(head); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		head = binary.AppendUvarint(head[:0], uint64(len(name)))
		head = append(head, name...)
		head = binary.AppendUvarint(head, uint64(len(files[name])))
		if _, err := w.Write(head); err != nil {
			return err
		}
		if _, err := w.Write(files[name]); err != nil {
			return err
		}
	}
	return nil
}

// Decode reads what Encode wrote, and nothing else. The files share the memory of data.
func Decode(data []byte) (map[string][]byte, error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok {
		return nil, corrupt("it does not begin as one")
	}
	count, rest, ok := cutNumber(rest)
	if !ok || count > MaxEntries {
		return nil, corrupt("bad count of files")
	}
	files := make(map[string][]byte, count)
	last := ""
	for i := range count {
		var name, content []byte
		if name, rest, ok = cutBytes(rest); !ok {
			return nil, corrupt("it ends inside a name")
		}
		if content, rest, ok = cutBytes(rest); !ok {
			return nil, corrupt("it ends inside a file")
		}
		if i > 0 && string(name) <= last {
			return nil, corrupt("names are out of order")
		}
		last = string(name)
		files[last] = content
	}
	if len(rest) > 0 {
		return nil, corrupt("bytes follow its end")
	}
	if err := CheckNames(files); err != nil {
		return nil, corrupt(err.Error())
	}
	return files, nil
}

func corrupt(why string) error {
	return fleet.Errorf(fleet.ErrCorrupt, "artifact cannot be read: %s", why)
}

// cutNumber takes a varint in its shortest form.
func cutNumber(data []byte) (n uint64, rest []byte, ok bool) {
	n, size := binary.Uvarint(data)
	if size <= 0 || size > 1 && data[size-1] == 0 {
		return 0, nil, false
	}
	return n, data[size:], true
}

func cutBytes(data []byte) (b, rest []byte, ok bool) {
	n, rest, ok := cutNumber(data)
	if !ok || n > uint64(len(rest)) {
		return nil, nil, false
	}
	return rest[:n:n], rest[n:], true
}

// CheckNames checks the names of a set of files by themselves and against one another.
func CheckNames(files map[string][]byte) error {
	seen := NewNames()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := seen.Add(name, false); err != nil {
			return err
		}
	}
	return nil
}

// Names finds names that would meet on some file system: the same twice, or different in case only.
type Names struct {
	spelled map[string]string // every file and folder: by its folded name
	files   map[string]bool   // folded names of files
	folders map[string]bool   // above files, as they are spelled
}

// NewNames has none yet.
func NewNames() *Names {
	return &Names{spelled: map[string]string{}, files: map[string]bool{}, folders: map[string]bool{}}
}

// Add checks the name of a file or folder. Folders may be named any number of times.
func (n *Names) Add(name string, folder bool) error {
	if why := BadName(name); why != "" {
		return fleet.Invalidf("", "%q %s", clip(name), why)
	}
	for end := 0; end < len(name); end++ {
		next := strings.IndexByte(name[end:], '/')
		if next < 0 {
			break
		}
		end += next
		if n.folders[name[:end]] {
			continue
		}
		if err := n.take(name[:end], true); err != nil {
			return err
		}
		n.folders[name[:end]] = true
	}
	return n.take(name, folder)
}

func (n *Names) take(name string, folder bool) error {
	key := fold(name)
	first, known := n.spelled[key]
	switch {
	case !known && len(n.spelled) == maxNamed:
		return fleet.Errorf(fleet.ErrExhausted, "%q is one too many of files and folders: at most %d are taken", clip(name), maxNamed)
	case !known:
		n.spelled[key] = name
		if !folder {
			n.files[key] = true
		}
		return nil
	case first != name:
		return fleet.Invalidf("", "%q and %q differ in case only: rename one", clip(first), clip(name))
	case folder && !n.files[key]:
		return nil
	case folder || !n.files[key]:
		return fleet.Invalidf("", "%q is both a file and a folder", clip(name))
	default:
		return fleet.Invalidf("", "%q is there twice", clip(name))
	}
}

// fold maps names that a case-insensitive file system takes for one to one.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for c := unicode.SimpleFold(r); c != r; c = unicode.SimpleFold(c) {
			least = min(least, c)
		}
		return least
	}, name)
}

// BadName reports why name is no clean relative path.
func BadName(name string) string {
	switch {
	case name == "":
		return "is no file name"
	case len(name) > maxName:
		return "is a name of more than 1024 bytes"
	case !utf8.ValidString(name):
		return "is not UTF-8"
	case strings.HasPrefix(name, "/"):
		return "is an absolute path: only paths inside the source are allowed"
	case strings.Contains(name, `\`):
		return "has a backslash: separate folders by /"
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "leads outside of the source"
	case strings.ContainsFunc(name, unicode.IsControl):
		return "has a control character"
	case path.Clean(name) != name || name == ".":
		return "is not a clean path: leave out ./ and //"
	}
	if strings.Count(name, "/") > maxDepth {
		return fmt.Sprintf("is in more than %d folders", maxDepth)
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > 255 {
			return "has a part of more than 255 bytes"
		}
	}
	return ""
}

func clip(s string) string { return fleet.Clip(s, 200) }
