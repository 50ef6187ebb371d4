package engine

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/proto"

	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/envelope"
	"towline.dev/towline/pkg/fleet"
)

// record is a store.Entry of the read model with what is needed to compare it to a new value. A corrupt one has no Value, or
// one that stands in for it.
type record struct {
	store.Entry
	sum    uint32  // CRC-32C of the payload
	size   uint32  // of the payload
	damage *damage // of a corrupt one; nil: it is sound
}

// damage is why a record cannot be read. It is beside the record because mostly there is none.
type damage struct {
	why    error
	absent bool // it counts as not there
}

// corrupt is why the record cannot be read; nil: it can.
func (r *record) corrupt() error {
	if r.damage == nil {
		return nil
	}
	return r.damage.why
}

// absent reports that it is corrupt and counts as not there.
func (r *record) absent() bool { return r.damage != nil && r.damage.absent }

// StandIn says what stands in for a record that cannot be read, because the damage of one must not stop what others are
// about: a value, or that it counts as not there. Neither: whoever asks for it gets the error.
type StandIn func(key string, why error) (value proto.Message, absent bool)

// readable reports that who asks for the record gets a value.
func (r *record) readable() bool { return r.Value != nil }

// newRecordOf decodes a stored value and its nonce, or returns nil for a key that the read model does not hold.
func newRecordOf(key string, kv backend.KV, standIn StandIn, shared pools) (*record, uint64) {
	class := store.ClassOf(key)
	if class == nil {
		return nil, 0
	}
	r := &record{Entry: store.Entry{Key: key, ModRevision: kv.Mod, CreateRevision: kv.Create}}
	x, err := open(class, key, kv.Value, shared)
	if err != nil {
		r.damage = &damage{why: err}
		if standIn != nil {
			r.Value, r.damage.absent = standIn(key, err)
		}
		return r, 0
	}
	r.Value, r.sum, r.size = x.value, x.sum, x.size
	return r, x.nonce
}

// opened is what is stored under a key. Sum and size are of the whole payload, whatever form it is kept in.
type opened struct {
	value proto.Message
	sum   uint32
	size  uint32
	nonce uint64
}

// open reads what is stored under a key of the class, and checks it.
func open(class *store.Class, key string, stored []byte, shared pools) (opened, error) {
	env, err := envelope.Unseal(key, stored)
	if err != nil {
		return opened{}, err
	}
	payload, sum := env.GetPayload(), env.GetChecksum()
	if envelope.Schema(env.GetSchema()) == envelope.Short {
		if payload, err = class.Lengthen(key, payload); err != nil {
			return opened{}, err
		}
		sum = envelope.Checksum(payload)
	}
	value, err := shared.read(class, payload)
	if err != nil {
		return opened{}, envelope.Undecodable(key, class.New(), err)
	}
	return opened{value: value, sum: sum, size: uint32(len(payload)), nonce: env.GetNonce()}, nil
}

// seal is what is stored of a payload: its short form, where it has one.
func seal(key string, payload []byte, sum uint32, nonce uint64) []byte {
	if short, ok := store.ClassOf(key).Shorten(key, payload); ok {
		return envelope.Seal(envelope.Short, short, envelope.Checksum(short), nonce)
	}
	return envelope.Seal(envelope.Whole, payload, sum, nonce)
}

// holds reports whether the record has this payload.
func (r *record) holds(payload []byte, sum uint32) bool {
	if r == nil || r.damage != nil || r.sum != sum || int(r.size) != len(payload) {
		return false
	}
	stored, err := envelope.Payload(r.Value)
	return err == nil && bytes.Equal(stored, payload)
}

// payloadOf encodes a value that belongs under the key.
func payloadOf(key string, value proto.Message) ([]byte, error) {
	want := store.NewRecord(key)
	if want == nil {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: no record lives under this key", key)
	}
	if value == nil || value.ProtoReflect().Descriptor() != want.ProtoReflect().Descriptor() {
		return nil, fleet.Errorf(fleet.ErrInvalid, "%s: holds %T, not %T", key, want, value)
	}
	payload, err := envelope.Payload(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return payload, nil
}
