package assemble

import "towline.dev/towline/pkg/fleet"

// Circle is a way from a module back to itself along what modules depend on, beginning and ending with it; nil: there is none.
func Circle(of fleet.ModuleRef, dependsOn func(fleet.ModuleRef) []fleet.ModuleRef) []fleet.ModuleRef {
	return way(of, of, dependsOn, map[fleet.ModuleRef]bool{})
}

// Reaches reports that a module, or a step of one, depends on another one, by itself or through others.
func Reaches[T comparable](from, to T, dependsOn func(T) []T) bool {
	return way(from, to, dependsOn, map[T]bool{}) != nil
}

// way is one of the ways to a module. What was seen leads to none.
func way[T comparable](from, to T, dependsOn func(T) []T, seen map[T]bool) []T {
	if seen[from] {
		return nil
	}
	seen[from] = true
	for _, next := range dependsOn(from) {
		if next == to {
			return []T{from, to}
		}
		if rest := way(next, to, dependsOn, seen); rest != nil {
			return append([]T{from}, rest...)
		}
	}
	return nil
}
