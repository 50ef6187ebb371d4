package source

import (
	"bytes"
	"context"
	"maps"
	"path"
	"slices"
	"strings"
)

// usedFolders are those of a repository from which something is delivered, by their paths: each with the chart that depends on it; "": it is
// source.git.path itself. The whole repository is ".".
type usedFolders map[string]string

// of is the folder that is used and has a file.
func (u usedFolders) of(name string) (folder string, used bool) {
	for at := name; ; {
		if _, used := u[at]; used {
			return at, true
		}
		end := strings.LastIndexByte(at, '/')
		if end < 0 {
			break
		}
		at = at[:end]
	}
	_, used = u["."]
	return ".", used
}

// reach is what is used with the folders that the charts in it depend on by file://, and those that these do: all that is in a chart's folder
// is of the chart, whether or not anything names it.
func (u usedFolders) reach(ctx context.Context, files map[string][]byte) (usedFolders, error) {
	all := maps.Clone(u)
	var charts []string
	for name := range files {
		if path.Base(name) == "Chart.yaml" {
			charts = append(charts, name)
		}
	}
	slices.Sort(charts)
	read := map[string]bool{}
	for todo := slices.Sorted(maps.Keys(u)); len(todo) > 0; todo = todo[1:] {
		if err := ctx.Err(); err != nil { // a chart may name any number of folders
			return nil, err
		}
		for _, name := range below(charts, todo[0]) {
			if read[name] {
				continue
			}
			read[name] = true
			for _, to := range foldersBeside(files, path.Dir(name)) {
				if _, known := all[to]; !known {
					all[to] = path.Dir(name)
					todo = append(todo, to)
				}
			}
		}
	}
	return all, nil
}

// below are those of sorted names that are in a folder.
func below(names []string, folder string) []string {
	if folder == "." {
		return names
	}
	from, _ := slices.BinarySearch(names, folder+"/")
	to, _ := slices.BinarySearch(names, folder+"0") // the sign behind the slash
	return names[from:to]
}

// foldersBeside are those of the repository that the chart in a folder depends on.
func foldersBeside(files map[string][]byte, dir string) (folders []string) {
	local := []byte("file:")
	if !bytes.Contains(files[path.Join(dir, "Chart.yaml")], local) && !bytes.Contains(files[path.Join(dir, "requirements.yaml")], local) {
		return nil
	}
	m, _ := readChart(files, dir)
	for _, d := range m.Dependencies {
		if d == nil {
			continue
		}
		to, is := strings.CutPrefix(d.Repository, "file://")
		if at := path.Join(dir, to); is && !strings.HasPrefix(to, "/") && at != ".." && !strings.HasPrefix(at, "../") {
			folders = append(folders, at)
		}
	}
	return folders
}
