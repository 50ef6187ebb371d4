package apply

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"

	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// State is where the inventory is kept. Write is atomic and durable when it returns.
type State interface {
	Read(ctx context.Context, name string) ([]byte, error)
	Write(ctx context.Context, name string, data []byte) error
	Remove(ctx context.Context, name string) error
	List(ctx context.Context, prefix string) ([]string, error)
}

// Inventory is the agent's own record of the objects it owns, by identity. Changes are seen at once, and are durable
// when Sync returns; changes of many modules share a write. It is a base and the segments after it.
type Inventory struct {
	state State
	vault Vault
	log   *slog.Logger
	Paths *Interner

	mu      sync.Mutex
	records map[fleet.ObjectID]*Record
	modules map[fleet.ModuleRef]map[fleet.ObjectID]bool
	wishes  map[fleet.ObjectID][]Wish // the next owner first
	given   map[fleet.ObjectID]bool   // that have givers
	losses  map[fleet.ModuleRef]plan.Change
	// revisions are those whose drops were noted last.
	revisions map[fleet.ModuleRef]int64
	listings  map[fleet.ModuleRef]Listing
	left      map[fleet.ModuleRef]map[string]bool // by removals
	dirty     map[fleet.ObjectID]bool
	lossy     map[fleet.ModuleRef]bool // whose losses, or what was left of them, are to be written
	change    uint64                   // counts changes
	owned     struct {                 // how many objects are ours, as counted at that change; 0: never
		at uint64
		n  int
	}
	durable uint64        // changes that are written
	failed  error         // why the last write failed
	moved   chan struct{} // closed when durable or failed changes
	urgent  chan struct{}
	soon    chan struct{}

	segments         []string // names on disk, in order
	sequence         uint64
	baseBytes, bytes int
	lost             bool
	partial          bool // a segment was missing when it was read
	note             func(newest string)
	rewrite          bool // the next write is a base
}

// Vault encrypts values that must not lie in the state as they are.
type Vault interface {
	Seal(purpose string, plain []byte) ([]byte, error)
	Open(purpose string, sealed []byte) ([]byte, error)
}

// Open reads the inventory. One that is corrupt is set aside: Lost then says true, and nothing in it can be deleted.
func Open(ctx context.Context, state State, vault Vault, log *slog.Logger) (*Inventory, error) {
	inv := &Inventory{
		state: state, vault: vault, log: log, Paths: NewInterner(),
		records: map[fleet.ObjectID]*Record{}, modules: map[fleet.ModuleRef]map[fleet.ObjectID]bool{},
		wishes: map[fleet.ObjectID][]Wish{}, given: map[fleet.ObjectID]bool{}, dirty: map[fleet.ObjectID]bool{},
		losses: map[fleet.ModuleRef]plan.Change{}, revisions: map[fleet.ModuleRef]int64{}, listings: map[fleet.ModuleRef]Listing{}, left: map[fleet.ModuleRef]map[string]bool{}, lossy: map[fleet.ModuleRef]bool{},
		note: func(string) {}, moved: make(chan struct{}), urgent: make(chan struct{}, 1), soon: make(chan struct{}, 1),
	}
	err := inv.load(ctx)
	if errors.Is(err, fleet.ErrCorrupt) {
		log.Error("inventory is corrupt: what it listed is rebuilt from the objects' marks and is not deleted", "error", err)
		inv.reset()
		inv.lost = true
		return inv, nil
	}
	if err != nil {
		return nil, err
	}
	return inv, nil
}

// Lost says that an inventory was there and could not be read.
func (inv *Inventory) Lost() bool { return inv.lost }

// Partial says that a part of the inventory was missing when it was read.
func (inv *Inventory) Partial() bool { return inv.partial }

// Recall holds what was read against the newest part that was noted: if none is as new, that one is missing, and no other one
// names it. From here on each part that is written is noted.
func (inv *Inventory) Recall(noted string, note func(newest string)) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.note = note
	if newest, err := strconv.ParseUint(noted, 10, 64); err == nil && newest > inv.sequence {
		inv.log.Error("the newest part of the inventory is missing: objects that only it listed are searched for by their marks", "part", noted)
		inv.partial, inv.rewrite, inv.sequence = true, true, newest
	}
}

// Empty says that there are no records.
func (inv *Inventory) Empty() bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return len(inv.records) == 0
}

// Get is the record of an object, or nil.
func (inv *Inventory) Get(id fleet.ObjectID) *Record {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.records[id]
}

// Module lists the records of a module, in no order.
func (inv *Inventory) Module(ref fleet.ModuleRef) []*Record {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	out := make([]*Record, 0, len(inv.modules[ref]))
	for id := range inv.modules[ref] {
		out = append(out, inv.records[id])
	}
	return out
}

// Each calls f with the records of a module, in no order. It must not call the inventory.
func (inv *Inventory) Each(ref fleet.ModuleRef, f func(*Record)) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for id := range inv.modules[ref] {
		f(inv.records[id])
	}
}

// Kinds has one record of each kind and version of which there are any.
func (inv *Inventory) Kinds() []plan.Record {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	var out []plan.Record
	seen := map[[3]string]bool{}
	for id, r := range inv.records {
		if kind := [3]string{id.Group, r.Version, id.Kind}; !seen[kind] {
			seen[kind] = true
			out = append(out, r.Record)
		}
	}
	return out
}

// OwnedBeside is how many objects are ours, without that of an identity.
func (inv *Inventory) OwnedBeside(id fleet.ObjectID) int {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if inv.owned.at != inv.change+1 {
		inv.owned.at, inv.owned.n = inv.change+1, 0
		for _, r := range inv.records {
			if r.State == plan.Owned {
				inv.owned.n++
			}
		}
	}
	if r := inv.records[id]; r != nil && r.State == plan.Owned {
		return inv.owned.n - 1
	}
	return inv.owned.n
}

// Modules lists the modules that have records.
func (inv *Inventory) Modules() []fleet.ModuleRef {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	out := make([]fleet.ModuleRef, 0, len(inv.modules))
	for ref := range inv.modules {
		out = append(out, ref)
	}
	return out
}

// Claim notes an intent for an object that nobody has. It is false if another module has it; that one then learns, by
// Next, who waits for the object.
func (inv *Inventory) Claim(r *Record) (owner fleet.ModuleRef, ok bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if old := inv.records[r.ID]; old != nil {
		if old.Module != r.Module {
			inv.wish(r.ID, WishFor(r))
			return old.Module, false
		}
		return r.Module, true
	}
	inv.put(r)
	return r.Module, true
}

// Outdate takes from a record the version of a write that the API server does not have any more: the object has this one.
func (inv *Inventory) Outdate(id fleet.ObjectID, uid string, version uint64) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	old := inv.records[id]
	if old == nil || old.UID != uid || old.ResourceVersion <= version {
		return
	}
	next := *old
	next.ResourceVersion = 0
	inv.put(&next)
}

// Rewrite has everything written once more, in place of what the store may have lost.
func (inv *Inventory) Rewrite() {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.rewrite = true
	inv.change++
	dirty.Poke(inv.urgent)
}

// Find notes an object that proves to be a module's, unless a write of ours says so already. Another module's intent
// proves nothing against it: that module waits for the object then, and is returned.
func (inv *Inventory) Find(r *Record) (waits fleet.ModuleRef, found bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	old := inv.records[r.ID]
	if old != nil && (old.Module == r.Module || old.Written()) {
		return fleet.ModuleRef{}, false
	}
	inv.put(r)
	if old == nil {
		return fleet.ModuleRef{}, true
	}
	inv.wish(r.ID, WishFor(old))
	return old.Module, true
}

// Put notes a record.
func (inv *Inventory) Put(r *Record) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.put(r)
}

// Amend changes a copy of the module's record of an object and notes it, unless change says that nothing did.
func (inv *Inventory) Amend(ref fleet.ModuleRef, id fleet.ObjectID, change func(*Record) bool) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	old := inv.records[id]
	if old == nil || old.Module != ref {
		return false
	}
	next := *old
	if !change(&next) {
		return false
	}
	inv.put(&next)
	return true
}

func (inv *Inventory) put(r *Record) {
	if old := inv.records[r.ID]; old != nil && old.Module != r.Module {
		inv.unlist(old)
	}
	inv.unwish(r.ID, r.Module)
	inv.records[r.ID] = r
	if delete(inv.given, r.ID); r.Givers != "" {
		inv.given[r.ID] = true
	}
	of := inv.modules[r.Module]
	if of == nil {
		of = map[fleet.ObjectID]bool{}
		inv.modules[r.Module] = of
	}
	of[r.ID] = true
	inv.touch(r.ID)
}

// Drop forgets an object, if it is still the module's.
func (inv *Inventory) Drop(ref fleet.ModuleRef, id fleet.ObjectID) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	r := inv.records[id]
	if r == nil || r.Module != ref {
		return
	}
	inv.unlist(r)
	delete(inv.records, id)
	if c := inv.losses[ref]; c.Owned > 0 && c.Unanswered(r.Record) {
		c.Gone++
		inv.lose(ref, c)
	}
	inv.touch(id)
}

// Losing is what the module loses, as it was noted last; what was dropped since that was to be deleted is in it.
func (inv *Inventory) Losing(ref fleet.ModuleRef) plan.Change {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.losses[ref]
}

// Lose notes what the module loses.
func (inv *Inventory) Lose(ref fleet.ModuleRef, c plan.Change) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if inv.losses[ref] == c {
		return
	}
	inv.lose(ref, c)
	inv.change++
	dirty.Poke(inv.soon)
}

func (inv *Inventory) lose(ref fleet.ModuleRef, c plan.Change) {
	inv.lossy[ref] = true
	if c == (plan.Change{}) {
		delete(inv.losses, ref)
		return
	}
	inv.losses[ref] = c
}

// Succeed notes that a revision of a module follows those before: what it does not list was listed last by the one before it, as far
// as that is known.
func (inv *Inventory) Succeed(ref fleet.ModuleRef, revision int64, lists func(fleet.ObjectID) bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	before := inv.revisions[ref]
	for id := range inv.modules[ref] {
		r, next := inv.records[id], int64(0)
		if !lists(id) {
			next = cmp.Or(r.Revision, before, plan.RevisionUnknown)
		}
		if next != r.Revision {
			noted := *r
			noted.Revision = next
			inv.put(&noted)
		}
	}
	if before != revision {
		inv.succeed(ref, revision)
		inv.lossy[ref] = true
		inv.change++
		dirty.Poke(inv.soon)
	}
}

func (inv *Inventory) succeed(ref fleet.ModuleRef, revision int64) {
	if revision == 0 {
		delete(inv.revisions, ref)
		delete(inv.listings, ref)
		return
	}
	inv.revisions[ref] = revision
}

// Listing is how a hub lists the objects of a module.
type Listing struct {
	Lineage  uint64
	Revision int64
	Bundle   fleet.Digest
}

// Listed notes a listing of which every object was looked at since it came.
func (inv *Inventory) Listed(ref fleet.ModuleRef, l Listing) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if inv.listings[ref] == l {
		return
	}
	inv.listings[ref] = l
	inv.lossy[ref] = true
	inv.change++
	dirty.Poke(inv.soon)
}

// Renews reports that a listing is by another revision than the one that was noted last. Each hub numbers revisions for itself.
func (inv *Inventory) Renews(ref fleet.ModuleRef, l Listing) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	before, known := inv.listings[ref]
	return known && (l.Bundle != before.Bundle || l.Lineage == before.Lineage && l.Revision != before.Revision)
}

// Leave notes what the removal of a module leaves in the cluster, in the words of its last message. What is noted before the record
// goes is durable with that.
func (inv *Inventory) Leave(ref fleet.ModuleRef, what string) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if inv.left[ref][what] {
		return
	}
	inv.leave(ref, what)
	inv.lossy[ref] = true
	inv.change++
	dirty.Poke(inv.soon)
}

func (inv *Inventory) leave(ref fleet.ModuleRef, what ...string) {
	if inv.left[ref] == nil {
		inv.left[ref] = map[string]bool{}
	}
	for _, x := range what {
		inv.left[ref][x] = true
	}
}

// Left is what the removal of a module has left, in no order.
func (inv *Inventory) Left(ref fleet.ModuleRef) []string {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return slices.Collect(maps.Keys(inv.left[ref]))
}

// ForgetLeft forgets what removals have left of the modules that are not removed any more.
func (inv *Inventory) ForgetLeft(removed func(fleet.ModuleRef) bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for ref := range inv.left {
		if removed(ref) {
			continue
		}
		delete(inv.left, ref)
		inv.lossy[ref] = true
		inv.change++
		dirty.Poke(inv.soon)
	}
}

// lossOf is what is written of a module.
func (inv *Inventory) lossOf(ref fleet.ModuleRef) loss {
	return loss{ref, inv.losses[ref], slices.Sorted(maps.Keys(inv.left[ref])), inv.revisions[ref], inv.listings[ref]}
}

// Rename gives an object of the module another identity. Where another record is already, that one stays.
func (inv *Inventory) Rename(ref fleet.ModuleRef, from, to fleet.ObjectID) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	old := inv.records[from]
	if old == nil || old.Module != ref {
		return
	}
	inv.unlist(old)
	delete(inv.records, from)
	inv.touch(from)
	if inv.records[to] == nil {
		next := *old
		next.ID = to
		inv.put(&next)
	}
}

func (inv *Inventory) unlist(r *Record) {
	of := inv.modules[r.Module]
	delete(of, r.ID)
	delete(inv.given, r.ID)
	if len(of) == 0 {
		delete(inv.modules, r.Module)
	}
}

func (inv *Inventory) touch(id fleet.ObjectID) {
	inv.dirty[id] = true
	inv.change++
	signal := inv.soon
	if len(inv.dirty) >= flushRecords {
		signal = inv.urgent
	}
	dirty.Poke(signal)
}
