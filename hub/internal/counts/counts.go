// Package counts keeps how every module stands in every cluster, and the sums of that for each module and each cluster. It
// owns which changed records concern which of these, so that a list costs what it shows and a change what it touches; it must
// not know how they are shown. All of it follows from the store and from who is connected, and is made anew at any time.
package counts

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
)

// Cell is how a module stands in a cluster: what of a tracker is summed and selected by.
type Cell struct {
	Revision   int64
	Generation uint64
	Counts     tracker.Counts
	// Was are the counts of the last word of a cluster that cannot be seen, WasFine whether all was well then.
	WasDrifted int
	WasFine    bool
	Health     fleet.Health
	Class      tracker.Class
	Fine       bool
	// Written says that the cluster had all of the revision, by its last word of what it is to have.
	Written  bool
	Removing bool
	// Hold says that the cluster was told to write nothing.
	Hold bool
	// Held is how many of its objects annotations in the cluster hold.
	Held int
	// Seen says that what is counted is the word of an agent that is there now.
	Seen bool
	// Bundle lists what the module is to have there; zero: nothing does.
	Bundle fleet.Digest
	// Rows is how many objects a list of all has; Unsure says that only making them tells how many.
	Rows   int
	Unsure bool
	// Extras says that objects of older revisions are reported, whatever the report is worth.
	Extras bool
	// Watched says that some of the objects are only watched, so that no bundle lists them.
	Watched bool
	// Corrected says that the agent has reported corrections.
	Corrected bool
	// Uncounted says that states of objects are known that the counts leave out: the newest assignment could not be made.
	Uncounted bool
}

// Module is the sum of a module over the clusters that have it.
type Module struct {
	Clusters, Objects, Drifted, Unjudged   int
	Healthy, Progressing, Bad, Away, Holds int
	// Ahead are those whose agents have seen a newer store of the hub; each is in one of all these columns.
	Ahead   int
	written map[int64]int // clusters that have all of a revision, by the revision
	// Held is how many objects of it annotations hold.
	Held int
	// Unlisted is in how many clusters there may be objects that the bundles do not list.
	Unlisted int
	bundles  map[fleet.Digest]int // clusters that are to have a bundle
}

// Bundles are those that clusters are to have, in no order.
func (m Module) Bundles() []fleet.Digest { return slices.Collect(maps.Keys(m.bundles)) }

// Updated is how many clusters have all of the revision.
func (m Module) Updated(revision int64) int { return m.written[revision] }

// Cluster is the sum of a cluster over the modules in it.
type Cluster struct {
	Modules, Healthy, Drifted, WasHealthy, WasDrifted int
	// Generation of the newest assignment.
	Generation uint64
	// Strays are modules that the agent reports and that it was not given.
	Strays []string
	// Bundle lists what the module is to have there; zero: nothing does.
	Bundle fleet.Digest
	// Rows is how many objects a list of all has, without those of modules that are unsure.
	Rows int
	// Unseen is in how many modules what is counted is no word of an agent that is there now, and there are rows. Unsure,
	// Extras, Corrected and Uncounted are of how many the cells say so, and Bad how many objects are.
	Unseen, Unsure, Extras, Corrected, Uncounted, Bad int
	// Held is how many objects annotations there hold.
	Held int
}

// followed are the classes whose records the index follows from.
var followed = []string{store.DesiredPrefix, store.ObservedPrefix, store.SessionPrefix, store.AckPrefix, store.ConditionPrefix,
	store.ClusterPrefix, store.ModulePrefix, store.StartPrefix, store.RolloutPrefix, store.RevisionPrefix, store.AcceptedKey, store.AcceptedPrefix}

// Index is all cells and their sums. The zero value is not usable.
type Index struct {
	store     store.Store
	connected func(fleet.ClusterName) bool

	touch   sync.Mutex
	touched map[fleet.ClusterName]bool

	mu       sync.RWMutex
	after    []int64 // for each class followed, up to which revision its changes are in; nil: nothing is
	clusters map[fleet.ClusterName]*cluster
	modules  map[fleet.ModuleRef]*module
	cells    map[Cell]*shared    // what is in cells of clusters: most modules stand alike in many
	names    []fleet.ClusterName // of clusters, sorted
	refs     []fleet.ModuleRef   // of modules, sorted
	// Where modules are to be, and the clusters that there are.
	placings map[fleet.ModuleRef]*placing
	lands    map[fleet.ClusterName]*land
}

// shared is a cell, and how many modules in clusters stand so.
type shared struct {
	Cell
	uses int
}

// keep is the one cell that says this, used once more.
func (x *Index) keep(c Cell) *Cell {
	s := x.cells[c]
	if s == nil {
		s = &shared{Cell: c}
		x.cells[c] = s
	}
	s.uses++
	return &s.Cell
}

// release ends a use of a cell.
func (x *Index) release(c Cell) {
	s := x.cells[c]
	if s.uses--; s.uses == 0 {
		delete(x.cells, c)
	}
}

type cluster struct {
	place  *record.Place
	cells  map[fleet.ModuleRef]*Cell
	refs   []fleet.ModuleRef // of the cells, sorted
	strays map[fleet.ModuleRef]bool
	sum    Cluster
	older  bool // the cell of the newest generation is not there any more
}

type module struct {
	sum      Module
	clusters []fleet.ClusterName // that have it, sorted
}

// insert puts x into a sorted list, if it is not there.
func insert[T any](list []T, x T, compare func(a, b T) int) []T {
	i, found := slices.BinarySearchFunc(list, x, compare)
	if found {
		return list
	}
	return slices.Insert(list, i, x)
}

// without takes x out of a sorted list, if it is there.
func without[T any](list []T, x T, compare func(a, b T) int) []T {
	i, found := slices.BinarySearchFunc(list, x, compare)
	if !found {
		return list
	}
	return slices.Delete(list, i, i+1)
}

// compareRefs sorts modules as lists do: by project, then by name. Full names are in another order, for a dash is before a slash.
func compareRefs(a, b fleet.ModuleRef) int {
	return cmp.Or(strings.Compare(a.Project, b.Project), strings.Compare(a.Name, b.Name))
}

func compareNames(a, b fleet.ClusterName) int { return strings.Compare(string(a), string(b)) }

// New makes an index over a store. It reads nothing before it is asked.
func New(s store.Store, connected func(fleet.ClusterName) bool) *Index {
	return &Index{store: s, connected: connected, touched: map[fleet.ClusterName]bool{}}
}

// Touch says that a cluster's agent came or went.
func (x *Index) Touch(c fleet.ClusterName) {
	x.touch.Lock()
	defer x.touch.Unlock()
	x.touched[c] = true
}

// Read calls fn with all changes in that were committed, or shown to anyone, before the call.
func (x *Index) Read(ctx context.Context, fn func(*View) error) error {
	if err := x.refresh(ctx); err != nil {
		return err
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	return fn(&View{x})
}
