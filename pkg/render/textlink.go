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
	left := unread(files, root)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, ok := under(name, root)
		if !ok || name == root || isManifest(name) || hidden(rest) {
			continue
		}
		if to := artifact.TextLink(name, files[name]); to != "" && (artifact.Outside(to) || left[to]) {
			return linkAsText("package.plain.path", name, files[name])
		}
	}
	return nil
}

func linkAsText(field, name string, text []byte) error {
	return fleet.Invalidf(field, "%q is a file with the path %q in it, as a symbolic link is that was copied as text: put there what it leads to, or take the file away", name, text)
}

// unread are the folders with manifests, in them or below, that are not read under a root. It is asked once for all files, each of which may be a link.
func unread(files map[string][]byte, root string) map[string]bool {
	out := map[string]bool{}
	for name := range files {
		if rest, inside := under(name, root); !isManifest(name) || inside && !hidden(rest) {
			continue
		}
		for dir := path.Dir(name); !out[dir]; dir = path.Dir(dir) {
			if in, _ := under(name, dir); hidden(in) { // and so it is from the folders above
				break
			}
			out[dir] = true
		}
	}
	return out
}

// noFolder refuses a file where a chart has a folder, as a symbolic link to one is that was copied as text: Helm does not look into it, so that all
// that was in the folder would be dropped. roots are the folders of charts.
func noFolder(files map[string][]byte, roots map[string]bool) error {
	left := map[string]map[string]bool{} // by the crds/ of a chart
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if slices.Contains([]string{"templates", "charts", "crds"}, path.Base(name)) && isChart(files, roots, path.Dir(name)) {
			return fleet.Invalidf("package.helm.path", "%q is a file, where a chart has a folder, as a symbolic link is that was copied as text: put the folder there, or take the file away", name)
		}
		crds, in := crdsOf(name, func(dir string) bool { return isChart(files, roots, dir) })
		if !in || isManifest(name) {
			continue
		}
		to := artifact.TextLink(name, files[name])
		if to != "" && left[crds] == nil {
			left[crds] = unread(files, crds)
		}
		if to != "" && (artifact.Outside(to) || left[crds][to]) { // of crds/ Helm reads manifests alone
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
