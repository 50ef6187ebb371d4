// Package envelope is how values are stored: a protobuf message with a schema version, a checksum, and, where one is
// wanted, a nonce that tells one write from every other. It owns that format; it must not know what the messages are for
// or where they are kept.
package envelope

import (
	"fmt"
	"hash/crc32"
	"math/rand/v2"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/pkg/fleet"
)

// Schema says how the payload of an Envelope is to be read; this hub reads all of these.
type Schema uint32

// The schemas.
const (
	Whole Schema = 1 // as it is
	Short Schema = 2 // the short form of the class of records

	newest = Short
)

var (
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
	deterministic = proto.MarshalOptions{Deterministic: true}
)

// Payload encodes a message: equal messages have equal bytes.
func Payload(value proto.Message) ([]byte, error) { return deterministic.Marshal(value) }

// Checksum is that of a payload: CRC-32C.
func Checksum(payload []byte) uint32 { return crc32.Checksum(payload, castagnoli) }

// DrawNonce makes a number that no other write has; never 0.
func DrawNonce() uint64 { return rand.Uint64() | 1 }

// Seal puts a payload, whose checksum is sum, into an Envelope, field by field. A nonce of 0 is none.
func Seal(schema Schema, payload []byte, sum uint32, nonce uint64) []byte {
	b := make([]byte, 0, len(payload)+overhead)
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType), uint64(schema))
	b = protowire.AppendFixed32(protowire.AppendTag(b, 2, protowire.Fixed32Type), sum)
	b = protowire.AppendBytes(protowire.AppendTag(b, 3, protowire.BytesType), payload)
	if nonce != 0 {
		b = protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), nonce)
	}
	return b
}

const overhead = 32

// SealMessage encodes a message and puts it into an Envelope without a nonce.
func SealMessage(name string, value proto.Message) ([]byte, error) {
	payload, err := Payload(value)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return Seal(Whole, payload, Checksum(payload), 0), nil
}

// Open reads what is stored into value, and checks it. The name is what errors call it.
func Open(name string, stored []byte, value proto.Message) (*storev1.Envelope, error) {
	env, err := Unseal(name, stored)
	if err != nil {
		return nil, err
	}
	if s := Schema(env.GetSchema()); s != Whole {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: schema %d, which it cannot have", name, s)
	}
	if err := proto.Unmarshal(env.GetPayload(), value); err != nil {
		return nil, Undecodable(name, value, err)
	}
	return env, nil
}

// Undecodable is the error of a payload that is not of the type of value.
func Undecodable(name string, value proto.Message, err error) error {
	return fleet.Errorf(fleet.ErrCorrupt, "%s: no %T: %v", name, value, err)
}

// Unseal reads what is stored, and checks it, without decoding the payload.
func Unseal(name string, stored []byte) (*storev1.Envelope, error) {
	env := new(storev1.Envelope)
	if err := proto.Unmarshal(stored, env); err != nil {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: no envelope: %v", name, err)
	}
	if env.GetSchema() == 0 || Schema(env.GetSchema()) > newest {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: schema %d, and this hub knows up to %d", name, env.GetSchema(), newest)
	}
	if sum := Checksum(env.GetPayload()); sum != env.GetChecksum() {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "%s: checksum %08x, not %08x", name, sum, env.GetChecksum())
	}
	return env, nil
}
