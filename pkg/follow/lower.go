package follow

import (
	"strings"

	"github.com/Masterminds/semver/v3"
)

// Lower reports that a ref was found by a lower version than another one of the same source, as "1.4.2@sha256:…" is lower than "1.5.0@sha256:…": in a range
// of versions that is one of before. Of others, as of branches, it reports false.
func Lower(next, before string) bool {
	a, aErr := versionIn(next)
	b, bErr := versionIn(before)
	return aErr == nil && bErr == nil && a.LessThan(b)
}

// LowerVersion reports that a version is lower than another one, as a range takes them: 1.4 is one, too.
func LowerVersion(next, before string) bool {
	a, aErr := semver.NewVersion(next)
	b, bErr := semver.NewVersion(before)
	return aErr == nil && bErr == nil && a.LessThan(b)
}

func versionIn(ref string) (*semver.Version, error) {
	by, _, _ := strings.Cut(ref, "@")
	return semver.StrictNewVersion(strings.TrimPrefix(by, "v"))
}
