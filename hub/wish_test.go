package hub_test

import (
	"slices"
	"strings"
	"time"
)

// wish is what people want at a time: the modules that there are, and the labels of the clusters.
type wish struct {
	modules  map[string]want
	clusters map[string]place
	till     time.Time // when something else was wanted; zero: it is wanted now
}

// place is a cluster as it was put.
type place struct {
	zone              string
	cordoned, tainted bool
	gone              bool // it is no cluster of the fleet
	unlabelled        bool // somebody took its label away: modules that need it keep what they have there
}

// want is a module as it was put.
type want struct {
	objects string // the letters of their names
	zone    string // where it is placed; empty: everywhere
	named   string // or the clusters that its placement names, whatever their labels and taints are
	// external: another program assigns it, which wants it in these clusters.
	external  bool
	in        string
	tolerates bool // taints
}

func (x wish) with(change func(*wish)) wish {
	next := wish{modules: map[string]want{}, clusters: map[string]place{}}
	for k, v := range x.modules {
		next.modules[k] = v
	}
	for k, v := range x.clusters {
		next.clusters[k] = v
	}
	change(&next)
	return next
}

// wants reports that a module is to have an object in a cluster. Where there is a taint, nobody new comes, and without its label a
// cluster gives v no name.
func (x wish) wants(module, cluster, object string) bool {
	m, ok := x.modules[module]
	letter := object[:1]
	return ok && (letter != "v" || !x.clusters[cluster].unlabelled) && strings.Contains(m.objects, letter) && object == nameOf(letter, x.clusters[cluster].zone) && x.takes(m, cluster) && (m.tolerates || m.named != "" || !x.clusters[cluster].tainted)
}

// nameOf is what an object is called in a cluster: v after the zone.
func nameOf(letter, zone string) string {
	if letter == "v" {
		return "v-" + zone
	}
	return letter
}

func (x wish) takes(m want, cluster string) bool {
	if x.clusters[cluster].gone {
		return false
	}
	if m.external {
		return strings.Contains(m.in, cluster)
	}
	if m.named != "" {
		return slices.Contains(strings.Fields(m.named), cluster)
	}
	return m.zone == "" || m.zone == x.clusters[cluster].zone && !x.clusters[cluster].unlabelled
}
