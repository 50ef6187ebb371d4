package render

import (
	"maps"
	"path"
	"slices"

	"towline.dev/towline/pkg/artifact"
	"towline.dev/towline/pkg/fleet"
)

// textLinks refuses a symbolic link that was copied as text, as git does where there are none: a file that holds nothing but a path which leads
// to a folder with manifests that are not read where they are, or out of the source. What it leads to would be left out, and go where it was a
// folder before. One that leads to what is read under the root shows that a second time, and leaves nothing out.
func textLinks(files map[string][]byte, root string) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, ok := under(name, root)
		if !ok || name == root || isManifest(name) || hidden(rest) {
			continue
		}
		if to := artifact.TextLink(name, files[name]); to != "" && leavesOut(files, root, to) {
			return linkAsText("package.plain.path", name, files[name])
		}
	}
	return nil
}

func linkAsText(field, name string, text []byte) error {
	return fleet.Invalidf(field, "%q is a file with the path %q in it, as a symbolic link is that was copied as text: put there what it leads to, or take the file away", name, text)
}

// leavesOut reports that manifests of the folder to which a link leads are not read where they are, or may be, where that is no part of the source.
func leavesOut(files map[string][]byte, root, to string) bool {
	if artifact.Outside(to) {
		return true
	}
	for name := range files {
		in, ok := under(name, to)
		if !ok || name == to || !isManifest(name) || hidden(in) { // a link to a file is no manifest by its name
			continue
		}
		if rest, inside := under(name, root); !inside || hidden(rest) {
			return true
		}
	}
	return false
}

// noFolder refuses a file where a chart has a folder, as a symbolic link to one is that was copied as text: Helm does not look into it, so that all
// that was in the folder would be dropped. roots are the folders of charts.
func noFolder(files map[string][]byte, roots map[string]bool) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if slices.Contains([]string{"templates", "charts", "crds"}, path.Base(name)) && isChart(files, roots, path.Dir(name)) {
			return fleet.Invalidf("package.helm.path", "%q is a file, where a chart has a folder, as a symbolic link is that was copied as text: put the folder there, or take the file away", name)
		}
		crds, in := crdsOf(name, func(dir string) bool { return isChart(files, roots, dir) })
		if !in || isManifest(name) {
			continue
		}
		if to := artifact.TextLink(name, files[name]); to != "" && leavesOut(files, crds, to) { // of crds/ Helm reads manifests alone
			return linkAsText("package.helm.path", name, files[name])
		}
	}
	return nil
}

// isChart reports that a folder is a chart that is rendered, or in one that is.
func isChart(files map[string][]byte, roots map[string]bool, dir string) bool {
	_, there := files[path.Join(dir, "Chart.yaml")]
	return there && inAny(roots, dir)
}

// crdsOf is the crds/ of a chart that a file is in.
func crdsOf(name string, isChart func(dir string) bool) (dir string, in bool) {
	for at := path.Dir(name); at != "." && at != "/"; at = path.Dir(at) {
		if path.Base(at) == "crds" && isChart(path.Dir(at)) {
			return at, true
		}
	}
	return "", false
}
