package store

import (
	"bytes"
	"fmt"
	"hash/crc32"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// schemaVersion is that of the records this hub writes; it reads all up to it.
const schemaVersion = 1

var (
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
	deterministic = proto.MarshalOptions{Deterministic: true}
)

// record is an Entry of the read model with what is needed to compare it to a new value. A corrupt one has no Value, or
// one that stands in for it.
type record struct {
	Entry
	sum     uint32 // CRC-32C of the payload
	size    uint32 // of the payload
	corrupt error
	absent  bool // a corrupt one that counts as not there
}

// StandIn says what stands in for a record that cannot be read, because the damage of one must not stop what others are
// about: a value, or that it counts as not there. Neither: whoever asks for it gets the error.
type StandIn func(key string, why error) (value proto.Message, absent bool)

// readable reports that who asks for the record gets a value.
func (r *record) readable() bool { return r.Value != nil }

func less(a, b *record) bool { return a.Key < b.Key }

// newRecordOf decodes a stored value, or returns nil for a key that the read model does not hold.
func newRecordOf(key string, kv KV, standIn StandIn) *record {
	value := newRecord(key)
	if value == nil {
		return nil
	}
	r := &record{Entry: Entry{Key: key, ModRevision: kv.Mod, CreateRevision: kv.Create}}
	env, err := open(key, kv.Value, value)
	if err != nil {
		r.corrupt = err
		if standIn != nil {
			r.Value, r.absent = standIn(key, err)
		}
		return r
	}
	r.Value, r.sum, r.size = value, env.GetChecksum(), uint32(len(env.GetPayload()))
	return r
}

// holds reports whether the record has this payload.
func (r *record) holds(payload []byte, sum uint32) bool {
	if r == nil || r.corrupt != nil || r.sum != sum || int(r.size) != len(payload) {
		return false
	}
	stored, err := deterministic.Marshal(r.Value)
	return err == nil && bytes.Equal(stored, payload)
}

// open reads an envelope into value.
func open(key string, stored []byte, value proto.Message) (*storev1.Envelope, error) {
	env := new(storev1.Envelope)
	if err := proto.Unmarshal(stored, env); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: no envelope: %v", key, err)
	}
	if env.GetSchema() == 0 || env.GetSchema() > schemaVersion {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: schema %d, and this hub knows up to %d", key, env.GetSchema(), schemaVersion)
	}
	if sum := crc32.Checksum(env.GetPayload(), castagnoli); sum != env.GetChecksum() {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: checksum %08x, not %08x", key, sum, env.GetChecksum())
	}
	if err := proto.Unmarshal(env.GetPayload(), value); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: no %T: %v", key, value, err)
	}
	return env, nil
}

// nonceOf is the nonce of a stored envelope; 0 if there is none.
func nonceOf(stored []byte) uint64 {
	env := new(storev1.Envelope)
	if proto.Unmarshal(stored, env) != nil {
		return 0
	}
	return env.GetNonce()
}

// payloadOf encodes a value that belongs under the key.
func payloadOf(key string, value proto.Message) ([]byte, error) {
	want := newRecord(key)
	if want == nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: no record lives under this key", key)
	}
	if value == nil || value.ProtoReflect().Descriptor() != want.ProtoReflect().Descriptor() {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: holds %T, not %T", key, want, value)
	}
	payload, err := deterministic.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return payload, nil
}

func checksum(payload []byte) uint32 { return crc32.Checksum(payload, castagnoli) }

// seal puts a payload into an Envelope, field by field.
func seal(payload []byte, sum uint32, nonce uint64) []byte {
	b := make([]byte, 0, len(payload)+envelopeOverhead)
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), schemaVersion)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 2, protowire.Fixed32Type), sum)
	b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), payload)
	if nonce != 0 {
		b = protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), nonce)
	}
	return b
}

const envelopeOverhead = 32

// sealCandidate is what a leader's key holds.
func sealCandidate(c Candidate) ([]byte, error) {
	payload, err := deterministic.Marshal(&storev1.Seat{Instance: c.Instance, Address: c.Address, Since: timestamppb.New(c.Since)})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", leaderKey, err)
	}
	return seal(payload, checksum(payload), 0), nil
}

func openCandidate(stored []byte) (Candidate, error) {
	seat := new(storev1.Seat)
	if _, err := open(leaderKey, stored, seat); err != nil {
		return Candidate{}, err
	}
	return Candidate{Instance: seat.GetInstance(), Address: seat.GetAddress(), Since: seat.GetSince().AsTime()}, nil
}
