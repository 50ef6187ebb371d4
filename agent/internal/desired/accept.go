package desired

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"towline.dev/towline/agent/internal/state"
	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// Codes of refusals, as the protocol names them.
const (
	CodeRegressed      = "REGRESSED"
	CodeDigestMismatch = "DIGEST_MISMATCH"
	CodeCountMismatch  = "COUNT_MISMATCH"
	CodeUndecodable    = "UNDECODABLE"
	CodeStale          = "STALE"
)

// Fetch gets contents from the hub: zstd by digest. It may leave out what it could not get.
type Fetch func(ctx context.Context, digests []fleet.Digest) (map[fleet.Digest][]byte, error)

// Refusal is one sync or tombstone that was not taken; what was held of the module stays, under the holds that the refused word says.
type Refusal struct {
	Module     fleet.ModuleRef
	Generation uint64
	Code       string
	Message    string
}

// Result is what became of an index.
type Result struct {
	// Code and Message are set when the whole index was refused; what was held stays.
	Code, Message string
	// Refused are the syncs and tombstones that were not taken; the others were.
	Refused []Refusal
	// Dropped are modules of which nothing is held any more.
	Dropped []fleet.ModuleRef
}

// Accept judges an index of the lineage, fetches the contents that it lacks, persists the result and then works by it. What
// goes with the index is persisted by before, which is called once the index is judged: after a crash between the two the older
// index stands. An error means that nothing changed and that the index may be tried again; a refusal is in the result.
func (s *Store) Accept(ctx context.Context, from Lineage, in *agentv1.Index, fetch Fetch, before func() error) (Result, error) {
	held := s.current()
	a, invalid, code, err := held.judge(from, in)
	if err != nil {
		return Result{Code: code, Message: err.Error()}, nil
	}
	m := s.merge(held, numbered(a, held.ahead()), invalid)
	got, err := s.obtain(ctx, m.taken, fetch)
	if err != nil {
		return Result{}, err
	}
	if err := before(); err != nil {
		return Result{}, err
	}
	m.apply(got.problems)
	next := m.result(held, a, from)
	if len(got.contents.packs) == 0 && reflect.DeepEqual(held, next) {
		return Result{Refused: m.refused}, nil // a repeated index changes nothing
	}
	next.previous = held.roots()
	if err := s.persist(ctx, next, got.contents); err != nil {
		return Result{}, err
	}
	m.settle(s)
	s.noted(s.HighWater())
	return Result{Refused: m.refused, Dropped: dropped(held, next)}, nil
}

// numbered is the assemblage as it was told in one lineage.
func numbered(a fleet.Assemblage, lineage uint64) fleet.Assemblage {
	a.Syncs, a.Tombstones = slices.Clone(a.Syncs), slices.Clone(a.Tombstones)
	for i := range a.Syncs {
		a.Syncs[i].Lineage = lineage
	}
	for i := range a.Tombstones {
		a.Tombstones[i].Lineage = lineage
	}
	return a
}

// judge decides on the index as a whole. Of modules of which it says something that is not understood invalid says what.
func (s *set) judge(from Lineage, in *agentv1.Index) (a fleet.Assemblage, invalid map[fleet.ModuleRef]error, code string, err error) {
	pinned := s.lineage != Lineage{} && !s.adopt
	switch {
	case pinned && from.HubID != s.lineage.HubID:
		return a, nil, CodeRegressed, fmt.Errorf("the hub has id %s, not %s: it is another hub; join the cluster again if that is meant", from.HubID, s.lineage.HubID)
	case pinned && from.Incarnation != s.lineage.Incarnation:
		return a, nil, CodeRegressed, errors.New("the hub's store was restored or made anew; nothing changes in the cluster until it joins again: towline cluster join NAME --reissue")
	}
	a, invalid, err = wire.ReadIndex(in, s.listed)
	switch {
	case errors.Is(err, fleet.ErrCorrupt):
		return a, nil, CodeDigestMismatch, err
	case err != nil:
		return a, nil, CodeUndecodable, err
	case pinned && a.Generation < s.highWater:
		return a, nil, CodeRegressed, fmt.Errorf("the index has generation %d, held is %d: the hub's store is older than the cluster", a.Generation, s.highWater)
	}
	return a, invalid, "", nil
}

// merger puts an assemblage over what is held, module by module.
type merger struct {
	syncs      map[fleet.ModuleRef]fleet.Sync // held before, strays included
	tombstones map[fleet.ModuleRef]fleet.Tombstone
	stray      map[fleet.ModuleRef]bool
	floor      map[fleet.ModuleRef]uint64
	confirmed  map[fleet.ModuleRef]fleet.Age
	adopt      bool
	lineage    uint64 // number of the one that is merged
	invalid    map[fleet.ModuleRef]error

	taken     []fleet.Sync
	dead      []fleet.Tombstone
	lastGood  []fleet.Sync
	strays    []fleet.Sync
	leftovers []fleet.Tombstone
	finished  []fleet.ModuleRef
	refused   []Refusal
	holds     map[fleet.ModuleRef]hold // in what was refused
}

func (s *Store) merge(held *set, a fleet.Assemblage, invalid map[fleet.ModuleRef]error) *merger {
	m := &merger{syncs: map[fleet.ModuleRef]fleet.Sync{}, tombstones: map[fleet.ModuleRef]fleet.Tombstone{}, invalid: invalid,
		stray: map[fleet.ModuleRef]bool{}, holds: map[fleet.ModuleRef]hold{}, floor: maps.Clone(held.floor), adopt: held.adopt, lineage: held.ahead()}
	s.mu.RLock()
	m.confirmed = maps.Clone(s.confirmed)
	s.mu.RUnlock()
	if m.floor == nil || m.adopt {
		m.floor = map[fleet.ModuleRef]uint64{}
	}
	for _, x := range held.listed.Syncs {
		m.syncs[x.Module] = x
	}
	for _, x := range held.strays {
		m.syncs[x.Module], m.stray[x.Module] = x, true
	}
	for _, x := range slices.Concat(held.listed.Tombstones, held.leftovers) {
		m.tombstones[x.Module] = x
	}
	listed := map[fleet.ModuleRef]bool{}
	for _, x := range a.Syncs {
		listed[x.Module] = true
		m.sync(x)
	}
	for _, x := range a.Tombstones {
		listed[x.Module] = true
		m.tombstone(x)
	}
	m.absent(listed)
	return m
}

// sync takes or refuses a listed sync.
func (m *merger) sync(x fleet.Sync) {
	code, message := m.judgeSync(x)
	if code == "" {
		m.taken = append(m.taken, x)
		return
	}
	m.refuseSync(x, code, message)
}

func (m *merger) refuseSync(x fleet.Sync, code, message string) {
	m.refuse(x.Module, x.Generation, code, message)
	m.heed(x.Module, hold{All: x.Hold, Objects: x.Held})
}

func (m *merger) judgeSync(x fleet.Sync) (code, message string) {
	held, isHeld := m.syncs[x.Module]
	dead, isDead := m.tombstones[x.Module]
	switch {
	case m.invalid[x.Module] != nil:
		return CodeUndecodable, m.invalid[x.Module].Error()
	case isHeld && x.Age().Compare(held.Age()) < 0:
		return CodeStale, fmt.Sprintf("generation %d is older than %d, which is held", x.Generation, held.Generation)
	case isHeld && x.Age() == held.Age() && !sameContent(x, held):
		return CodeDigestMismatch, fmt.Sprintf("generation %d was given before with another content", x.Generation)
	case isDead && x.Age().Compare(dead.Age()) <= 0:
		return CodeStale, fmt.Sprintf("generation %d is not newer than %d, which removed the module", x.Generation, dead.Generation)
	case x.Generation <= m.floor[x.Module]:
		return CodeStale, fmt.Sprintf("generation %d is not newer than %d, which removed the module", x.Generation, m.floor[x.Module])
	}
	return "", ""
}

// sameContent compares what a generation stands for; holds and confirmations may change within one.
func sameContent(a, b fleet.Sync) bool {
	return a.Bundle == b.Bundle && a.Policies == b.Policies && a.Revision == b.Revision && a.Objects == b.Objects &&
		maps.Equal(a.Values, b.Values) && assemble.EqualYields(a.Yields, b.Yields) && assemble.EqualHeirs(a.Heirs, b.Heirs)
}

func (m *merger) tombstone(x fleet.Tombstone) {
	held, isHeld := m.syncs[x.Module]
	dead, isDead := m.tombstones[x.Module]
	switch {
	case m.invalid[x.Module] != nil:
		m.refuseTombstone(x, CodeUndecodable, m.invalid[x.Module].Error())
	case isHeld && x.Age().Compare(held.Age()) <= 0:
		m.refuseTombstone(x, CodeStale, fmt.Sprintf("the tombstone's generation %d is not newer than %d, which is held", x.Generation, held.Generation))
	case isDead && x.Age().Compare(dead.Age()) < 0:
		m.refuseTombstone(x, CodeStale, fmt.Sprintf("the tombstone's generation %d is older than %d, which is held", x.Generation, dead.Generation))
	default:
		m.dead = append(m.dead, x)
	}
}

func (m *merger) refuseTombstone(x fleet.Tombstone, code, message string) {
	m.refuse(x.Module, x.Generation, code, message)
	m.heed(x.Module, hold{All: x.Hold})
}

// refuse takes nothing of a module, and leaves it as it is held.
func (m *merger) refuse(module fleet.ModuleRef, generation uint64, code, message string) {
	m.refused = append(m.refused, Refusal{Module: module, Generation: generation, Code: code, Message: message})
	m.keep(module)
}

// keep leaves a module as it is held, if it is.
func (m *merger) keep(module fleet.ModuleRef) {
	if x, ok := m.syncs[module]; ok {
		if m.stray[module] {
			m.strays = append(m.strays, x)
		} else {
			m.lastGood = append(m.lastGood, x)
		}
	}
	if x, ok := m.tombstones[module]; ok {
		m.leftovers = append(m.leftovers, x)
	}
}

// absent decides on what is held and not listed. A sync becomes a stray; a tombstone goes when it was carried out. A new
// lineage does not carry out tombstones of the old one.
func (m *merger) absent(listed map[fleet.ModuleRef]bool) {
	for module, x := range m.syncs {
		if !listed[module] {
			m.strays = append(m.strays, x)
		}
	}
	for module, x := range m.tombstones {
		switch {
		case listed[module]:
		case m.adopt:
		case m.carriedOut(x):
			m.floor[module] = x.Generation
			m.finished = append(m.finished, module)
		default:
			m.leftovers = append(m.leftovers, x)
		}
	}
}

// apply turns syncs whose contents are not as they say into refusals.
func (m *merger) apply(problems map[fleet.ModuleRef]problem) {
	m.taken = slices.DeleteFunc(m.taken, func(x fleet.Sync) bool {
		p, bad := problems[x.Module]
		if bad {
			m.refuseSync(x, p.code, p.message)
		}
		return bad
	})
}

// result is the set that the merge leads to.
func (m *merger) result(held *set, a fleet.Assemblage, from Lineage) *set {
	next := *held
	if held.adopt {
		next.past = held.closed()
	}
	next.adopt, next.behind, next.lineage, next.floor = false, "", from, m.floor
	next.listed = assemble.Build(slices.Concat(m.taken, m.lastGood), m.dead, a.Hold, a.Generation)
	next.highWater = a.Generation
	if !held.adopt {
		next.highWater = max(held.highWater, a.Generation)
	}
	next.strays, next.leftovers, next.refused, next.unasked = m.strays, m.leftovers, m.untaken(a), m.unasked(held)
	next.holds = m.remaining(held.holds, a)
	slices.SortFunc(next.strays, func(x, y fleet.Sync) int { return compareModules(x.Module, y.Module) })
	slices.SortFunc(next.leftovers, func(x, y fleet.Tombstone) int { return compareModules(x.Module, y.Module) })
	for _, x := range slices.Concat(m.taken, m.lastGood) {
		delete(next.floor, x.Module)
	}
	return &next
}

// untaken are the modules whose sync was refused.
func (m *merger) untaken(a fleet.Assemblage) (out []fleet.ModuleRef) {
	for _, x := range a.Syncs {
		if slices.ContainsFunc(m.refused, func(r Refusal) bool { return r.Module == x.Module }) {
			out = append(out, x.Module)
		}
	}
	return out
}

func dropped(held, next *set) []fleet.ModuleRef {
	still := map[fleet.ModuleRef]bool{}
	for _, module := range next.held().Modules() {
		still[module] = true
	}
	return slices.DeleteFunc(held.held().Modules(), func(module fleet.ModuleRef) bool { return still[module] })
}

// persist writes new packs into the record that refers to them, or, when they are large, into files before it. It works
// by the record only then.
func (s *Store) persist(ctx context.Context, next *set, added contents) error {
	s.mu.RLock()
	old := s.contents
	s.mu.RUnlock()
	needed := slices.Concat(next.previous, next.roots())
	merged := old.with(added, needed)
	next.loose = keepOnly(next.loose, needed)
	for _, root := range next.roots() {
		if members := added.packs[root]; members != nil {
			next.loose[root] = encodePack(members, func(d fleet.Digest) []byte { return merged.data[d] })
		}
	}
	var writes []state.Item
	if size(next.loose) > maxLoose {
		writes, next.loose = items(next.loose), nil
	}
	record, err := encodeSet(next)
	if err != nil {
		return err
	}
	if err := s.state.WriteAll(ctx, append(writes, state.Item{Name: setName, Data: record})...); err != nil {
		return fmt.Errorf("desired: %w", err)
	}
	s.untidy = true
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set, s.contents = next, merged
	return nil
}
