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
	"syscall"

	"github.com/klauspost/compress/zstd"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// IgnoreFile names what of its folder, and below it, is left out: by the rules of .gitignore.
const IgnoreFile = ".towlineignore"

// gitFolder is left out always, at every depth and in every case.
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
	p := &packer{root: root, shown: dir, files: map[string][]byte{}, ignored: map[string][]rule{}, listed: map[string]map[string]bool{}}
	if err := p.folder(place{}, place{}, root, 0); err != nil {
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
	root    string // without symbolic links
	shown   string // as it was named
	files   map[string][]byte
	bytes   int64
	ignored map[string][]rule          // by the folder whose ignore file says so
	listed  map[string]map[string]bool // names in folders on the way to what symbolic links lead to
	linked  int                        // folders that were read by way of a symbolic link
}

// place is where something stands below the folder that is packed, and the rules that hold there.
type place struct {
	name  string
	rules *rules
}

func (p place) in(name string) place      { return place{path.Join(p.name, name), p.rules} }
func (p place) excluded(folder bool) bool { return p.rules.excludes(p.name, folder) }

// folder reads the folder at a path. It stands at a place in what is packed, which by a symbolic link is another one than it really has.
func (p *packer) folder(shown, real place, at string, links int) error {
	// Folders that link to each other multiply, and may do so without a file that would count.
	if links > 0 {
		if p.linked++; p.linked > artifact.MaxEntries {
			return fleet.Errorf(fleet.ErrExhausted, "%s: symbolic links lead to more than %d folders (at %s): leave out what is not to be delivered with a %s", p.shown, artifact.MaxEntries, shown.name, IgnoreFile)
		}
	}
	list, err := os.ReadDir(at)
	if err != nil {
		return unreadable(p.say(shown.name), err)
	}
	own, err := p.ignoreFile(shown.name, at)
	if err != nil {
		return err
	}
	shown.rules, real.rules = shown.rules.and(shown.name, own), real.rules.and(real.name, own)
	for _, e := range list {
		if isGit(at, e.Name()) || e.Name() == IgnoreFile {
			continue
		}
		if err := p.entry(shown.in(e.Name()), real.in(e.Name()), filepath.Join(at, e.Name()), e.Type(), links); err != nil {
			return err
		}
	}
	return nil
}

// ignoreFile reads the rules of a folder, once.
func (p *packer) ignoreFile(name, at string) ([]rule, error) {
	if list, known := p.ignored[at]; known {
		return list, nil
	}
	list, err := readIgnore(at)
	if err != nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: %v", p.say(path.Join(name, IgnoreFile)), err)
	}
	p.ignored[at] = list
	return list, nil
}

// isGit reports that a name in a folder is that of git's own folder. On a file system that ignores case, or knows a file by another name, too,
// others lead to the same folder.
func isGit(in, name string) bool {
	if strings.EqualFold(name, gitFolder) {
		return true
	}
	git, err := os.Lstat(filepath.Join(in, gitFolder))
	if err != nil {
		return false
	}
	this, err := os.Lstat(filepath.Join(in, name))
	return err == nil && os.SameFile(git, this)
}

// entry packs what is left out neither where it is shown nor where it is.
func (p *packer) entry(shown, real place, at string, kind fs.FileMode, links int) error {
	if shown.excluded(kind.IsDir()) || real.excluded(kind.IsDir()) {
		return nil
	}
	if kind&fs.ModeSymlink != 0 {
		return p.link(shown, at, links+1)
	}
	return p.pack(shown, real, at, kind, links, "is")
}

// link packs what a symbolic link leads to, if that is in the folder.
func (p *packer) link(shown place, at string, links int) error {
	to, err := filepath.EvalSymlinks(at)
	if err != nil {
		return unreadable(p.say(shown.name), err)
	}
	rel, err := filepath.Rel(p.root, to)
	if err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fleet.Errorf(fleet.ErrInvalid, "%s: is a symbolic link to %s, outside of the folder: put the file itself there, or leave the link out with a %s", p.say(shown.name), to, IgnoreFile)
	}
	holds := string(filepath.Separator)
	if strings.HasPrefix(filepath.Dir(at)+holds, to+holds) || links > maxLinks {
		return fleet.Errorf(fleet.ErrInvalid, "%s: is a symbolic link to a folder that it is in: leave it out with a %s", p.say(shown.name), IgnoreFile)
	}
	info, err := os.Stat(to)
	if err != nil {
		return unreadable(p.say(shown.name), err)
	}
	if info.IsDir() && shown.excluded(true) {
		return nil
	}
	real, err := p.real(shown.name, filepath.ToSlash(rel), info.IsDir())
	if err != nil {
		return err
	}
	return p.pack(shown, real, to, info.Mode().Type(), links, "leads to")
}

// real is the place of what a symbolic link leads to. What is not packed there is not packed by the link either.
func (p *packer) real(link, to string, folder bool) (place, error) {
	var real place
	at, parts := p.root, strings.Split(to, "/")
	for i, part := range parts {
		if isGit(at, part) {
			return place{}, fleet.Errorf(fleet.ErrInvalid, "%s: is a symbolic link into %s, which is never packed", p.say(link), p.say(path.Join(real.name, gitFolder)))
		}
		own, err := p.ignoreFile(real.name, at)
		if err != nil {
			return place{}, err
		}
		if part, err = p.spelled(at, part); err != nil {
			return place{}, unreadable(p.say(real.name), err)
		}
		real = place{path.Join(real.name, part), real.rules.and(real.name, own)}
		if real.excluded(folder || i < len(parts)-1) {
			return place{}, fleet.Errorf(fleet.ErrInvalid, "%s: is a symbolic link to %s, which a %s leaves out: leave the link out, too, or put a file in its place", p.say(link), p.say(to), IgnoreFile)
		}
		at = filepath.Join(at, part)
	}
	return real, nil
}

// spelled is a name in a folder as the folder has it. A file system that ignores case finds it by other spellings, too, which the rules would
// not match.
func (p *packer) spelled(in, name string) (string, error) {
	if p.listed[in] == nil {
		list, err := os.ReadDir(in)
		if err != nil {
			return "", err
		}
		p.listed[in] = make(map[string]bool, len(list))
		for _, e := range list {
			p.listed[in][e.Name()] = true
		}
	}
	this, err := os.Lstat(filepath.Join(in, name))
	if err != nil {
		return "", err
	}
	return spelling(p.listed[in], name, func(other string) bool {
		info, err := os.Lstat(filepath.Join(in, other))
		return err == nil && os.SameFile(this, info)
	}), nil
}

// spelling is which of the names of a folder is the one that it was asked for.
func spelling(names map[string]bool, asked string, same func(name string) bool) string {
	if names[asked] {
		return asked
	}
	for name := range names {
		if same(name) {
			return name
		}
	}
	return asked
}

// pack packs a file or a folder; verb says how the name comes to be it.
func (p *packer) pack(shown, real place, at string, kind fs.FileMode, links int, verb string) error {
	switch {
	case kind.IsDir():
		return p.folder(shown, real, at, links)
	case kind.IsRegular():
		return p.file(shown.name, at)
	}
	return fleet.Errorf(fleet.ErrInvalid, "%s: %s %s: only files and folders can be packed; leave it out with a %s", p.say(shown.name), verb, special(kind), IgnoreFile)
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
	f, err := openFile(at)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return steady(f, artifact.MaxUnpackedBytes-p.bytes+1)
}

// openFile opens what was a file when the folder was listed. A pipe that is there meanwhile would wait for who writes into it.
func openFile(at string) (*os.File, error) {
	f, err := os.OpenFile(at, os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:gosec // the folder is the caller's own
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is no file any more: try again")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// steady reads a file up to so many bytes, unless it is written to meanwhile: half of an old file and half of a new one is neither.
func steady(f fs.File, most int64) ([]byte, error) {
	before, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) || int64(len(data)) < min(after.Size(), most) {
		return nil, errors.New("it was written to meanwhile: try again")
	}
	return data, nil
}

// say names a file as the person knows it.
func (p *packer) say(name string) string { return filepath.Join(p.shown, filepath.FromSlash(name)) }

// unreadable names the file in front of why it cannot be read.
func unreadable(name string, err error) error {
	kind := fleet.ErrInvalid
	if errors.Is(err, fs.ErrNotExist) {
		kind = fleet.ErrNotFound
	}
	return fleet.Errorf(kind, "%s: cannot be read: %v", name, cause(err))
}

// cause is why a file cannot be read, without its path.
func cause(err error) error {
	if at, is := errors.AsType[*fs.PathError](err); is {
		return at.Err
	}
	return err
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
