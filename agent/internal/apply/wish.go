package apply

import (
	"cmp"
	"slices"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Wish says that a module lists an object which another one has, and waits for it. Wishes are not stored: every module
// makes them anew before anything is deleted.
type Wish struct {
	Module fleet.ModuleRef
	// Yields says that the hub, too, has given the object to another module. One that was not told so comes first.
	Yields bool
	// Since is the generation from which it waits: the lowest is next.
	Since uint64
	// Prune, Delete, Named, Legacy and Shared are what the module's record of the object will say of its policies.
	Prune, Delete         string
	Named, Legacy, Shared bool
}

// WishFor is the wish of a module for an object of which it cannot have the record.
func WishFor(r *Record) Wish {
	return Wish{Module: r.Module, Since: r.Born, Prune: r.Prune, Delete: r.Delete, Named: r.Named, Legacy: r.Legacy, Shared: r.Shared}
}

func compareWishes(a, b Wish) int {
	switch {
	case a.Yields != b.Yields && b.Yields:
		return -1
	case a.Yields != b.Yields:
		return 1
	}
	return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Module.String(), b.Module.String()))
}

// Want notes a wish; the newest of a module counts.
func (inv *Inventory) Want(id fleet.ObjectID, w Wish) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.wish(id, w)
}

// HandOver gives a module's object to another one that waits for it at this moment. Who does not wait any more gets
// nothing: it may be done with all that it had, and would never look at it again.
func (inv *Inventory) HandOver(ref fleet.ModuleRef, id fleet.ObjectID, to fleet.ModuleRef) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	old := inv.records[id]
	at := slices.IndexFunc(inv.wishes[id], func(w Wish) bool { return w.Module == to })
	if old == nil || old.Module != ref || at < 0 {
		return false
	}
	wish, next := inv.wishes[id][at], *old
	if (next.From == fleet.ModuleRef{}) {
		next.From = ref
	}
	next.Givers = next.WithGiver(ref)
	next.Module, next.Want, next.Deleting = to, fleet.Digest{}, fleet.Age{}
	next.Prune, next.Delete, next.Named, next.Legacy, next.Revision = wish.Prune, wish.Delete, wish.Named, wish.Legacy, 0
	next.Shared, next.Asked = wish.Shared, false // a person was asked about what the module before drops
	inv.put(&next)
	return true
}

// Given lists what a module handed over that is not through since with what its new module makes of it, in no order.
func (inv *Inventory) Given(ref fleet.ModuleRef) (out []plan.Record) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for id := range inv.given {
		if r := inv.records[id]; r.GivenBy(ref) && r.Module != ref {
			out = append(out, r.Record)
		}
	}
	return out
}

// Next is the module that an object goes to when its owner lets it go, if there is one.
func (inv *Inventory) Next(id fleet.ObjectID) (Wish, bool) {
	list := inv.Wishes(id)
	if len(list) == 0 {
		return Wish{}, false
	}
	return list[0], true
}

// Wishes are all that wait for an object, the next owner first.
func (inv *Inventory) Wishes(id fleet.ObjectID) []Wish {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.wishes[id]
}

// WantedBy is the module of Next.
func (inv *Inventory) WantedBy(id fleet.ObjectID) (fleet.ModuleRef, bool) {
	w, ok := inv.Next(id)
	return w.Module, ok
}

// Unwant ends the wishes of a module for objects that it does not list any more.
func (inv *Inventory) Unwant(ref fleet.ModuleRef, lists func(fleet.ObjectID) bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for id := range inv.wishes {
		if !lists(id) {
			inv.unwish(id, ref)
		}
	}
}

func (inv *Inventory) wish(id fleet.ObjectID, w Wish) {
	inv.unwish(id, w.Module)
	list := append(slices.Clone(inv.wishes[id]), w)
	slices.SortFunc(list, compareWishes)
	inv.wishes[id] = list
}

func (inv *Inventory) unwish(id fleet.ObjectID, ref fleet.ModuleRef) {
	list, waits := inv.wishes[id]
	if !waits {
		return
	}
	list = slices.DeleteFunc(slices.Clone(list), func(w Wish) bool { return w.Module == ref })
	if len(list) == 0 {
		delete(inv.wishes, id)
		return
	}
	inv.wishes[id] = list
}
