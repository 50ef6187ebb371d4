package resource

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/client-go/util/jsonpath"
)

// Node is a message as a tree in the order of its fields: names in camelCase, defaults written, unset messages left
// out, times in RFC 3339, 64-bit numbers as numbers.
func Node(m proto.Message) *yaml.Node { return encoder{defaults: true}.message(m.ProtoReflect()) }

// Sparse is the same without what is not set: what a person would write.
func Sparse(m proto.Message) *yaml.Node { return encoder{}.message(m.ProtoReflect()) }

// List is {"items": [...]}.
func List[M proto.Message](items []M) *yaml.Node {
	list := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
	for _, item := range items {
		list.Content = append(list.Content, Node(item))
	}
	return mappingNode("items", list)
}

// Items is a list of messages without a wrapper.
func Items[M proto.Message](items []M) *yaml.Node { return List(items).Content[1] }

// Member is a field of a Mapping.
type Member struct {
	Name  string
	Value *yaml.Node
}

// Mapping is an object of these fields.
func Mapping(members ...Member) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, m := range members {
		n.Content = append(n.Content, textNode(m.Name), m.Value)
	}
	return n
}

// Text is a string.
func Text(s string) *yaml.Node { return textNode(s) }

func mappingNode(key string, value *yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: []*yaml.Node{textNode(key), value}}
}

func textNode(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// encoder makes nodes of messages.
type encoder struct {
	defaults bool // fields at their defaults are written
}

func (e encoder) message(m protoreflect.Message) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if (field.HasPresence() || !e.defaults) && !m.Has(field) {
			continue
		}
		n.Content = append(n.Content, textNode(field.JSONName()), e.field(field, m.Get(field)))
	}
	return n
}

func (e encoder) field(field protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	switch {
	case field.IsMap():
		return e.mapping(field, v.Map())
	case field.IsList():
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for i := range v.List().Len() {
			n.Content = append(n.Content, e.value(field, v.List().Get(i)))
		}
		return n
	}
	return e.value(field, v)
}

func (e encoder) mapping(field protoreflect.FieldDescriptor, m protoreflect.Map) *yaml.Node {
	var keys []string
	m.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k.String())
		return true
	})
	slices.Sort(keys)
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, k := range keys {
		value := m.Get(protoreflect.ValueOfString(k).MapKey())
		n.Content = append(n.Content, textNode(k), e.value(field.MapValue(), value))
	}
	return n
}

func (e encoder) value(field protoreflect.FieldDescriptor, v protoreflect.Value) *yaml.Node {
	switch field.Kind() {
	case protoreflect.MessageKind:
		switch m := v.Message().Interface().(type) {
		case *timestamppb.Timestamp:
			return textNode(m.AsTime().Format(time.RFC3339Nano))
		case *structpb.Struct:
			return anyMapNode(m)
		}
		return e.message(v.Message())
	case protoreflect.BoolKind:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v.Bool())}
	case protoreflect.StringKind:
		return textNode(v.String())
	case protoreflect.BytesKind:
		return textNode(base64.StdEncoding.EncodeToString(v.Bytes()))
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: v.String()}
}

// WriteYAML writes one document.
func WriteYAML(w io.Writer, n *yaml.Node) error {
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(n); err != nil {
		return err
	}
	return enc.Close()
}

// WriteJSON writes one value, indented by two.
func WriteJSON(w io.Writer, n *yaml.Node) error {
	var raw, indented bytes.Buffer
	if err := appendJSON(&raw, n); err != nil {
		return err
	}
	if err := json.Indent(&indented, raw.Bytes(), "", "  "); err != nil {
		return err
	}
	indented.WriteByte('\n')
	_, err := w.Write(indented.Bytes())
	return err
}

// WriteJSONLine writes one value in one line, for streams.
func WriteJSONLine(w io.Writer, n *yaml.Node) error {
	var raw bytes.Buffer
	if err := appendJSON(&raw, n); err != nil {
		return err
	}
	raw.WriteByte('\n')
	_, err := w.Write(raw.Bytes())
	return err
}

func appendJSON(b *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.MappingNode:
		b.WriteByte('{')
		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := appendText(b, n.Content[i].Value); err != nil {
				return err
			}
			b.WriteByte(':')
			if err := appendJSON(b, n.Content[i+1]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
		return nil
	case yaml.SequenceNode:
		b.WriteByte('[')
		for i, item := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := appendJSON(b, item); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	}
	if n.Tag != "!!str" {
		b.WriteString(n.Value)
		return nil
	}
	return appendText(b, n.Value)
}

func appendText(b *bytes.Buffer, s string) error {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1) // Encode ends with a line break
	return nil
}

// Any is the tree as maps, slices and scalars.
func Any(n *yaml.Node) any {
	switch n.Kind {
	case yaml.MappingNode:
		out := make(map[string]any, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			out[n.Content[i].Value] = Any(n.Content[i+1])
		}
		return out
	case yaml.SequenceNode:
		out := make([]any, len(n.Content))
		for i, item := range n.Content {
			out[i] = Any(item)
		}
		return out
	}
	switch n.Tag {
	case "!!int":
		if v, err := strconv.ParseInt(n.Value, 10, 64); err == nil {
			return v
		}
	case "!!bool":
		return n.Value == "true"
	}
	return n.Value
}

// JSONPath compiles a template in kubectl's relaxed form: .metadata.name is {.metadata.name}.
func JSONPath(template string) (func(w io.Writer, n *yaml.Node) error, error) {
	text := template
	if !bytes.ContainsRune([]byte(text), '{') {
		if text == "" || text[0] != '.' && text[0] != '[' {
			text = "." + text
		}
		text = "{" + text + "}"
	}
	j := jsonpath.New("out").AllowMissingKeys(true)
	if err := j.Parse(text); err != nil {
		return nil, fmt.Errorf("%q is no JSONPath: %w", template, err)
	}
	return func(w io.Writer, n *yaml.Node) error { return j.Execute(w, Any(n)) }, nil
}

// Event is {"type": ..., "object": ...}, one change of a stream.
func Event(kind string, object *yaml.Node) *yaml.Node {
	n := mappingNode("type", textNode(kind))
	n.Content = append(n.Content, textNode("object"), object)
	return n
}
