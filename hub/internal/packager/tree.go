package packager

import (
	"fmt"
	"io/fs"
	"path"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// mount is where the files of a source stand in the file system that kustomize sees, so that nothing is above them. It is taken
// out of messages.
const mount = "/source"

// tree is the files of a source as a file system. kustomize reads from it; what it writes goes nowhere. (Its own file system in memory
// refuses names with a plus sign.)
type tree struct {
	filesys.FileSystem
	files   map[string][]byte
	folders map[string]bool
}

func newTree(files map[string][]byte) *tree {
	t := &tree{FileSystem: filesys.MakeFsInMemory(), files: files, folders: map[string]bool{".": true}}
	for name := range files {
		for dir := path.Dir(name); !t.folders[dir]; dir = path.Dir(dir) {
			t.folders[dir] = true
		}
	}
	return t
}

// within is the path in the source; it is false for what is outside of it.
func within(name string) (string, bool) {
	clean := path.Clean(name)
	if clean == mount {
		return ".", true
	}
	return strings.CutPrefix(clean, mount+"/")
}

// CleanedAbs implements filesys.FileSystem.
func (t *tree) CleanedAbs(name string) (filesys.ConfirmedDir, string, error) {
	p, ok := within(name)
	switch {
	case ok && t.folders[p]:
		return filesys.ConfirmedDir(path.Join(mount, p)), "", nil
	case ok && t.Exists(name):
		return filesys.ConfirmedDir(path.Join(mount, path.Dir(p))), path.Base(p), nil
	}
	return "", "", notThere(name)
}

// ReadFile implements filesys.FileSystem.
func (t *tree) ReadFile(name string) ([]byte, error) {
	p, ok := within(name)
	if data, there := t.files[p]; ok && there {
		return data, nil
	}
	return nil, notThere(name)
}

// Exists implements filesys.FileSystem.
func (t *tree) Exists(name string) bool {
	p, ok := within(name)
	_, file := t.files[p]
	return ok && (file || t.folders[p])
}

// IsDir implements filesys.FileSystem.
func (t *tree) IsDir(name string) bool {
	p, ok := within(name)
	return ok && t.folders[p]
}

func notThere(name string) error {
	if _, ok := within(name); !ok {
		return fmt.Errorf("%s is outside of the source: %w", name, fs.ErrNotExist)
	}
	return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}
