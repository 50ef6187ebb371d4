package desired

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

const (
	setName   = "desired"
	marksName = "session"
	schema    = 1
)

// record is the set as it is stored. Syncs and tombstones are kept as the protocol writes them.
type record struct {
	Schema      int               `json:"schema"`
	HubID       string            `json:"hubID,omitempty"`
	Incarnation string            `json:"incarnation,omitempty"`
	Past        []Lineage         `json:"past,omitempty"`
	Older       map[string]uint64 `json:"older,omitempty"` // lineages of modules that are not of this one
	Join        string            `json:"join,omitempty"`
	Adopt       bool              `json:"adopt,omitempty"`
	HighWater   uint64            `json:"highWater,omitempty"`
	Listed      []byte            `json:"listed"`
	Kept        []byte            `json:"kept"`
	Floor       map[string]uint64 `json:"floor,omitempty"`
	Previous    []string          `json:"previous,omitempty"`
	Frozen      string            `json:"frozen,omitempty"`
	Behind      string            `json:"behind,omitempty"`
	Leaving     string            `json:"leaving,omitempty"`
	LeaveHold   bool              `json:"leaveHold,omitempty"`
	LeaveHeld   []string          `json:"leaveHeld,omitempty"`
	Packs       [][]byte          `json:"packs,omitempty"`
	Refused     []string          `json:"refused,omitempty"`
	Holds       map[string]hold   `json:"holds,omitempty"`     // in what was refused
	Unasked     []string          `json:"unasked,omitempty"`   // words: confirms
	Unordered   []string          `json:"unordered,omitempty"` // and orders
}

func writeSet(ctx context.Context, state State, s *set) error {
	raw, err := encodeSet(s)
	if err != nil {
		return err
	}
	if err := state.Write(ctx, setName, raw); err != nil {
		return fmt.Errorf("desired: %w", err)
	}
	return nil
}

func encodeSet(s *set) ([]byte, error) {
	kept := assemble.Build(append([]fleet.Sync(nil), s.strays...), append([]fleet.Tombstone(nil), s.leftovers...), false, 0)
	r := record{Schema: schema, HubID: s.lineage.HubID, Incarnation: s.lineage.Incarnation, Past: s.past, Older: s.older(), Join: s.join,
		Adopt: s.adopt, HighWater: s.highWater, Frozen: s.frozen, Behind: s.behind, Leaving: s.leaving.Objects, LeaveHold: s.leaving.Hold, Floor: map[string]uint64{}, Holds: map[string]hold{}}
	var err error
	if r.Listed, err = proto.Marshal(wire.IndexFromAssemblage(s.listed)); err != nil {
		return nil, fmt.Errorf("desired: %w", err)
	}
	if r.Kept, err = proto.Marshal(wire.IndexFromAssemblage(kept)); err != nil {
		return nil, fmt.Errorf("desired: %w", err)
	}
	for _, m := range s.leaving.Held {
		r.LeaveHeld = append(r.LeaveHeld, m.String())
	}
	for _, m := range s.refused {
		r.Refused = append(r.Refused, m.String())
	}
	for m, generation := range s.floor {
		r.Floor[m.String()] = generation
	}
	for m, x := range s.holds {
		r.Holds[m.String()] = x
	}
	for _, m := range s.unasked.confirms {
		r.Unasked = append(r.Unasked, m.String())
	}
	for _, m := range s.unasked.orders {
		r.Unordered = append(r.Unordered, m.String())
	}
	for _, d := range s.previous {
		r.Previous = append(r.Previous, d.String())
	}
	for _, pack := range items(s.loose) {
		r.Packs = append(r.Packs, pack.Data)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("desired: %w", err)
	}
	return raw, nil
}

// readSet returns an empty set when nothing was accepted yet.
func readSet(ctx context.Context, state State) (*set, error) {
	raw, err := state.Read(ctx, setName)
	switch {
	case errors.Is(err, fleet.ErrNotFound):
		return emptySet(), nil
	case err != nil:
		return nil, fmt.Errorf("desired: %w", err)
	}
	return decodeSet(raw)
}

func decodeSet(raw []byte) (*set, error) {
	var r record
	if err := json.Unmarshal(raw, &r); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "desired: %v", err)
	}
	if r.Schema != schema {
		return nil, fleet.Errorf(fleet.ErrPrecondition, "desired: written by another version of the agent (schema %d, this one reads %d); run that version, or remove the state and join again", r.Schema, schema)
	}
	s := &set{lineage: Lineage{HubID: r.HubID, Incarnation: r.Incarnation}, past: r.Past, join: r.Join, adopt: r.Adopt, highWater: r.HighWater,
		frozen: r.Frozen, behind: r.Behind, leaving: fleet.Leave{Objects: r.Leaving, Hold: r.LeaveHold}, floor: map[fleet.ModuleRef]uint64{}}
	var err error
	if s.listed, err = decodeIndex(r.Listed); err != nil {
		return nil, err
	}
	kept, err := decodeIndex(r.Kept)
	if err != nil {
		return nil, err
	}
	s.strays, s.leftovers = kept.Syncs, kept.Tombstones
	s.renumber(r.Older)
	if s.leaving.Held, err = modules(r.LeaveHeld); err != nil {
		return nil, err
	}
	if s.refused, err = modules(r.Refused); err != nil {
		return nil, err
	}
	for name, generation := range r.Floor {
		m, err := fleet.ParseModuleRef(name)
		if err != nil {
			return nil, fleet.Errorf(fleet.ErrCorrupt, "desired: %v", err)
		}
		s.floor[m] = generation
	}
	if s.holds, err = holdsFrom(r.Holds); err != nil {
		return nil, err
	}
	if s.unasked.confirms, err = modules(r.Unasked); err != nil {
		return nil, err
	}
	if s.unasked.orders, err = modules(r.Unordered); err != nil {
		return nil, err
	}
	for _, hex := range r.Previous {
		d, err := fleet.ParseDigest(hex)
		if err != nil {
			return nil, fleet.Errorf(fleet.ErrCorrupt, "desired: %v", err)
		}
		s.previous = append(s.previous, d)
	}
	s.loose = make(map[fleet.Digest][]byte, len(r.Packs))
	for _, raw := range r.Packs {
		root, err := decodePack(raw, newContents())
		if err != nil {
			return nil, fleet.Errorf(fleet.ErrCorrupt, "desired: pack: %v", err)
		}
		s.loose[root] = raw
	}
	return s, nil
}

// parts are all syncs and tombstones of the set, to be read or changed.
func (s *set) parts(sync func(*fleet.Sync), tombstone func(*fleet.Tombstone)) {
	for _, list := range [][]fleet.Sync{s.listed.Syncs, s.strays} {
		for i := range list {
			sync(&list[i])
		}
	}
	for _, list := range [][]fleet.Tombstone{s.listed.Tombstones, s.leftovers} {
		for i := range list {
			tombstone(&list[i])
		}
	}
}

// Kinds of what is held of a module, in the keys of older.
const (
	syncKind      = "sync "
	tombstoneKind = "tombstone "
)

// older are the numbers of what was told in an earlier lineage: the protocol, in whose form all is stored, has none.
func (s *set) older() map[string]uint64 {
	out := map[string]uint64{}
	note := func(key string, lineage uint64) {
		if lineage != s.number() {
			out[key] = lineage
		}
	}
	s.parts(func(x *fleet.Sync) { note(syncKind+x.Module.String(), x.Lineage) },
		func(x *fleet.Tombstone) { note(tombstoneKind+x.Module.String(), x.Lineage) })
	return out
}

func (s *set) renumber(older map[string]uint64) {
	number := func(key string) uint64 {
		if n, ok := older[key]; ok {
			return n
		}
		return s.number()
	}
	s.parts(func(x *fleet.Sync) { x.Lineage = number(syncKind + x.Module.String()) },
		func(x *fleet.Tombstone) { x.Lineage = number(tombstoneKind + x.Module.String()) })
}

func modules(names []string) (out []fleet.ModuleRef, err error) {
	for _, name := range names {
		m, err := fleet.ParseModuleRef(name)
		if err != nil {
			return nil, fleet.Errorf(fleet.ErrCorrupt, "desired: %v", err)
		}
		out = append(out, m)
	}
	return out, nil
}

func holdsFrom(names map[string]hold) (map[fleet.ModuleRef]hold, error) {
	if len(names) == 0 {
		return nil, nil
	}
	out := make(map[fleet.ModuleRef]hold, len(names))
	for name, x := range names {
		m, err := fleet.ParseModuleRef(name)
		if err != nil {
			return nil, fleet.Errorf(fleet.ErrCorrupt, "desired: %v", err)
		}
		out[m] = x
	}
	return out, nil
}

func decodeIndex(raw []byte) (fleet.Assemblage, error) {
	var in agentv1.Index
	if err := proto.Unmarshal(raw, &in); err != nil {
		return fleet.Assemblage{}, fleet.Errorf(fleet.ErrCorrupt, "desired: %v", err)
	}
	a, _, err := wire.ReadIndex(&in, fleet.Assemblage{}) // what was taken once is held, whatever is valid by now
	if err != nil {
		return a, fleet.Errorf(fleet.ErrCorrupt, "desired: %v", err)
	}
	return a, nil
}

func readMarks(ctx context.Context, state State) (Marks, error) {
	var m Marks
	raw, err := state.Read(ctx, marksName)
	if errors.Is(err, fleet.ErrNotFound) || errors.Is(err, fleet.ErrCorrupt) {
		return m, nil // it only spares a full status
	}
	if err != nil {
		return m, fmt.Errorf("desired: %w", err)
	}
	if json.Unmarshal(raw, &m) != nil {
		return Marks{}, nil
	}
	return m, nil
}

func writeMarks(ctx context.Context, state State, m Marks) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("desired: %w", err)
	}
	if err := state.Write(ctx, marksName, raw); err != nil {
		return fmt.Errorf("desired: %w", err)
	}
	return nil
}

func compareModules(a, b fleet.ModuleRef) int { return cmp.Compare(a.String(), b.String()) }

func compareDigests(a, b fleet.Digest) int { return bytes.Compare(a[:], b[:]) }
