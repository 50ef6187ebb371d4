package worker

import (
	"maps"
	"slices"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// listed is what the newest sync of a module that is here lists as its own.
type listed struct {
	sync fleet.Sync
	keys map[uint64]bool
}

// keeps reports that a module which has an object is not about to let it go, by the newest word of the hub: its sync lists the
// object and does not yield it, or the hub has no word of the module. What a sync lists that cannot be read is not known yet.
func (m *Manager) keeps(owner fleet.ModuleRef, id fleet.ObjectID) bool {
	keeps, err := m.lists(owner, id)
	return err == nil && keeps
}

// mayKeep is keeps, and counts what cannot be read as listed.
func (m *Manager) mayKeep(owner fleet.ModuleRef, id fleet.ObjectID) bool {
	keeps, err := m.lists(owner, id)
	return err != nil || keeps
}

// lists is keeps, or why it is not known. A bundle is read once, however many objects are asked for.
func (m *Manager) lists(owner fleet.ModuleRef, id fleet.ObjectID) (bool, error) {
	s, removed := m.wordOn(owner)
	switch {
	case removed:
		return false, nil
	case s == nil:
		return true, nil
	}
	m.mu.Lock()
	l, known := m.listed[owner]
	m.mu.Unlock()
	if !known || l.sync.Bundle != s.Bundle || !maps.Equal(l.sync.Values, s.Values) || !assemble.EqualYields(l.sync.Yields, s.Yields) {
		b, err := m.o.Contents.Bundle(s.Bundle)
		if err != nil {
			return false, err
		}
		l = listed{sync: *s, keys: ownKeys(*s, b)}
		m.mu.Lock()
		if m.listed == nil {
			m.listed = map[fleet.ModuleRef]listed{}
		}
		m.listed[owner] = l
		m.mu.Unlock()
	}
	return l.keys[assemble.HeirKey(id)], nil
}

// wordOn is the newest word of the hub on a module: its sync, or that it is to go. Of one that the hub does not list there is
// none: that keeps all it has.
func (m *Manager) wordOn(ref fleet.ModuleRef) (s *fleet.Sync, removed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.desired
	if d == nil {
		return nil, false
	}
	if d.leave.Objects != "" {
		return nil, true
	}
	if i := slices.IndexFunc(d.assemblage.Syncs, func(s fleet.Sync) bool { return s.Module == ref }); i >= 0 {
		return &d.assemblage.Syncs[i], false
	}
	return nil, slices.ContainsFunc(d.assemblage.Tombstones, func(t fleet.Tombstone) bool { return t.Module == ref })
}

// ownKeys are those of what a sync lists, without what it yields to others.
func ownKeys(s fleet.Sync, b fleet.Bundle) map[uint64]bool {
	entries := slices.Clone(b.Entries)
	for ordinal := range yieldsOf(s) {
		if ordinal < len(entries) {
			entries[ordinal].ID = fleet.ObjectID{}
		}
	}
	return assemble.HeirKeys(entries, s.Values)
}
