package resource

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// folder is the files of a directory that may hold resources, and of those below it where it is read with them. A symbolic link counts as
// what it leads to: a directory that several share is read in each. above are the directories that it is in.
func folder(dir string, recursive bool, above []fs.FileInfo) ([]string, error) {
	self, err := os.Stat(dir)
	if err != nil {
		return nil, fileError(dir, err)
	}
	if slices.ContainsFunc(above, func(info fs.FileInfo) bool { return os.SameFile(info, self) }) {
		return nil, &Error{Source: dir, Message: "is a symbolic link to a directory that it is in: take the link away, or name the directories to read without -R"}
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fileError(dir, err)
	}
	var files []string
	var errs []error
	for _, entry := range list {
		path := filepath.Join(dir, entry.Name())
		isDir, err := leadsToDirectory(path, entry)
		switch {
		case isDir && recursive:
			below, err := folder(path, true, append(slices.Clone(above), self))
			files, errs = append(files, below...), append(errs, err)
		case isDir:
		case mayHoldResources(path):
			files = append(files, path)
		case err != nil && recursive: // it may be a directory that is not there
			errs = append(errs, err)
		}
	}
	return files, errors.Join(errs...)
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
