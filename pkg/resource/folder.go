package resource

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"towline.dev/towline/pkg/artifact"
)

// folder is the files of a directory that may hold resources, and of those below it where it is read with them, and what else there is. A symbolic
// link counts as what it leads to: a directory that several share is read in each. above are the directories that it is in.
func folder(dir string, recursive bool, above []fs.FileInfo) (files, others []string, err error) {
	self, err := os.Stat(dir)
	if err != nil {
		return nil, nil, fileError(dir, err)
	}
	if slices.ContainsFunc(above, func(info fs.FileInfo) bool { return os.SameFile(info, self) }) {
		return nil, nil, &Error{Source: dir, Message: "is a symbolic link to a directory that it is in: take the link away, or name the directories to read without -R"}
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fileError(dir, err)
	}
	var errs []error
	for _, entry := range list {
		path := filepath.Join(dir, entry.Name())
		isDir, err := leadsToDirectory(path, entry)
		switch {
		case isDir && recursive:
			below, more, err := folder(path, true, append(slices.Clone(above), self))
			files, others, errs = append(files, below...), append(others, more...), append(errs, err)
		case isDir:
		case mayHoldResources(path):
			files = append(files, path)
		case err != nil && recursive: // it may be a directory that is not there
			errs = append(errs, err)
		default:
			others = append(others, path)
		}
	}
	return files, others, errors.Join(errs...)
}

// leftOut are errors about those files beside what is read of paths that are symbolic links which were copied as text: what such a link leads to is not
// read, though it was where that is a link, and what the files do not have is to go.
func leftOut(paths, others []string) error {
	var errs []error
	for _, file := range others {
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() || info.Size() > artifact.MaxLinkBytes {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			errs = append(errs, fileError(file, err))
			continue
		}
		text := artifact.TextLink("", data)
		if text == "" {
			continue
		}
		to := filepath.Join(filepath.Dir(file), filepath.FromSlash(text))
		if slices.ContainsFunc(paths, func(path string) bool { return holds(path, to) }) {
			continue
		}
		if info, err := os.Stat(to); err == nil && !info.IsDir() { // a link to a file is read by the end of its own name
			continue
		}
		found, _, err := folder(to, true, nil)
		if len(found) > 0 || err != nil && artifact.Outside(text) { // or what it leads to is not here
			errs = append(errs, linkAsText(file, data))
		}
	}
	return errors.Join(errs...)
}

// holds reports that a file or directory is one that is named, or in it.
func holds(path, name string) bool {
	path, err := filepath.Abs(path)
	if err != nil {
		return false
	}
	if name, err = filepath.Abs(name); err != nil {
		return false
	}
	rest, err := filepath.Rel(path, name)
	return err == nil && !artifact.Outside(filepath.ToSlash(rest))
}

// LinksOut are errors about those files of a folder, and of those below it, that are symbolic links which were copied as text: what they lead to is not read.
func LinksOut(files map[string][]byte, folder string) error {
	under := strings.TrimPrefix(strings.Trim(folder, "/")+"/", "/")
	left := map[string]bool{} // folders with resources, in them or below, that are not read
	for name := range files {
		if strings.HasPrefix(name, under) || !mayHoldResources(name) {
			continue
		}
		for dir := path.Dir(name); !left[dir]; dir = path.Dir(dir) {
			left[dir] = true
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasPrefix(name, under) || mayHoldResources(name) {
			continue
		}
		if to := artifact.TextLink(name, files[name]); to != "" && (artifact.Outside(to) || left[to]) {
			errs = append(errs, linkAsText(name, files[name]))
		}
	}
	return errors.Join(errs...)
}

func linkAsText(file string, text []byte) error {
	return &Error{Source: file, Message: fmt.Sprintf("holds the path %q and nothing else, as a symbolic link does that was copied as text: what is there is not read, and would count as taken away. Put there what it leads to, or take the file away", text)}
}

func leadsToDirectory(path string, entry fs.DirEntry) (bool, error) {
	if entry.Type()&fs.ModeSymlink == 0 {
		return entry.IsDir(), nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return false, fileError(path, err)
	}
	return info.IsDir(), nil
}

// mayHoldResources reports that a file of a directory is read, by the end of its name.
func mayHoldResources(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(name)))
}
