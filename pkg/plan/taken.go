package plan

import (
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// An object of a module may get another keeper while the module has it: a chart, a Kustomization or an Application that is to
// take its place, or a controller that fills it from somewhere else. The revision that drops it then hands it over, and does
// not want it deleted.

// Keepers are those who kept a live object beside the module when it became the module's, as its record notes them. What
// stands there since then is no sign that somebody took it over.
func Keepers(e Existing) string {
	var out []string
	for _, k := range marksOf(e.Labels, e.Annotations) {
		out = append(out, k.noted())
	}
	for _, name := range e.Appliers {
		out = append(out, applier(name))
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), keeperBreak)
}

const keeperBreak = "\n"

// noted is how a record notes a mark, with a digest of its value: another release, Kustomization or Application may have the object
// later. Older agents noted no value.
func (k keeper) noted() string { return k.mark + "=" + fleet.DigestOf([]byte(k.value)).Short() }

func (k keeper) notedIn(keepers []string) bool {
	return slices.Contains(keepers, k.noted()) || slices.Contains(keepers, k.mark)
}

func applier(name string) string { return "applier " + name }

// TakenBy says who has taken over the object of a record since it became the module's; empty: nobody. No module sets an
// ownerReference, so that the one who did has the object go with its owner. A mark that the module lists itself says nothing.
func (s Seen) TakenBy(r Record) string {
	for _, o := range s.Owners {
		if o.Controller {
			return "its controller, " + o.Kind + " " + o.Name
		}
	}
	if len(s.Owners) > 0 {
		return "its owner, " + s.Owners[0].Kind + " " + s.Owners[0].Name
	}
	before := strings.Split(r.Keepers, keeperBreak)
	for _, k := range marksOf(notListed(s.Labels, s.Listed), notListed(s.Annotations, s.Listed)) {
		if !k.notedIn(before) {
			return k.by
		}
	}
	for _, name := range s.Appliers {
		switch {
		case slices.Contains(before, applier(name)):
		case Deploys(name):
			return deployers[name]
		default:
			return name + ", which applies it"
		}
	}
	return ""
}

func notListed(all map[string]string, listed map[string]bool) map[string]string {
	out := make(map[string]string, len(all))
	for key, v := range all {
		if !listed[key] {
			out[key] = v
		}
	}
	return out
}
