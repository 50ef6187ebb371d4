package importer

import (
	"regexp"
	"strings"

	v1 "towline.dev/towline/gen/towline/v1"
)

var (
	commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)
	version  = regexp.MustCompile(`^v?[0-9]+\.[0-9]+(\.[0-9]+)?([-+].*)?$`)
	ranged   = regexp.MustCompile(`^[\^~<>=!*]|\.[x*]$|[<>=]|^[0-9.]+ - [0-9.]+$|\|\|`)
)

// gitRef is what a name of Git means that may be a branch, a tag, a commit or a range of versions.
func (d *draft) gitRef(f field) *v1.GitRef {
	switch name := f.text(); {
	case name == "" || name == "HEAD":
		return nil
	case commitID.MatchString(name):
		return &v1.GitRef{Commit: name}
	case strings.HasPrefix(name, "refs/heads/"):
		return &v1.GitRef{Branch: strings.TrimPrefix(name, "refs/heads/")}
	case strings.HasPrefix(name, "refs/tags/"):
		return &v1.GitRef{Tag: strings.TrimPrefix(name, "refs/tags/")}
	case ranged.MatchString(name):
		return &v1.GitRef{Semver: name}
	case version.MatchString(name):
		f.check("%s is taken for a tag: if it is a branch, write ref: {branch: %s}", name, name)
		return &v1.GitRef{Tag: name}
	default:
		if name != "main" && name != "master" {
			f.check("%s is taken for a branch: if it is a tag, write ref: {tag: %s}", name, name)
		}
		return &v1.GitRef{Branch: name}
	}
}

func ociRef(name string) *v1.OciRef {
	switch {
	case name == "":
		return nil
	case strings.HasPrefix(name, "sha256:"):
		return &v1.OciRef{Digest: name}
	case ranged.MatchString(name):
		return &v1.OciRef{Semver: name}
	}
	return &v1.OciRef{Tag: name}
}
