package assemble

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// HeirKey names an object in the heirs of a sync or a tombstone, by the identity that it has in its cluster: what lives in no
// namespace has none there.
func HeirKey(id fleet.ObjectID) uint64 {
	if namespaced, known := manifest.Namespaced(id.Group, id.Kind); known && !namespaced {
		id.Namespace = ""
	}
	d := fleet.DigestOf([]byte(strings.Join([]string{id.Group, id.Kind, id.Namespace, id.Name}, "/")))
	return binary.BigEndian.Uint64(d[:8])
}

// appendKeys adds the keys that an object may have in a cluster, by the identity that it was rendered with. Where only the
// cluster knows whether its kind has namespaces there are two: two modules may render one object into different namespaces,
// and objects of one name in two namespaces must not be taken for one.
func appendKeys(keys []uint64, id fleet.ObjectID) []uint64 {
	keys = append(keys, HeirKey(id))
	if _, known := manifest.Namespaced(id.Group, id.Kind); known || id.Namespace == "" {
		return keys
	}
	id.Namespace = ""
	return append(keys, HeirKey(id))
}

// HeldKeys are the keys of objects that a hold speaks of, by the identities that they were rendered with, ascending.
func HeldKeys(ids []fleet.ObjectID) []uint64 {
	var keys []uint64
	for _, id := range ids {
		keys = appendKeys(keys, id)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Holds reports that an object is one of those whose keys are given.
func Holds(keys []uint64, id fleet.ObjectID) bool {
	if len(keys) == 0 {
		return false
	}
	_, found := slices.BinarySearch(keys, HeirKey(id))
	return found
}

// HeirKeys are the keys of the entries of a bundle with values put in.
func HeirKeys(entries []fleet.BundleEntry, values map[string]string) map[uint64]bool {
	out := make(map[uint64]bool, len(entries))
	var keys []uint64
	for _, e := range Resolved(entries, values) {
		keys = appendKeys(keys[:0], e.ID)
		for _, k := range keys {
			out[k] = true
		}
	}
	return out
}

// Dropped are the keys of the entries of one bundle that another one does not have. Both are resolved.
func Dropped(from, to []fleet.BundleEntry) []uint64 {
	var out []uint64
	at := positions(to)
	for _, e := range from {
		if _, listed := at(e.ID); !listed {
			out = appendKeys(out, e.ID)
		}
	}
	return out
}

// Claimant is another module of a cluster, by what it is about to list there.
type Claimant struct {
	Module fleet.ModuleRef
	// Unknown says that what it is about to list cannot be said yet.
	Unknown bool
	// Lists is what its newest revision lists, and Has what it is assigned in the cluster already.
	Lists, Has map[uint64]bool
}

// Heirs are the modules that are about to list something of what a module lets go, in the order of their names. What a
// module is assigned already is no matter of heirs: the agent knows that it waits. Of several of which nothing can be said
// yet one stands for all. A module may be about to list several things one after the other.
func Heirs(dropped map[uint64]bool, others []Claimant) []fleet.Heir {
	if len(dropped) == 0 {
		return nil
	}
	var unknown *fleet.ModuleRef
	lists := map[fleet.ModuleRef]map[uint64]bool{}
	for _, c := range others {
		if c.Unknown {
			if unknown == nil || compareRef(c.Module, *unknown) < 0 {
				unknown = &c.Module
			}
			continue
		}
		for k := range dropped {
			if c.Lists[k] && !c.Has[k] {
				if lists[c.Module] == nil {
					lists[c.Module] = map[uint64]bool{}
				}
				lists[c.Module][k] = true
			}
		}
	}
	if unknown != nil {
		delete(lists, *unknown) // all is kept for it, and an agent takes no list that names a module twice
	}
	var out []fleet.Heir
	for m, keys := range lists {
		out = append(out, fleet.Heir{Module: m, Keys: slices.Sorted(maps.Keys(keys))})
	}
	if unknown != nil {
		out = append(out, fleet.Heir{Module: *unknown, Unknown: true, Keys: slices.Sorted(maps.Keys(dropped))})
	}
	slices.SortFunc(out, func(a, b fleet.Heir) int { return compareRef(a.Module, b.Module) })
	return out
}

// WaitsForUnknown reports that nobody can say yet who all the heirs are.
func WaitsForUnknown(heirs []fleet.Heir) bool {
	return slices.ContainsFunc(heirs, func(h fleet.Heir) bool { return h.Unknown })
}

// KeepsAll reports that all that is kept for the heirs is kept by those of a list already.
func KeepsAll(list, heirs []fleet.Heir) bool {
	kept := map[uint64]bool{}
	for _, h := range list {
		for _, k := range h.Keys {
			kept[k] = true
		}
	}
	return !slices.ContainsFunc(heirs, func(h fleet.Heir) bool {
		return slices.ContainsFunc(h.Keys, func(k uint64) bool { return !kept[k] })
	})
}

// HeirOf finds who is to have an object.
func HeirOf(heirs []fleet.Heir, id fleet.ObjectID) (to fleet.Heir, found bool) {
	if len(heirs) == 0 {
		return fleet.Heir{}, false
	}
	key := HeirKey(id)
	for _, h := range heirs {
		if _, listed := slices.BinarySearch(h.Keys, key); listed && (!found || to.Unknown) {
			to, found = h, true
		}
	}
	return to, found
}

// EqualHeirs compares two lists of heirs.
func EqualHeirs(a, b []fleet.Heir) bool {
	return slices.EqualFunc(a, b, func(x, y fleet.Heir) bool {
		return x.Module == y.Module && x.Unknown == y.Unknown && slices.Equal(x.Keys, y.Keys)
	})
}
