package api

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/hub/internal/store"
)

// Whatever is left out of a request, at whatever depth, is an answer or an error, never a panic.
func TestRequestsWithAnythingLeftOut(t *testing.T) {
	a := newAPI(t, func(w store.Writer) { putRollout(w, putModule(w, "default", "shop", nil), 1, 0, "Pending") })
	v := reflect.ValueOf(a)
	called := 0
	for i := range v.NumMethod() {
		m := v.Type().Method(i)
		// Those of the registry have tests of their own; here it is empty.
		if m.Type.NumIn() != 3 || m.Type.NumOut() != 2 || !strings.HasSuffix(m.Type.In(2).String(), "Request") || usesRegistry[m.Name] {
			continue
		}
		req, ok := reflect.New(m.Type.In(2).Elem()).Interface().(proto.Message)
		if !ok {
			continue
		}
		for _, variant := range append(sparse(req.ProtoReflect(), 0), reflect.Zero(m.Type.In(2)).Interface().(proto.Message)) {
			called++
			func() {
				defer func() {
					if p := recover(); p != nil {
						t.Errorf("%s(%v): panic: %v", m.Name, variant, p)
					}
				}()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				out := v.Method(i).Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(variant)})
				if err, _ := out[1].Interface().(error); err != nil && err.Error() == "" {
					t.Errorf("%s(%v): an error without a sentence", m.Name, variant)
				}
			}()
		}
	}
	if called < 100 {
		t.Errorf("only %d requests", called)
	}
}

var usesRegistry = map[string]bool{"JoinCluster": true, "RevokeCluster": true, "LockCluster": true, "UnlockCluster": true, "CreateUser": true, "ListUsers": true, "DeleteUser": true,
	"ListAuthorities": true, "ListTokens": true, "DeleteToken": true}

// sparse are messages of the type with one way of fields set each: to that field an empty message, or a plain value, and
// below it the same again.
func sparse(m protoreflect.Message, depth int) []proto.Message {
	out := []proto.Message{m.New().Interface()}
	if depth > 6 {
		return out
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsMap():
			x := m.New()
			x.Mutable(f)
			out = append(out, x.Interface())
		case f.Kind() == protoreflect.MessageKind && f.Message().FullName() == "google.protobuf.Timestamp":
		case f.Kind() == protoreflect.MessageKind:
			var below []proto.Message
			if f.IsList() {
				below = sparse(m.New().Mutable(f).List().NewElement().Message(), depth+1)
			} else {
				below = sparse(m.NewField(f).Message(), depth+1)
			}
			for _, b := range below {
				x := alreadyNamed(m)
				if f.IsList() {
					l := x.Mutable(f).List()
					l.Append(protoreflect.ValueOfMessage(b.ProtoReflect()))
				} else {
					x.Set(f, protoreflect.ValueOfMessage(b.ProtoReflect()))
				}
				out = append(out, x.Interface())
			}
		case f.Kind() == protoreflect.StringKind && !f.IsList():
			x := m.New()
			x.Set(f, protoreflect.ValueOfString("shop"))
			out = append(out, x.Interface())
		}
	}
	return out
}

// alreadyNamed is a new message that names itself as far as its type lets it: validation then goes on to the next field.
func alreadyNamed(m protoreflect.Message) protoreflect.Message {
	x := m.New()
	for _, n := range []protoreflect.Name{"name", "module", "id"} {
		if f := m.Descriptor().Fields().ByName(n); f != nil && f.Kind() == protoreflect.StringKind && !f.IsList() {
			x.Set(f, protoreflect.ValueOfString("shop"))
		}
	}
	if f := m.Descriptor().Fields().ByName("metadata"); f != nil && f.Kind() == protoreflect.MessageKind {
		meta := x.Mutable(f).Message()
		meta.Set(meta.Descriptor().Fields().ByName("name"), protoreflect.ValueOfString("shop"))
	}
	if m.Descriptor().Name() == "ModuleSpec" {
		src := x.Mutable(m.Descriptor().Fields().ByName("source")).Message()
		inline := src.Mutable(src.Descriptor().Fields().ByName("inline")).Message()
		files := inline.Mutable(inline.Descriptor().Fields().ByName("files")).Map()
		files.Set(protoreflect.ValueOfString("a.yaml").MapKey(), protoreflect.ValueOfString("a"))
		place := x.Mutable(m.Descriptor().Fields().ByName("placement")).Message()
		place.Mutable(place.Descriptor().Fields().ByName("selector"))
	}
	return x
}
