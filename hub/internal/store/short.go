package store

import (
	"bytes"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"towline.dev/towline/pkg/fleet"
)

// implied is a field of the message in field 1 of a class's records that is left out where they are kept, because mostly it has the
// value that the key tells, or the one that nearly all records have.
type implied struct {
	number protowire.Number
	// field is the whole field, tag included, as it is encoded with that value.
	field func(module string) []byte
}

// The fields that the two records of a tracker have alike in nearly every cluster. A record that does not have one of them at all is
// kept whole.
var (
	impliedDesired = []implied{
		{1, nameField},
		{6, constant(protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), noPolicies()))},
	}
	impliedObserved = []implied{
		{1, nameField},
		{4, constant(protowire.AppendString(protowire.AppendTag(nil, 4, protowire.BytesType), string(fleet.PhaseApplied)))},
		{5, constant(protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.VarintType), 1))}, // ready
	}
)

// reportedStates is the field of a report that has a byte for each object. Where all are fine it is kept as their number, told by its type.
const reportedStates protowire.Number = 8

var fine = fleet.ObjectState{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}.Pack()

// maxFine bounds what a damaged number of states can make; longer states are compressed, and so no such field.
const maxFine = 4096

func nameField(module string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), module)
}

func constant(field []byte) func(string) []byte { return func(string) []byte { return field } }

// noPolicies is the digest in a revision that has no policies.
func noPolicies() []byte {
	d := fleet.DigestOf([]byte("[]"))
	return d[:]
}

// Shorten makes the short form of a record's encoding, in which Lengthen finds the very same bytes; false: it has none.
func (c *Class) Shorten(key string, payload []byte) ([]byte, bool) {
	if c.implied == nil {
		return nil, false
	}
	before, part, after, ok := Cut(payload, 1)
	if !ok {
		return nil, false
	}
	short, ok := c.shortenPart(moduleOf(key), part)
	if !ok {
		return nil, false
	}
	out := append(protowire.AppendBytes(protowire.AppendTag(bytes.Clone(before), 1, protowire.BytesType), short), after...)
	if again, err := c.Lengthen(key, out); err != nil || !bytes.Equal(again, payload) {
		return nil, false
	}
	return out, true
}

// moduleOf is the module of the key of a record of one module in one cluster: PREFIX/CLUSTER/PROJECT/NAME.
func moduleOf(key string) string {
	_, rest, _ := strings.Cut(key, componentDivider)
	_, module, _ := strings.Cut(rest, componentDivider)
	return module
}

func (c *Class) shortenPart(module string, part []byte) ([]byte, bool) {
	out, met := make([]byte, 0, len(part)), 0
	for len(part) > 0 {
		number, kind, size := protowire.ConsumeField(part)
		if size < 0 {
			return nil, false
		}
		field := part[:size]
		part = part[size:]
		if f := c.impliedField(number); f != nil {
			if met++; bytes.Equal(field, f.field(module)) {
				continue
			}
		}
		if number == c.states && kind == protowire.BytesType {
			field = shortStates(field)
		}
		out = append(out, field...)
	}
	return out, met == len(c.implied)
}

func (c *Class) impliedField(number protowire.Number) *implied {
	for i := range c.implied {
		if c.implied[i].number == number {
			return &c.implied[i]
		}
	}
	return nil
}

func shortStates(field []byte) []byte {
	number, _, tag := protowire.ConsumeTag(field)
	states, _ := protowire.ConsumeBytes(field[tag:])
	if len(states) == 0 || len(states) > maxFine || bytes.Count(states, []byte{fine}) != len(states) {
		return field
	}
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), uint64(len(states)))
}

// Lengthen is what Shorten was given.
func (c *Class) Lengthen(key string, short []byte) ([]byte, error) {
	before, part, after, ok := Cut(short, 1)
	if !ok || c.implied == nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: no short form of its record", key)
	}
	long, ok := c.lengthenPart(moduleOf(key), part)
	if !ok {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: its short form cannot be read", key)
	}
	out := make([]byte, 0, len(before)+len(long)+len(after)+4)
	out = append(out, before...)
	return append(protowire.AppendBytes(protowire.AppendTag(out, 1, protowire.BytesType), long), after...), nil
}

// lengthenPart puts what is implied back where it stood: fields are encoded in the order of their numbers.
func (c *Class) lengthenPart(module string, part []byte) ([]byte, bool) {
	out, missing := make([]byte, 0, len(part)+96), c.implied
	for len(part) > 0 {
		number, kind, size := protowire.ConsumeField(part)
		if size < 0 {
			return nil, false
		}
		for ; len(missing) > 0 && missing[0].number < number; missing = missing[1:] {
			out = append(out, missing[0].field(module)...)
		}
		if len(missing) > 0 && missing[0].number == number {
			missing = missing[1:]
		}
		field := part[:size]
		part = part[size:]
		if number != c.states || kind != protowire.VarintType {
			out = append(out, field...)
			continue
		}
		_, _, tag := protowire.ConsumeTag(field)
		count, _ := protowire.ConsumeVarint(field[tag:])
		if count > maxFine {
			return nil, false
		}
		out = protowire.AppendBytes(protowire.AppendTag(out, number, protowire.BytesType), bytes.Repeat([]byte{fine}, int(count)))
	}
	for _, f := range missing {
		out = append(out, f.field(module)...)
	}
	return out, true
}

// Cut splits a payload around its one field of the number; false: there is none, or more than one.
func Cut(payload []byte, number protowire.Number) (before, part, after []byte, ok bool) {
	for rest := payload; len(rest) > 0; {
		at := len(payload) - len(rest)
		n, kind, size := protowire.ConsumeField(rest)
		if size < 0 {
			return nil, nil, nil, false
		}
		if n == number {
			_, _, tag := protowire.ConsumeTag(rest)
			if ok || kind != protowire.BytesType {
				return nil, nil, nil, false
			}
			value, _ := protowire.ConsumeBytes(rest[tag:])
			before, part, after, ok = payload[:at], value, rest[size:], true
		}
		rest = rest[size:]
	}
	return before, part, after, ok
}
