// Package render turns the files of a source into the objects of a package. It owns which files a package takes and
// that rendering is repeatable; it must not know where files come from, which cluster they go to, or any network.
package render

import (
	"bytes"
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/guard"
	"towline.dev/towline/pkg/manifest"
)

// MaxFiles is how many manifest files a package may have.
const MaxFiles = 5000

// Options say what to render.
type Options struct {
	// Path is the folder, or the one file, to take; empty takes all.
	Path string
	// Options are how the manifests are read.
	manifest.Options
	// AllowEmpty lets a package have no objects; otherwise that is an error. A path at which there is no file at all is one with it, too.
	AllowEmpty bool
}

// Plain takes the manifests as they are: every *.yaml, *.yml and *.json file under the path, but for files and folders
// whose name begins with a dot. The result is in the order of identity, the same for the same files.
func Plain(files map[string][]byte, opts Options) ([]manifest.Object, error) {
	root, err := cleanPath(opts.Path)
	if err != nil {
		return nil, err
	}
	taken := selectFiles(files, root)
	if len(taken) > MaxFiles {
		return nil, fleet.Invalidf("package.plain.path", "%q has %d manifest files; at most %d are allowed", opts.Path, len(taken), MaxFiles)
	}
	if err := textLinks(files, root); err != nil {
		return nil, err
	}
	objects, err := twice(taken, opts.Options)
	if err != nil {
		return nil, err
	}
	_, isFile := files[root]
	switch {
	case isFile && !isManifest(root): // a symbolic link to the folder, say, that was copied where there are none
		return nil, fleet.Invalidf("package.plain.path", "%q is a file that is no *.yaml, *.yml or *.json: name a folder, or such a file", opts.Path)
	case len(objects) > 0 || opts.AllowEmpty && (root == "." || isThere(files, root)):
		return objects, nil
	}
	if len(taken) > 0 {
		return nil, fleet.Invalidf("package", "its %d files hold no objects; set allowEmpty if the module is to have none", len(taken))
	}
	return nil, noFiles(files, opts.Path, root)
}

// twice renders two times: a result that is not repeatable would change clusters without a change of the module.
func twice(files map[string][]byte, opts manifest.Options) ([]manifest.Object, error) {
	var first, second []manifest.Object
	var err, errSecond error
	var other sync.WaitGroup
	other.Go(func() {
		errSecond = guard.Run(func() (err error) {
			second, err = manifest.ParseSet(files, opts)
			return err
		})
	})
	first, err = manifest.ParseSet(files, opts)
	other.Wait()
	if err = cmp.Or(err, errSecond); err != nil {
		return nil, err
	}
	same := func(a, b manifest.Object) bool {
		return a.ID == b.ID && a.Version == b.Version && a.Wave == b.Wave && bytes.Equal(a.Raw, b.Raw)
	}
	if !slices.EqualFunc(first, second, same) {
		return nil, fleet.Errorf(fleet.ErrInvalid, "package: rendering the same files twice gave different objects")
	}
	return first, nil
}

func cleanPath(p string) (string, error) {
	clean := path.Clean("./" + p)
	if strings.HasPrefix(p, "/") || strings.ContainsAny(p, "\\\x00") || slices.Contains(strings.Split(p, "/"), "..") {
		return "", fleet.Invalidf("package.plain.path", "%q is no path in the source: write a folder, such as deploy/prod", p)
	}
	return clean, nil
}

func selectFiles(files map[string][]byte, root string) map[string][]byte {
	out := map[string][]byte{}
	for name, data := range files {
		if rest, ok := under(name, root); ok && isManifest(name) && !hidden(rest) {
			out[name] = data
		}
	}
	return out
}

// under is the part of name below root; for root itself its last element.
func under(name, root string) (rest string, ok bool) {
	if root == "." {
		return name, true
	}
	if name == root {
		return path.Base(name), true
	}
	return strings.CutPrefix(name, root+"/")
}

func isManifest(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(path.Ext(name)))
}

func hidden(name string) bool {
	return strings.HasPrefix(name, ".") || strings.Contains(name, "/.")
}

// isThere reports that a path has any file, or is one. One that has none may be misspelt, or renamed in the source, and is not taken for a
// folder that is empty: files are all that a source tells, so that an empty folder needs one, such as a README.
func isThere(files map[string][]byte, root string) bool {
	for name := range files {
		if _, ok := under(name, root); ok {
			return true
		}
	}
	return false
}

// noFiles says what there is instead.
func noFiles(files map[string][]byte, given, root string) error {
	folders := map[string]bool{}
	for name := range files {
		if isManifest(name) && !hidden(name) {
			folders[path.Dir(name)] = true
		}
	}
	where := "the source"
	if root != "." {
		where = "folder " + given
	}
	if len(folders) == 0 {
		return fleet.Invalidf("package.plain.path", "%s has no *.yaml, *.yml or *.json file, and neither has the rest of the source", where)
	}
	const most = 5
	there := slices.Sorted(maps.Keys(folders))
	more := ""
	if len(there) > most {
		there, more = there[:most], ", …"
	}
	return fleet.Invalidf("package.plain.path", "%s has no *.yaml, *.yml or *.json file; folders that have: %s%s", where, strings.Join(there, ", "), more)
}
