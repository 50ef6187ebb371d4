package desired

import (
	"maps"
	"slices"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// Confirm says that a tombstone of this age was carried out; it is dropped once the hub lists it no longer. What goes because the
// cluster leaves confirms no tombstone, and neither does what an earlier lineage ordered.
func (s *Store) Confirm(m fleet.ModuleRef, age fleet.Age) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set.leaving.Objects != "" || age.Lineage != s.set.number() || age.Generation > s.set.highWater {
		return
	}
	if age.Compare(s.confirmed[m]) > 0 {
		s.confirmed[m] = age
	}
}

// carriedOut reports that a tombstone was carried out, and is of the lineage that is merged.
func (m *merger) carriedOut(x fleet.Tombstone) bool {
	done := m.confirmed[x.Module]
	return x.Lineage == m.lineage && done.Lineage == m.lineage && done.Generation >= x.Generation
}

// unasked are the confirms of syncs that answer no question of this agent: the hub, whose store was restored or which the cluster
// has joined, gave them before it had heard what would go here. They count for nothing until the hub has taken them back, as it does
// when it is told what waits, so that a person is asked.
func (m *merger) unasked(held *set) (out []fleet.ModuleRef) {
	for _, x := range m.taken {
		was, known := m.syncs[x.Module]
		first := held.adopt || held.lineage == (Lineage{}) || known && was.Lineage != m.lineage // its first word on this module
		if x.PruneConfirmed && (first || slices.Contains(held.unasked, x.Module)) {
			out = append(out, x.Module)
		}
	}
	for _, x := range m.lastGood { // of which the hub said nothing that could be taken
		if slices.Contains(held.unasked, x.Module) {
			out = append(out, x.Module)
		}
	}
	return out
}

// withoutUnasked is what the hub lists without the confirms that answer no question.
func (s *set) withoutUnasked(a fleet.Assemblage) fleet.Assemblage {
	if len(s.unasked) == 0 {
		return a
	}
	a.Syncs = slices.Clone(a.Syncs)
	for i, x := range a.Syncs {
		a.Syncs[i].PruneConfirmed = x.PruneConfirmed && !slices.Contains(s.unasked, x.Module)
	}
	a.Digest = assemble.Digest(a)
	return a
}

// settle forgets the confirmations of tombstones that are gone, and all of a lineage that is over.
func (m *merger) settle(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, module := range m.finished {
		delete(s.confirmed, module)
	}
	maps.DeleteFunc(s.confirmed, func(_ fleet.ModuleRef, age fleet.Age) bool { return age.Lineage != m.lineage })
}
