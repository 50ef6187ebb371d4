package source

import (
	"github.com/Masterminds/semver/v3"

	"towline.dev/towline/pkg/fleet"
)

// readRange reads a range of versions.
func readRange(field, text string) (*semver.Constraints, error) {
	c, err := semver.NewConstraint(text)
	if err != nil {
		return nil, fleet.Invalidf(field, "%q is no range of versions: write, for example, \">=1.2 <2\" or \"1.x\"", clip(text))
	}
	return c, nil
}

// newestVersion returns the name of the highest version in a range. Names that are no versions do not count, and prereleases only where
// the range names one. Of two names of one version the longer counts, so that it is always the same one.
func newestVersion(field, text string, names []string) (string, error) {
	within, err := readRange(field, text)
	if err != nil {
		return "", err
	}
	var best, highest *semver.Version
	for _, name := range names {
		v, err := semver.NewVersion(name)
		if err != nil {
			continue
		}
		if highest == nil || higher(v, highest) {
			highest = v
		}
		if within.Check(v) && (best == nil || higher(v, best)) {
			best = v
		}
	}
	switch {
	case best != nil:
		return best.Original(), nil
	case highest == nil:
		return "", fleet.Errorf(fleet.ErrNotFound, "has no version: no tag of it is one, such as v1.2.3")
	}
	return "", fleet.Errorf(fleet.ErrNotFound, "has no version in %q: the highest is %s; check %s", clip(text), clip(highest.Original()), field)
}

func higher(a, b *semver.Version) bool {
	if c := a.Compare(b); c != 0 {
		return c > 0
	}
	if len(a.Original()) != len(b.Original()) {
		return len(a.Original()) > len(b.Original())
	}
	return a.Original() > b.Original()
}
