package rpc

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/pkg/fleet"
)

// publicPrefix begins the methods of the public API.
const publicPrefix = "/towline.v1."

// refuseUnknown refuses a request with a field that this hub does not know: what the caller asked for there would not be
// done, and nobody would say so. Agents are of other versions than their hub at times, and their protocol has its own rule.
func refuseUnknown(method string, req any) error {
	m, ok := req.(proto.Message)
	if !ok || !strings.HasPrefix(method, publicPrefix) {
		return nil
	}
	return unknownIn(m.ProtoReflect(), "")
}

func unknownIn(m protoreflect.Message, path string) (err error) {
	if raw := m.GetUnknown(); len(raw) > 0 {
		number, _, _ := protowire.ConsumeTag(raw)
		name := fmt.Sprintf("#%d", number)
		return &fleet.FieldError{Path: under(path, name), Message: fmt.Sprintf("%s has no field of this number here: the hub is older than its client; upgrade the hubs first",
			m.Descriptor().FullName())}
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		err = unknownInField(f, v, under(path, f.JSONName()))
		return err == nil
	})
	return err
}

func unknownInField(f protoreflect.FieldDescriptor, v protoreflect.Value, path string) (err error) {
	switch {
	case f.IsMap() && f.MapValue().Message() != nil:
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			err = unknownIn(v.Message(), fmt.Sprintf("%s[%s]", path, k.String()))
			return err == nil
		})
	case f.IsMap() || f.Message() == nil:
	case f.IsList():
		for i := range v.List().Len() {
			if err = unknownIn(v.List().Get(i).Message(), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	default:
		return unknownIn(v.Message(), path)
	}
	return err
}

func under(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }
