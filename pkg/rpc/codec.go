package rpc

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that is bounded here
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/pkg/fleet"
)

const (
	// maxParts is how many messages a request may hold in itself. An empty one is two bytes on the wire and hundreds in
	// memory: without a bound a few requests of the allowed size are more than a hub has. What people and agents send has
	// some thousands at most.
	maxParts = 1 << 16
	// harmless is the size below which a request cannot hold too many.
	harmless = 64 * kib
)

// boundedCodec refuses a request of too many parts before any of them is made. Requests are decoded before it is known who
// sent them.
type boundedCodec struct{ encoding.CodecV2 }

func newBoundedCodec() boundedCodec { return boundedCodec{encoding.GetCodecV2("proto")} }

// Unmarshal implements encoding.CodecV2.
func (c boundedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok || data.Len() <= harmless {
		return c.CodecV2.Unmarshal(data, v)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	left := maxParts
	if err := countParts(m.ProtoReflect().Descriptor(), whole.ReadOnlyData(), &left); err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(mem.BufferSlice{whole}, v)
}

// countParts takes the messages that are in a message from left.
func countParts(of protoreflect.MessageDescriptor, raw []byte, left *int) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return protowire.ParseError(n)
		}
		raw = raw[n:]
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return protowire.ParseError(n)
		}
		if field := of.Fields().ByNumber(number); kind == protowire.BytesType && field != nil && field.Message() != nil {
			if *left--; *left < 0 {
				return fleet.Errorf(fleet.ErrExhausted, "%s: holds more than %d messages", of.Name(), maxParts)
			}
			part, _ := protowire.ConsumeBytes(raw)
			if err := countParts(field.Message(), part, left); err != nil {
				return err
			}
		}
		raw = raw[n:]
	}
	return nil
}
