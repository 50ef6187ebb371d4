package follow

import (
	"strings"

	"github.com/Masterminds/semver/v3"
)

// Lower reports that a ref was found by a lower version than another one of the same source, as "1.4.2@sha256:…" is lower than "1.5.0@sha256:…": in a range
// of versions that is one of before. Of others, as of branches, it reports false: a branch may be called 1.4, which is a version where ranged says that the
// source is a range.
func Lower(next, before string, ranged bool) bool {
	a, b := foundBy(next), foundBy(before)
	if ranged {
		return LowerVersion(a, b)
	}
	return lower(semver.StrictNewVersion, strings.TrimPrefix(a, "v"), strings.TrimPrefix(b, "v"))
}

// foundBy is what a ref was found by: 1.4.2 of "1.4.2@sha256:…".
func foundBy(ref string) string {
	by, _, _ := strings.Cut(ref, "@")
	return by
}

// LowerVersion reports that a version is lower than another one, as a range takes them: 1.4 is one, too, and so is 1.4.0_b1, which is the tag of 1.4.0+b1.
func LowerVersion(next, before string) bool {
	return lower(semver.NewVersion, strings.ReplaceAll(next, "_", "+"), strings.ReplaceAll(before, "_", "+"))
}

func lower(read func(string) (*semver.Version, error), next, before string) bool {
	a, aErr := read(next)
	b, bErr := read(before)
	return aErr == nil && bErr == nil && a.LessThan(b)
}
