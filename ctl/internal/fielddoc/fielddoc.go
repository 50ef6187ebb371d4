// Package fielddoc owns the documentation of the resources' fields, taken from the comments of the public protos, for
// `towline explain module.spec.rollout`. It must not know the hub, nor repeat in words what the protos say.
package fielddoc

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/resource"
)

// docs.json maps "Message" and "Message.field_name" to its comment. It is written by
// `go test ./ctl/internal/fielddoc -update` and held fresh by the same test.
//
//go:embed docs.json
var raw []byte

var comments = sync.OnceValue(func() map[string]string {
	out := map[string]string{}
	if err := json.Unmarshal(raw, &out); err != nil {
		panic("fielddoc: docs.json: " + err.Error())
	}
	return out
})

// Write explains a path such as module.spec.rollout. Its first word is one of the roots.
func Write(w io.Writer, roots map[string]proto.Message, path string) error {
	words := strings.Split(path, ".")
	root, ok := roots[strings.ToLower(words[0])]
	if !ok {
		kinds := slices.Sorted(maps.Keys(roots))
		if near := resource.Nearest(words[0], kinds); near != "" {
			return fleet.Errorf(fleet.ErrInvalid, "%s: no such kind; did you mean %s?", words[0], near)
		}
		return fleet.Errorf(fleet.ErrInvalid, "%s: no such kind; there are %s", words[0], strings.Join(kinds, ", "))
	}
	message := root.ProtoReflect().Descriptor()
	var field protoreflect.FieldDescriptor
	for i, word := range words[1:] {
		if message == nil {
			return fleet.Errorf(fleet.ErrInvalid, "%s has no fields", strings.Join(words[:i+1], "."))
		}
		if field = message.Fields().ByJSONName(word); field == nil {
			return noSuchField(message, strings.Join(words[:i+1], "."), word)
		}
		message = below(field)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "KIND     %s\nVERSION  %s\n\n", root.ProtoReflect().Descriptor().Name(), fleet.APIVersion)
	if field != nil {
		fmt.Fprintf(&b, "FIELD    %s <%s>\n\n", path, typeName(field))
	}
	writeDescription(&b, field, message)
	writeFields(&b, message)
	_, err := io.WriteString(w, b.String())
	return err
}

func noSuchField(m protoreflect.MessageDescriptor, parent, word string) error {
	var names []string
	for i := range m.Fields().Len() {
		names = append(names, m.Fields().Get(i).JSONName())
	}
	if near := resource.Nearest(word, names); near != "" {
		return fleet.Errorf(fleet.ErrInvalid, "%s has no field %s; did you mean %s?", parent, word, near)
	}
	return fleet.Errorf(fleet.ErrInvalid, "%s has no field %s; it has %s", parent, word, strings.Join(names, ", "))
}

// wellKnown are messages that people write as a value of this kind.
var wellKnown = map[protoreflect.FullName]string{"google.protobuf.Timestamp": "time", "google.protobuf.Struct": "map of anything"}

// below is the message that a field holds, or nil.
func below(f protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if f.IsMap() || f.Message() == nil || wellKnown[f.Message().FullName()] != "" {
		return nil
	}
	return f.Message()
}

func writeDescription(b *strings.Builder, field protoreflect.FieldDescriptor, message protoreflect.MessageDescriptor) {
	if field != nil {
		fmt.Fprintf(b, "%s\n", wrap(Field(field), ""))
	}
	if message != nil {
		fmt.Fprintf(b, "%s\n", wrap(comments()[string(message.Name())], ""))
	}
}

func writeFields(b *strings.Builder, message protoreflect.MessageDescriptor) {
	if message == nil || message.Fields().Len() == 0 {
		return
	}
	b.WriteString("\nFIELDS\n")
	for i := range message.Fields().Len() {
		f := message.Fields().Get(i)
		fmt.Fprintf(b, "  %s <%s>\n%s\n", f.JSONName(), typeName(f), wrap(Field(f), "    "))
	}
}

// Field is the comment of a field.
func Field(f protoreflect.FieldDescriptor) string {
	return comments()[string(f.Parent().Name())+"."+string(f.Name())]
}

func typeName(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsMap():
		return "map of " + scalarName(f.MapValue())
	case f.IsList():
		return "list of " + scalarName(f)
	}
	return scalarName(f)
}

func scalarName(f protoreflect.FieldDescriptor) string {
	switch f.Kind() {
	case protoreflect.MessageKind:
		if name := wellKnown[f.Message().FullName()]; name != "" {
			return name
		}
		return string(f.Message().Name())
	case protoreflect.StringKind:
		return "string"
	case protoreflect.BoolKind:
		return "boolean"
	case protoreflect.BytesKind:
		return "base64"
	}
	return "integer"
}

// wrap breaks text into lines of at most 96 characters.
func wrap(text, indent string) string {
	var b strings.Builder
	line := indent
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 96 && line != indent {
			b.WriteString(line + "\n")
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	return b.String() + line
}
