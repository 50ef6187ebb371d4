// Package pack makes a local folder the files of a module: what is in it and is not left out, with one digest. It owns which files those
// are, their limits and how they are packed; it must not know what they mean, nor the hub.
package pack

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// IgnoreFile names what of its folder, and below it, is left out: by the rules of .gitignore.
const IgnoreFile = ".towlineignore"

// gitFolder is left out always.
const gitFolder = ".git"

// window is that of the hub, so that what is small enough here is so there.
const window = 1 << 20

// maxLinks is how many symbolic links may lead to a file or a folder, one after the other.
const maxLinks = 16

// Pack is a folder that was read.
type Pack struct {
	// Files by slash-separated path.
	Files map[string][]byte
	// Digest is that of the hub for these files.
	Digest fleet.Digest
}

// Dir reads a folder. The same files have the same digest, wherever they are and whoever reads them.
func Dir(dir string) (*Pack, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err == nil {
		root, err = filepath.Abs(root)
	}
	if err != nil {
		return nil, unreadable(dir, err)
	}
	if info, err := os.Stat(root); err != nil {
		return nil, unreadable(dir, err)
	} else if !info.IsDir() {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: is a file: name the folder that it is in", dir)
	}
	p := &packer{root: root, shown: dir, files: map[string][]byte{}}
	if err := p.folder("", root, nil, 0); err != nil {
		return nil, err
	}
	if len(p.files) == 0 {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: has no files, or all of them are left out by %s", dir, IgnoreFile)
	}
	if err := artifact.CheckNames(p.files); err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: %v", dir, err)
	}
	sum := sha256.New()
	if err := artifact.Write(sum, p.files); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &Pack{Files: p.files, Digest: fleet.Digest(sum.Sum(nil))}, nil
}

// Packed is what is sent.
func (p *Pack) Packed() ([]byte, error) {
	out := &limited{max: artifact.MaxPackedBytes}
	enc, err := zstd.NewWriter(out, zstd.WithWindowSize(window))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	err = errors.Join(artifact.Write(enc, p.Files), enc.Close())
	return out.buf.Bytes(), err
}

// limited is a buffer that takes no more than so much.
type limited struct {
	buf bytes.Buffer
	max int
}

func (l *limited) Write(b []byte) (int, error) {
	if l.buf.Len()+len(b) > l.max {
		return 0, fleet.Errorf(fleet.ErrExhausted, "has more than %d MiB packed: leave out what is not to be delivered with a %s", l.max>>20, IgnoreFile)
	}
	return l.buf.Write(b)
}

// packer is one reading of a folder.
type packer struct {
	root  string // without symbolic links
	shown string // as it was named
	files map[string][]byte
	bytes int64
}

// folder reads the folder at a path, which stands under a name in what is packed.
func (p *packer) folder(name, at string, ignore *rules, links int) error {
	list, err := os.ReadDir(at)
	if err != nil {
		return unreadable(p.say(name), err)
	}
	if ignore, err = ignore.in(name, at); err != nil {
		return fleet.Errorf(fleet.ErrInvalid, "%s: %v", p.say(path.Join(name, IgnoreFile)), err)
	}
	for _, e := range list {
		if e.Name() == gitFolder || e.Name() == IgnoreFile {
			continue
		}
		if err := p.entry(path.Join(name, e.Name()), filepath.Join(at, e.Name()), e.Type(), ignore, links); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) entry(name, at string, kind fs.FileMode, ignore *rules, links int) error {
	if ignore.excludes(name, kind.IsDir()) {
		return nil
	}
	switch {
	case kind.IsDir():
		return p.folder(name, at, ignore, links)
	case kind.IsRegular():
		return p.file(name, at)
	case kind&fs.ModeSymlink != 0:
		return p.link(name, at, ignore, links+1)
	}
	return fleet.Errorf(fleet.ErrInvalid, "%s: is %s: only files and folders can be packed; leave it out with a %s", p.say(name), special(kind), IgnoreFile)
}

// link packs what a symbolic link leads to, if that is in the folder.
func (p *packer) link(name, at string, ignore *rules, links int) error {
	to, err := filepath.EvalSymlinks(at)
	if err != nil {
		return unreadable(p.say(name), err)
	}
	rel, err := filepath.Rel(p.root, to)
	if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fleet.Errorf(fleet.ErrInvalid, "%s: is a symbolic link to %s, outside of the folder: put the file itself there, or leave the link out with a %s", p.say(name), to, IgnoreFile)
	}
	holds := string(filepath.Separator)
	if strings.HasPrefix(filepath.Dir(at)+holds, to+holds) || links > maxLinks {
		return fleet.Errorf(fleet.ErrInvalid, "%s: is a symbolic link to a folder that it is in: leave it out with a %s", p.say(name), IgnoreFile)
	}
	info, err := os.Stat(to)
	if err != nil {
		return unreadable(p.say(name), err)
	}
	if first, _, _ := strings.Cut(filepath.ToSlash(rel), "/"); first == gitFolder {
		return fleet.Errorf(fleet.ErrInvalid, "%s: is a symbolic link into %s, which is never packed", p.say(name), gitFolder)
	}
	if info.IsDir() && ignore.excludes(name, true) {
		return nil
	}
	return p.target(name, to, info.Mode().Type(), ignore, links)
}

func (p *packer) target(name, at string, kind fs.FileMode, ignore *rules, links int) error {
	switch {
	case kind.IsDir():
		return p.folder(name, at, ignore, links)
	case kind.IsRegular():
		return p.file(name, at)
	}
	return fleet.Errorf(fleet.ErrInvalid, "%s: leads to %s: only files and folders can be packed; leave it out with a %s", p.say(name), special(kind), IgnoreFile)
}

func (p *packer) file(name, at string) error {
	if why := artifact.BadName(name); why != "" {
		return fleet.Errorf(fleet.ErrInvalid, "%s: %s; rename it, or leave it out with a %s", p.say(name), why, IgnoreFile)
	}
	if len(p.files) == artifact.MaxEntries {
		return fleet.Errorf(fleet.ErrExhausted, "%s: has more than %d files: leave out what is not to be delivered with a %s", p.shown, artifact.MaxEntries, IgnoreFile)
	}
	data, err := p.read(at)
	if err != nil {
		return unreadable(p.say(name), err)
	}
	if p.bytes += int64(len(data)); p.bytes > artifact.MaxUnpackedBytes {
		return fleet.Errorf(fleet.ErrExhausted, "%s: has more than %d MiB of files (at %s): leave out what is not to be delivered with a %s", p.shown, artifact.MaxUnpackedBytes>>20, name, IgnoreFile)
	}
	p.files[name] = data
	return nil
}

// read reads a file up to one byte more than may be packed.
func (p *packer) read(at string) (data []byte, err error) {
	f, err := os.Open(at) //nolint:gosec // the folder is the caller's own
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return io.ReadAll(io.LimitReader(f, artifact.MaxUnpackedBytes-p.bytes+1))
}

// say names a file as the person knows it.
func (p *packer) say(name string) string { return filepath.Join(p.shown, filepath.FromSlash(name)) }

// unreadable names the file in front of why it cannot be read.
func unreadable(name string, err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		err = at.Err
	}
	kind := fleet.ErrInvalid
	if errors.Is(err, fs.ErrNotExist) {
		kind = fleet.ErrNotFound
	}
	return fleet.Errorf(kind, "%s: cannot be read: %v", name, err)
}

func special(kind fs.FileMode) string {
	switch {
	case kind&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case kind&fs.ModeSocket != 0:
		return "a socket"
	case kind&fs.ModeDevice != 0:
		return "a device"
	}
	return "no ordinary file"
}
