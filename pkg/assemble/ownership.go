package assemble

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Pair is an object that two bundles list, by its ordinals in them.
type Pair struct{ Mine, Theirs int }

// Shared finds the objects that both bundles list and that only one module of a cluster may own, by their identities in
// that cluster (see Resolved). A Namespace is used by many. An identity without a value is nobody's.
func Shared(mine, theirs []fleet.BundleEntry) []Pair {
	var out []Pair
	at := positions(theirs)
	for i, e := range mine {
		if e.ID.Kind == "Namespace" && e.ID.Group == "" || hasPlaceholder(e.ID) {
			continue
		}
		if j, listed := at(e.ID); listed {
			out = append(out, Pair{i, j})
		}
	}
	return out
}

// Resolved are the entries of a bundle with the identities that they have in a cluster; ordinals stay. One that the values
// leave no name for keeps its placeholder.
func Resolved(entries []fleet.BundleEntry, values map[string]string) []fleet.BundleEntry {
	if !HasPlaceholders(entries) {
		return entries
	}
	out := slices.Clone(entries)
	for i, e := range out {
		if !hasPlaceholder(e.ID) {
			continue
		}
		if id, err := manifest.ResolveID(e.ID, values); err == nil {
			out[i].ID = id
		}
	}
	return out
}

// HasPlaceholders reports that identities in the bundle differ from cluster to cluster.
func HasPlaceholders(entries []fleet.BundleEntry) bool {
	return slices.ContainsFunc(entries, func(e fleet.BundleEntry) bool { return hasPlaceholder(e.ID) })
}

// positions finds entries by identity. Those of a bundle are in its order, unless their identities were resolved.
func positions(entries []fleet.BundleEntry) func(fleet.ObjectID) (int, bool) {
	if slices.IsSortedFunc(entries, func(a, b fleet.BundleEntry) int { return a.ID.Compare(b.ID) }) {
		return func(id fleet.ObjectID) (int, bool) {
			return slices.BinarySearchFunc(entries, id, func(e fleet.BundleEntry, id fleet.ObjectID) int { return e.ID.Compare(id) })
		}
	}
	index := make(map[fleet.ObjectID]int, len(entries))
	for i, e := range entries {
		index[e.ID] = i
	}
	return func(id fleet.ObjectID) (int, bool) {
		i, ok := index[id]
		return i, ok
	}
}

func hasPlaceholder(id fleet.ObjectID) bool {
	return strings.Contains(id.Name, "${") || strings.Contains(id.Namespace, "${")
}

// ConflictMessage is the sentence for an object that a module lists and another one owns.
func ConflictMessage(id fleet.ObjectID, owner fleet.ModuleRef) string {
	return fmt.Sprintf("%s: belongs to module %s; take it out of one of the two modules", id, owner.Display())
}

// AwaitingMessage is the sentence for an object that a module lists, and that its owner is about to let go.
func AwaitingMessage(id fleet.ObjectID, owner fleet.ModuleRef) string {
	return fmt.Sprintf("%s: waits for module %s to let it go", id, owner.Display())
}

// Listing is what a module is assigned in a cluster.
type Listing struct {
	Module     fleet.ModuleRef
	Generation uint64
	// Entries are resolved.
	Entries []fleet.BundleEntry
	// Before is what the module was assigned until then; nil: nothing.
	Before *Listing
	// Yields are those of the assignment; not used of one that is being made.
	Yields []fleet.Yield
}

// Rival is another module's assignment in the cluster, with the objects that it shares with the one being made.
type Rival struct {
	Module     fleet.ModuleRef
	Generation uint64
	Yields     []fleet.Yield
	Shared     []Pair
}

// Yields are the objects of an assignment that other modules of the cluster own: an object stays with the module that
// has it, and goes to the one that waits longest when that lets it go. Assignments that were made without a look at each
// other may both have an object; then it is of the older.
func Yields(a Listing, rivals []Rival) []fleet.Yield {
	claims := map[int][]claim{}
	for _, r := range rivals {
		waits := waiting(r.Yields)
		for _, p := range r.Shared {
			claims[p.Mine] = append(claims[p.Mine], claimOf(r.Module, r.Generation, waits, p.Theirs))
		}
	}
	if len(claims) == 0 {
		return nil
	}
	groups := map[yieldKey]*fleet.Yield{}
	before := a.before()
	for ordinal, others := range claims {
		own := before(a.Entries[ordinal].ID)
		owner := slices.MinFunc(append(others, own), compareClaims).module
		if owner == a.Module {
			continue
		}
		k := yieldKey{owner, own.since}
		if groups[k] == nil {
			groups[k] = &fleet.Yield{Owner: owner, Since: own.since}
		}
		groups[k].Ordinals = append(groups[k].Ordinals, ordinal)
	}
	return sortedYields(groups)
}

// claim is what a module has of an object that others list, too.
type claim struct {
	module fleet.ModuleRef
	waits  bool   // the object is another's
	since  uint64 // when it began to wait, or was assigned what it has
}

// compareClaims puts the owner first.
func compareClaims(a, b claim) int {
	switch {
	case a.waits != b.waits && b.waits:
		return -1
	case a.waits != b.waits:
		return 1
	}
	return cmp.Or(cmp.Compare(a.since, b.since), compareRef(a.module, b.module))
}

func claimOf(module fleet.ModuleRef, generation uint64, waits map[int]uint64, ordinal int) claim {
	if since, ok := waits[ordinal]; ok {
		return claim{module, true, since}
	}
	return claim{module, false, generation}
}

// waiting is the time from which each ordinal is waited for.
func waiting(yields []fleet.Yield) map[int]uint64 {
	if len(yields) == 0 {
		return nil
	}
	out := map[int]uint64{}
	for _, y := range yields {
		for _, o := range y.Ordinals {
			out[o] = y.Since
		}
	}
	return out
}

// before tells what the module had of an object until now. What it had not, it begins to wait for.
func (a Listing) before() func(fleet.ObjectID) claim {
	if a.Before == nil {
		return func(fleet.ObjectID) claim { return claim{a.Module, true, a.Generation} }
	}
	b := a.Before
	waits, position := waiting(b.Yields), positions(b.Entries)
	return func(id fleet.ObjectID) claim {
		at, listed := position(id)
		if !listed {
			return claim{a.Module, true, a.Generation}
		}
		return claimOf(a.Module, b.Generation, waits, at)
	}
}

type yieldKey struct {
	owner fleet.ModuleRef
	since uint64
}

func sortedYields(groups map[yieldKey]*fleet.Yield) []fleet.Yield {
	out := make([]fleet.Yield, 0, len(groups))
	for _, y := range groups {
		slices.Sort(y.Ordinals)
		out = append(out, *y)
	}
	slices.SortFunc(out, CompareYields)
	if len(out) == 0 {
		return nil
	}
	return out
}

// CompareYields orders the yields of a sync: by owner and since.
func CompareYields(a, b fleet.Yield) int {
	return cmp.Or(compareRef(a.Owner, b.Owner), cmp.Compare(a.Since, b.Since))
}

// EqualYields compares two lists of yields.
func EqualYields(a, b []fleet.Yield) bool {
	return slices.EqualFunc(a, b, func(x, y fleet.Yield) bool {
		return x.Owner == y.Owner && x.Since == y.Since && slices.Equal(x.Ordinals, y.Ordinals) && slices.Equal(x.Ending, y.Ending)
	})
}

// Course is where a module that owns objects in a cluster is going there.
type Course struct {
	// Stays says that nothing is under way: the module keeps what it is assigned.
	Stays bool
	// Unknown says that what it is going to list cannot be said yet.
	Unknown bool
	// Lists is what it is going to list; of a module that leaves the cluster, nothing.
	Lists map[uint64]bool
}

// LetsGo reports that the module is about to let an object go which it owns, or that it may be.
func (c Course) LetsGo(id fleet.ObjectID) bool {
	return !c.Stays && (c.Unknown || !c.Lists[HeirKey(id)])
}

// End notes in the yields of an assignment which of the objects their owners are about to let go. entries are resolved.
func End(yields []fleet.Yield, entries []fleet.BundleEntry, courses map[fleet.ModuleRef]Course) {
	for i := range yields {
		y := &yields[i]
		y.Ending = nil
		course, known := courses[y.Owner]
		for _, o := range y.Ordinals {
			if known && course.LetsGo(entries[o].ID) {
				y.Ending = append(y.Ending, o)
			}
		}
	}
}
