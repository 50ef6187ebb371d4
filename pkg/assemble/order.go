package assemble

import "towline.dev/towline/pkg/fleet"

// Circle is a way from a module back to itself along what modules depend on, beginning and ending with it; nil: there is none.
func Circle(of fleet.ModuleRef, dependsOn func(fleet.ModuleRef) []fleet.ModuleRef) []fleet.ModuleRef {
	return way(of, of, dependsOn, map[fleet.ModuleRef]bool{})
}

// Reaches reports that a module depends on another one, by itself or through others.
func Reaches(from, to fleet.ModuleRef, dependsOn func(fleet.ModuleRef) []fleet.ModuleRef) bool {
	return way(from, to, dependsOn, map[fleet.ModuleRef]bool{}) != nil
}

// way is one of the ways to a module. What was seen leads to none.
func way(from, to fleet.ModuleRef, dependsOn func(fleet.ModuleRef) []fleet.ModuleRef, seen map[fleet.ModuleRef]bool) []fleet.ModuleRef {
	if seen[from] {
		return nil
	}
	seen[from] = true
	for _, next := range dependsOn(from) {
		if next == to {
			return []fleet.ModuleRef{from, to}
		}
		if rest := way(next, to, dependsOn, seen); rest != nil {
			return append([]fleet.ModuleRef{from}, rest...)
		}
	}
	return nil
}
