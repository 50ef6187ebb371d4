// Package desired holds what the cluster should run: the last accepted assemblage with its contents, kept locally, so
// that an agent works without its hub. It owns the rules by which an index is taken or refused (absence is never intent)
// and the pin of the hub; it must not know the connection, nor how objects are applied.
package desired

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"towline.dev/towline/agent/internal/state"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// State is durable storage of named bytes; what is not there is fleet.ErrNotFound.
type State interface {
	Read(ctx context.Context, name string) ([]byte, error)
	Write(ctx context.Context, name string, data []byte) error
	// WriteAll writes several; the last is not seen before the others are durable.
	WriteAll(ctx context.Context, items ...state.Item) error
	Remove(ctx context.Context, name string) error
	List(ctx context.Context, prefix string) ([]string, error)
}

// Lineage names the store that generations count in; they are compared within one only.
type Lineage struct {
	HubID       string `json:"hubID"`
	Incarnation string `json:"incarnation"`
}

// Held is what the agent works by.
type Held struct {
	// Assemblage is what is to be applied and removed. Its Tombstones include those that the hub forgot before they were
	// carried out, so it may differ from what the hub lists.
	Assemblage fleet.Assemblage
	// Strays are held although the hub does not list them; nothing of theirs is deleted.
	Strays []fleet.Sync
	// Lineage is where it came from.
	Lineage Lineage
	// Hubs are those of the lineages that were taken one after the other, this one last. Their places, from 1 on, are the
	// numbers in Assemblage and Strays.
	Hubs []string
	// Frozen says why nothing may be written; empty: it may.
	Frozen string
	// Behind says why what is desired is not known before the hub says it; empty: it is.
	Behind string
	// Leaving is the order to leave the fleet, if there is one.
	Leaving fleet.Leave
}

// Modules are those that a status is owed for, sorted.
func (h Held) Modules() []fleet.ModuleRef {
	seen := map[fleet.ModuleRef]bool{}
	for _, s := range h.Assemblage.Syncs {
		seen[s.Module] = true
	}
	for _, t := range h.Assemblage.Tombstones {
		seen[t.Module] = true
	}
	for _, s := range h.Strays {
		seen[s.Module] = true
	}
	return slices.SortedFunc(maps.Keys(seen), compareModules)
}

// set is all that is held, as one immutable value.
type set struct {
	lineage Lineage
	// past are the lineages that were taken before. Each new join begins another one, also with the same hub: its store
	// may have been put back, and count anew.
	past []Lineage
	// join is the id of the join token by which the agent came to this hub.
	join string
	// adopt is true from a new join until the first index: the next lineage and generation are taken, whatever they are.
	adopt bool
	// highWater is the highest generation of an accepted index.
	highWater uint64
	// listed is what the hub lists, but for refused syncs, which stay as they were.
	listed fleet.Assemblage
	// refused are the modules whose listed sync was not taken.
	refused []fleet.ModuleRef
	// strays and leftovers are syncs and tombstones that the hub does not list.
	strays    []fleet.Sync
	leftovers []fleet.Tombstone
	// floor is the generation of each module's last tombstone that was carried out and forgotten.
	floor    map[fleet.ModuleRef]uint64
	previous []fleet.Digest
	// holds are those in what was refused; nil: there is none.
	holds map[fleet.ModuleRef]hold
	// unasked are the modules of which people's words came with the first word of the lineage.
	unasked words
	frozen  string
	behind  string
	leaving fleet.Leave
	// loose are packs that the record carries, because they have no files yet. Sets share it: it is never changed.
	loose map[fleet.Digest][]byte
}

func emptySet() *set {
	return &set{listed: assemble.Build(nil, nil, false, 0), floor: map[fleet.ModuleRef]uint64{}}
}

// number is that of the lineage, or of the last one that there was; 0: there was none.
func (s *set) number() uint64 {
	if s.lineage == (Lineage{}) {
		return uint64(len(s.past))
	}
	return uint64(len(s.past)) + 1
}

// ahead is the number of the lineage whose index comes next.
func (s *set) ahead() uint64 {
	if s.adopt || s.lineage == (Lineage{}) {
		return s.number() + 1
	}
	return s.number()
}

// closed are all lineages, the last one too.
func (s *set) closed() []Lineage {
	if s.lineage == (Lineage{}) {
		return s.past
	}
	return append(slices.Clone(s.past), s.lineage)
}

func (s *set) hubs() []string {
	var hubs []string
	for _, l := range s.closed() {
		hubs = append(hubs, l.HubID)
	}
	return hubs
}

// roots are the contents that the set needs: bundles and policies.
func (s *set) roots() []fleet.Digest {
	seen := map[fleet.Digest]bool{}
	for _, list := range [][]fleet.Sync{s.listed.Syncs, s.strays} {
		for _, sync := range list {
			seen[sync.Bundle] = true
			if !sync.Policies.IsZero() {
				seen[sync.Policies] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(seen), compareDigests)
}

// Options are what a Store needs.
type Options struct {
	State State
	// Noted is called with the high water whenever an index was accepted.
	Noted func(HighWater)
	// Log defaults to a logger that drops everything.
	Log *slog.Logger
}

// Store is the desired state. Accept, Tidy, Adopt, Freeze and Leave are called by one goroutine at a time; the others by any.
type Store struct {
	state State
	noted func(HighWater)
	log   *slog.Logger

	mu        sync.RWMutex
	set       *set
	contents  contents
	confirmed map[fleet.ModuleRef]fleet.Age
	marks     Marks
	saved     Marks // of these, what is durable

	untidy bool // contents may be kept that nobody needs
}

// Open loads what was accepted last. Damaged state is reported and fetched again from the hub; a damaged record of what
// is desired begins anew, which deletes nothing.
func Open(ctx context.Context, o Options) (*Store, error) {
	if o.State == nil {
		return nil, fleet.Invalid("desired", "State is required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Noted == nil {
		o.Noted = func(HighWater) {}
	}
	s := &Store{state: o.State, noted: o.Noted, log: o.Log, set: emptySet(), confirmed: map[fleet.ModuleRef]fleet.Age{}, untidy: true}
	loaded, err := readSet(ctx, o.State)
	switch {
	case errors.Is(err, fleet.ErrCorrupt):
		o.Log.Error("the record of what is desired is damaged; starting without it", "error", err)
	case err != nil:
		return nil, err
	default:
		s.set = loaded
	}
	if s.marks, err = readMarks(ctx, o.State); err != nil {
		return nil, err
	}
	s.saved = s.marks
	if s.contents, err = loadContents(ctx, o.State, s.set, o.Log); err != nil {
		return nil, err
	}
	if err := s.sweep(ctx); err != nil {
		s.log.Warn("old contents are not removed yet", "error", err)
	}
	s.untidy = s.untidy || len(s.set.loose) > 0
	return s, nil
}

// Held is what to work by now.
func (s *Store) Held() Held {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.set.held()
}

func (s *set) held() Held {
	a := s.withoutUnasked(s.listed)
	if len(s.leftovers) > 0 {
		a.Tombstones = slices.SortedFunc(slices.Values(append(slices.Clone(a.Tombstones), s.leftovers...)),
			func(x, y fleet.Tombstone) int { return compareModules(x.Module, y.Module) })
		a.Digest = assemble.Digest(a)
	}
	a, strays := s.underHolds(a, s.strays)
	a.Refused = s.refused
	a.Lineage = s.ahead() // nothing is deleted for a lineage that a new join has ended
	return Held{Assemblage: a, Strays: strays, Lineage: s.lineage, Hubs: s.hubs(), Frozen: s.frozen, Behind: s.behind, Leaving: s.leaving}
}

// Position is what the hello says: where the agent stands. The digest is none when contents are missing, so that the hub
// sends all again. An agent that has joined anew stands nowhere: what it holds says nothing about the hub.
func (s *Store) Position() (Lineage, uint64, fleet.Digest) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.set.adopt {
		return Lineage{}, 0, fleet.Digest{}
	}
	if s.set.lineage == (Lineage{}) || s.set.behind != "" || !s.contents.complete(s.set.roots()) {
		return s.set.lineage, s.set.highWater, fleet.Digest{}
	}
	return s.set.lineage, s.set.highWater, s.set.listed.Digest
}

// Adopt takes note of the join by which the agent came to its hub. A new join is a person's word that the hub's lineage
// is right: the next index is taken whatever its generation, and still deletes nothing that it does not name. After the
// cluster had left, a new join begins empty. It counts at once; an error says that it is not durable.
func (s *Store) Adopt(ctx context.Context, join string) error {
	next := *s.current()
	if next.join == join {
		return nil
	}
	anew := next.leaving.Objects != ""
	if anew {
		past := next.closed()
		next = *emptySet()
		next.past = past
	} else {
		next.adopt = next.lineage != Lineage{}
		next.frozen = ""
	}
	next.join = join
	err := writeSet(ctx, s.state, &next)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set = &next
	if anew {
		s.contents = newContents() // the record carries none of them any more
	}
	return err
}

// Succeed takes note that the hub's store was restored, on the word of the restored one, and that it takes the place of the one that is
// followed: the next index is taken as after a new join. Of a store that was followed before this one it is not believed: two of them
// would take the cluster from each other. Nor is it while the cluster leaves.
func (s *Store) Succeed(ctx context.Context, to Lineage) error {
	held := s.current()
	switch {
	case held.adopt || held.lineage == (Lineage{}):
		return nil
	case held.lineage.HubID != to.HubID:
		return fleet.Errorf(fleet.ErrDenied, "hub %s says that it takes the place of hub %s: join the cluster again if that is meant", to.HubID, held.lineage.HubID)
	case slices.Contains(held.closed(), to):
		return fleet.Errorf(fleet.ErrDenied, "store %s of the hub says that it takes the place of %s, which came after it; join the cluster again if that is meant", to.Incarnation, held.lineage.Incarnation)
	case held.leaving.Objects != "":
		return fleet.Errorf(fleet.ErrPrecondition, "the cluster leaves the fleet; join it again if it is to stay")
	}
	return s.change(ctx, func(n *set) bool {
		n.adopt = true
		return true
	})
}

// Freeze records that nothing may be written and why, or with an empty reason that it may again.
func (s *Store) Freeze(ctx context.Context, why string) error {
	return s.change(ctx, func(n *set) bool {
		changed := n.frozen != why
		n.frozen = why
		return changed
	})
}

// Leave records that the cluster leaves the fleet.
func (s *Store) Leave(ctx context.Context, order fleet.Leave) error {
	return s.change(ctx, func(n *set) bool {
		changed := !n.leaving.Equal(order)
		n.leaving = order
		return changed
	})
}

// change persists a changed copy of the set, then works by it.
func (s *Store) change(ctx context.Context, fn func(*set) bool) error {
	next := *s.current()
	if !fn(&next) {
		return nil
	}
	if err := writeSet(ctx, s.state, &next); err != nil {
		return err
	}
	s.mu.Lock()
	s.set = &next
	s.mu.Unlock()
	return nil
}

func (s *Store) current() *set {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.set
}

// Marks are what a session leaves for the next one.
type Marks struct {
	// Epoch is that of the last session.
	Epoch uint64 `json:"epoch"`
	// Boot and BootID name the start of the hub that the last session was with.
	Boot   uint64 `json:"boot,omitempty"`
	BootID string `json:"bootID,omitempty"`
	// Status is the digest of the status that the hub acknowledged last, in hex.
	Status string `json:"status,omitempty"`
}

// Marks are those of the last SaveMarks, durable or not.
func (s *Store) Marks() Marks {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.marks
}

// SaveMarks persists them. They count for this process also if that fails; the next call tries again.
func (s *Store) SaveMarks(ctx context.Context, m Marks) error {
	s.mu.Lock()
	s.marks = m
	saved := s.saved
	s.mu.Unlock()
	if m == saved {
		return nil
	}
	if err := writeMarks(ctx, s.state, m); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved = m
	return nil
}

// Tidy gives loose packs their files, and removes contents that neither the set nor the one before it needs. It may wait
// until what was accepted is handed on, and costs nothing when nothing was.
func (s *Store) Tidy(ctx context.Context) error {
	if !s.untidy {
		return nil
	}
	if err := s.file(ctx); err != nil {
		return err
	}
	return s.sweep(ctx)
}

// sweep removes contents that nobody needs.
func (s *Store) sweep(ctx context.Context) error {
	s.untidy = true
	keep := s.current()
	names, err := s.state.List(ctx, contentPrefix)
	if err != nil {
		return fmt.Errorf("desired: %w", err)
	}
	for _, name := range names {
		d, err := fleet.ParseDigest(name[len(contentPrefix):])
		if err == nil && (slices.Contains(keep.roots(), d) || slices.Contains(keep.previous, d)) {
			continue
		}
		if err := s.state.Remove(ctx, name); err != nil {
			return fmt.Errorf("desired: %w", err)
		}
	}
	s.untidy = false
	return nil
}
