package plan

import (
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Reasons of modules that wait for others.
const (
	ReasonAwaitingDependency = "AwaitingDependency"
	ReasonDependentsFirst    = "DependentsFirst"
)

// Standing is how a module stands in the cluster, by its newest target.
type Standing struct {
	// Listed says that the hub lists the module here: it has a sync, or a tombstone if Going.
	Listed, Going bool
	// Ready says that it is applied and healthy; Gone that nothing is left of one that goes.
	Ready, Gone bool
	// Elsewhere says of one that goes that all that is left of it waits for other modules.
	Elsewhere bool
	// Uses are modules of one that goes: what is left of it may be used, or needed, by what they have, until that is through, or gone.
	Uses []fleet.ModuleRef
	// Why says why it is neither Ready nor Gone.
	Why string
	// DependsOn are modules that come first.
	DependsOn []fleet.ModuleRef
}

// Standings are all modules that are listed in a cluster.
type Standings map[fleet.ModuleRef]Standing

func (all Standings) dependsOn(going bool) func(fleet.ModuleRef) []fleet.ModuleRef {
	return func(m fleet.ModuleRef) []fleet.ModuleRef {
		if s := all[m]; s.Listed && s.Going == going {
			return s.DependsOn
		}
		return nil
	}
}

// Needs reports that a module depends on another one, at once or by way of others.
func (all Standings) Needs(of, other fleet.ModuleRef) bool {
	return assemble.Reaches(of, other, all.dependsOn(false))
}

// step is what is waited for of a module: that it has its revision or, if it goes, that it begins to, or that nothing is left of it.
type step struct {
	module fleet.ModuleRef
	gone   bool
}

// before are the steps for which one waits, if nobody is let off because others wait for him.
func (all Standings) before(s step) (out []step) {
	is := all[s.module]
	out = all.declared(s)
	switch {
	case is.Gone:
	case !is.Going:
		for _, m := range is.DependsOn {
			out = append(out, step{m, all[m].Going})
		}
	case s.gone:
		for _, m := range is.Uses { // of one that goes the workloads end when it begins to; one that waits for this end is not waited for
			if !all[m].Going || !assemble.Reaches(step{module: m}, s, all.declared) {
				out = append(out, step{module: m})
			}
		}
	}
	return out
}

// declared are the steps for which one of a module that goes waits by what modules depend on, and not by what is used.
func (all Standings) declared(s step) (out []step) {
	is := all[s.module]
	switch {
	case is.Gone, !is.Going:
	case s.gone:
		out = append(out, step{module: s.module})
	default:
		for _, m := range all.dependents(s.module) {
			out = append(out, step{m, true})
		}
	}
	return out
}

// beforeInRemovals are the steps for which one waits, of modules that go.
func (all Standings) beforeInRemovals(s step) []step {
	return slices.DeleteFunc(all.before(s), func(b step) bool { return !all[b.module].Going })
}

// AwaitsEnd reports that of two modules that go one does not begin to before nothing is left of the other one, by way of whatever others that
// go: that one must not wait for it.
func (all Standings) AwaitsEnd(of, other fleet.ModuleRef) bool {
	return assemble.Reaches(step{module: of}, step{other, true}, all.beforeInRemovals)
}

// endAwaits reports that the end of a module that goes waits for the revision of another one, by way of whatever others: that one has what may
// use what is left of a module that goes, or comes before who has.
func (all Standings) endAwaits(going, of fleet.ModuleRef) bool {
	return assemble.Reaches(step{going, true}, step{module: of}, all.before)
}

// AwaitsDependency says for what a module waits before it begins a revision; empty: for nothing. Of modules that depend on each other in a
// circle, as revisions of different times may in one cluster, none waits for another; nor does one for the end of what waits for it.
func (all Standings) AwaitsDependency(of fleet.ModuleRef) string {
	var waits []string
	for _, m := range all[of].DependsOn {
		s := all[m]
		switch {
		case assemble.Reaches(m, of, all.dependsOn(false)), s.Going && !s.Gone && all.endAwaits(m, of):
		case !s.Listed:
			waits = append(waits, "module "+m.Display()+": is not in this cluster")
		case s.Going:
			waits = append(waits, "module "+m.Display()+": is being removed from this cluster")
		case !s.Ready:
			waits = append(waits, "module "+m.Display()+": not ready"+inBrackets(s.Why))
		}
	}
	return sentence(waits)
}

// AwaitsDependents says for which modules, which depend on it and go as well, the removal of a module waits; empty: for none. It waits
// for what a dependent does itself, whatever hangs about that, and not for what that leaves to other modules.
func (all Standings) AwaitsDependents(of fleet.ModuleRef) string {
	var waits []string
	for _, m := range slices.SortedFunc(slices.Values(all.dependents(of)), func(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) }) {
		waits = append(waits, "module "+m.Display()+", which depends on it, to be gone"+inBrackets(all[m].Why))
	}
	return sentence(waits)
}

// dependents are the modules for which the removal of one waits.
func (all Standings) dependents(of fleet.ModuleRef) (out []fleet.ModuleRef) {
	for m, s := range all {
		waits := s.Listed && s.Going && !s.Gone && !s.Elsewhere && slices.Contains(s.DependsOn, of)
		if waits && !assemble.Reaches(of, m, all.dependsOn(true)) {
			out = append(out, m)
		}
	}
	return out
}

// inBrackets is what more is known.
func inBrackets(why string) string {
	if why == "" {
		return ""
	}
	return " (" + why + ")"
}

// sentence says the first of what is waited for, and how many more there are.
func sentence(waits []string) string {
	switch len(waits) {
	case 0:
		return ""
	case 1:
		return "waits for " + waits[0]
	}
	return fmt.Sprintf("waits for %s, and for %d more", waits[0], len(waits)-1)
}
