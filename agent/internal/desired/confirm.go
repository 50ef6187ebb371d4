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

// words are what a person may say of a module's sync that lets objects go.
type words struct {
	confirms []fleet.ModuleRef // of what the sync drops
	orders   []fleet.ModuleRef // to delete trackers
}

// unasked are the words about syncs that answer no question of this agent: the hub, whose store was restored or which the cluster
// has joined, was given them before it had heard what is here. They count for nothing until the hub has taken them back, as it does
// when it is told what waits, or stays, so that a person is asked.
func (m *merger) unasked(held *set) words {
	return words{
		confirms: m.firstSaid(held, held.unasked.confirms, func(x fleet.Sync) bool { return x.PruneConfirmed }),
		orders:   m.firstSaid(held, held.unasked.orders, func(x fleet.Sync) bool { return len(x.Recycles) > 0 }),
	}
}

// firstSaid are the modules of which something is said, and was since the first word on them; were are those of before.
func (m *merger) firstSaid(held *set, were []fleet.ModuleRef, said func(fleet.Sync) bool) (out []fleet.ModuleRef) {
	for _, x := range m.taken {
		was, known := m.syncs[x.Module]
		first := held.adopt || held.lineage == (Lineage{}) || known && was.Lineage != m.lineage
		if said(x) && (first || slices.Contains(were, x.Module)) {
			out = append(out, x.Module)
		}
	}
	for _, x := range m.lastGood { // of which the hub said nothing that could be taken
		if slices.Contains(were, x.Module) {
			out = append(out, x.Module)
		}
	}
	return out
}

// withoutUnasked is what the hub lists without the words that answer no question.
func (s *set) withoutUnasked(a fleet.Assemblage) fleet.Assemblage {
	if len(s.unasked.confirms)+len(s.unasked.orders) == 0 {
		return a
	}
	a.Syncs = slices.Clone(a.Syncs)
	for i, x := range a.Syncs {
		if slices.Contains(s.unasked.confirms, x.Module) {
			a.Syncs[i].PruneConfirmed, a.Syncs[i].PruneShown = false, nil
		}
		if !slices.Contains(s.unasked.orders, x.Module) {
			continue
		}
		a.Syncs[i].Recycles = slices.Clone(x.Recycles)
		for k := range x.Recycles {
			a.Syncs[i].Recycles[k].Unasked = true
		}
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
