package plan

import (
	"fmt"
	"maps"
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
	// Uses are modules of one that goes: what is left of it may be used by what it has handed over to them, until that is through.
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

// GoesFirst reports that of two modules that go one does so before the other one, because it depends on that, at once or by way of others
// that go. In a circle none waits for another, so that none goes first.
func (all Standings) GoesFirst(of, other fleet.ModuleRef) bool {
	on := all.dependsOn(true)
	return assemble.Reaches(of, other, on) && !assemble.Reaches(other, of, on)
}

// awaitedBy reports that a module which goes waits for another one, as that was given what may use what is left of it, or comes before who was.
func (all Standings) awaitedBy(of, going fleet.ModuleRef) bool {
	return slices.ContainsFunc(all[going].Uses, func(user fleet.ModuleRef) bool {
		return user == of || all.Needs(user, of)
	})
}

// AwaitsDependency says for what a module waits before it begins a revision; empty: for nothing. Of modules that depend on each other in a
// circle, as revisions of different times may in one cluster, none waits for another; nor does one for the end of what waits for it.
func (all Standings) AwaitsDependency(of fleet.ModuleRef) string {
	var waits []string
	for _, m := range all[of].DependsOn {
		s := all[m]
		switch {
		case assemble.Reaches(m, of, all.dependsOn(false)), s.Going && all.awaitedBy(of, m):
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
	for _, m := range slices.SortedFunc(maps.Keys(all), func(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) }) {
		s := all[m]
		if !s.Listed || !s.Going || s.Gone || s.Elsewhere || !slices.Contains(s.DependsOn, of) || assemble.Reaches(of, m, all.dependsOn(true)) {
			continue
		}
		waits = append(waits, "module "+m.Display()+", which depends on it, to be gone"+inBrackets(s.Why))
	}
	return sentence(waits)
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
