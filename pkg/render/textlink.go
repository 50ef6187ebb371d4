package render

import (
	"maps"
	"path"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// maxLinkBytes bounds the path in a symbolic link.
const maxLinkBytes = 4096

// textLinks refuses a symbolic link that was copied as text, as git does where there are none: a file that holds nothing but a path which leads out
// of the folder, to files of the source or out of that. What it leads to would be left out, and go where it was a folder before. One that leads to
// what is under the root shows that a second time, and leaves nothing out.
func textLinks(files map[string][]byte, root string) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		rest, ok := under(name, root)
		if !ok || name == root || isManifest(name) || hidden(rest) || len(files[name]) > maxLinkBytes {
			continue
		}
		if text := string(files[name]); leadsOut(files, root, name, text) {
			return fleet.Invalidf("package.plain.path", "%q is a file with the path %q in it, as a symbolic link is that was copied as text: put there what it leads to, or take the file away", name, text)
		}
	}
	return nil
}

// leadsOut reports that the text of a file is a path from it to what is not under the root.
func leadsOut(files map[string][]byte, root, name, text string) bool {
	if !strings.HasPrefix(path.Clean(text), "../") || strings.ContainsAny(text, "\n\r\t \\\x00") {
		return false
	}
	to := path.Join(path.Dir(name), text)
	if strings.HasPrefix(to, "../") {
		return true
	}
	_, inside := under(to, root)
	return !inside && isThere(files, to)
}
