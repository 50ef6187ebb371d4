package agent

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"towline.dev/towline/pkg/fleet"
)

// goneAfter is for how long what was served has to be missing before it counts as gone. While the API servers of a cluster are upgraded one after the
// other, the answer is now of the one and now of the other, for as long as that takes; a chart is not to leave out in between what it has there.
const goneAfter = 15 * time.Minute

// lastingly is what a cluster serves, without what is missing for a moment: what comes counts at once, what goes when it has stayed away. It serves one
// goroutine.
type lastingly struct {
	counts fleet.Capabilities
	// missing says since when something that counts was in no answer.
	missing map[string]time.Time
	// lowerSince is since when answers have a lower version of Kubernetes; zero: they have none.
	lowerSince time.Time
}

// takes an answer of the API server, and returns what counts.
func (l *lastingly) takes(now fleet.Capabilities, at time.Time) fleet.Capabilities {
	missing := map[string]time.Time{}
	for _, api := range l.counts.APIs {
		if now.Has(api) {
			continue
		}
		since, known := l.missing[api]
		if !known {
			since = at
		}
		if at.Sub(since) < goneAfter {
			missing[api] = since
		}
	}
	l.missing = missing
	l.counts = fleet.Capabilities{KubeVersion: l.version(now.KubeVersion, at), APIs: append(slices.Clone(now.APIs), slices.Collect(maps.Keys(missing))...)}
	slices.Sort(l.counts.APIs)
	return l.counts
}

// version is that which counts: the highest, until it has stayed away.
func (l *lastingly) version(now string, at time.Time) string {
	if !lower(now, l.counts.KubeVersion) {
		l.lowerSince = time.Time{}
		return now
	}
	if l.lowerSince.IsZero() {
		l.lowerSince = at
	}
	if at.Sub(l.lowerSince) < goneAfter {
		return l.counts.KubeVersion
	}
	l.lowerSince = time.Time{}
	return now
}

// lower compares versions of Kubernetes; one that cannot be read is lower than none.
func lower(a, b string) bool {
	x, err := version.ParseSemantic(a)
	y, or := version.ParseSemantic(b)
	return err == nil && or == nil && x.LessThan(y)
}
