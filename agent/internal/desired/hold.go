package desired

import (
	"maps"
	"slices"

	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// hold is one that came with a word on a module which was not taken. It holds what is kept of the module for as long as the newest word says so:
// whoever stops a module must not have it go on for what else that word says. It ends no hold of what is kept, for a word that is not
// understood may say it in another way.
type hold struct {
	All     bool     `json:"all,omitempty"`
	Objects []uint64 `json:"objects,omitempty"` // single ones, by their keys
}

// heed takes note of the hold in a word that is not taken.
func (m *merger) heed(module fleet.ModuleRef, x hold) {
	if x.All || len(x.Objects) > 0 {
		m.holds[module] = x
	}
}

// remaining are the holds of words that were not taken, for what is kept of their modules; that of a module which is not listed any more stays as
// it was said last. None is nil.
func (m *merger) remaining(before map[fleet.ModuleRef]hold, a fleet.Assemblage) map[fleet.ModuleRef]hold {
	kept := map[fleet.ModuleRef]bool{}
	for _, x := range slices.Concat(m.lastGood, m.strays) {
		kept[x.Module] = true
	}
	for _, x := range m.leftovers {
		kept[x.Module] = true
	}
	out := maps.Clone(before)
	for _, x := range a.Syncs {
		delete(out, x.Module)
	}
	for _, x := range a.Tombstones {
		delete(out, x.Module)
	}
	if out == nil {
		out = map[fleet.ModuleRef]hold{}
	}
	maps.Copy(out, m.holds)
	maps.DeleteFunc(out, func(module fleet.ModuleRef, _ hold) bool { return !kept[module] })
	if len(out) == 0 {
		return nil
	}
	return out
}

// underHolds is what is held, with the holds of words that were not taken.
func (s *set) underHolds(a fleet.Assemblage, strays []fleet.Sync) (fleet.Assemblage, []fleet.Sync) {
	if len(s.holds) == 0 {
		return a, strays
	}
	a.Syncs, a.Tombstones, strays = slices.Clone(a.Syncs), slices.Clone(a.Tombstones), slices.Clone(strays)
	for _, list := range [][]fleet.Sync{a.Syncs, strays} {
		for i := range list {
			x := s.holds[list[i].Module]
			list[i].Hold, list[i].Held = list[i].Hold || x.All, x.with(list[i].Held)
		}
	}
	for i := range a.Tombstones {
		if _, found := s.holds[a.Tombstones[i].Module]; found { // of a module of which an object is to stay, nothing goes
			a.Tombstones[i].Hold = true
		}
	}
	a.Digest = assemble.Digest(a)
	return a, strays
}

// with are the keys of single objects that are held, these and those; sorted, each once.
func (x hold) with(keys []uint64) []uint64 {
	if len(x.Objects) == 0 {
		return keys
	}
	out := slices.Concat(keys, x.Objects)
	slices.Sort(out)
	return slices.Compact(out)
}
