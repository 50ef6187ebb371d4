package resource

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"towline.dev/towline/pkg/fleet"
)

const (
	// maxNodes bounds what aliases may expand to in one document, and what merge keys bring.
	maxNodes = 200_000
	// maxDepth bounds mappings and lists inside one another. It is more than the values of a chart may have.
	maxDepth = 250
	// maxErrors bounds what is told of one document, since each error has a path of its own.
	maxErrors = 100
	// maxPath is from where on a path grows no more, and maxKey is what is shown of a key: both are made of keys, which may be of any length.
	maxPath, maxKey = 2000, 200
)

// decoder puts one YAML document into a message and collects what is wrong with it.
type decoder struct {
	source string
	object string
	skip   func(path string) bool // output-only fields
	errs   []error
	nodes  int
	inside map[*yaml.Node]bool // mappings and lists that are being read, to find an alias to one of them
}

// fail collects an error, and ends the reading where there are too many of them.
func (d *decoder) fail(n *yaml.Node, path, format string, args ...any) {
	switch {
	case len(d.errs) == maxErrors:
		return
	case len(d.errs) == maxErrors-1:
		d.nodes = maxNodes + 1
		path, format, args = "", "more is wrong than is told here", nil
	}
	d.errs = append(d.errs, &Error{Source: d.source, Line: n.Line, Object: d.object, Path: path, Message: fmt.Sprintf(format, args...)})
}

// follow resolves aliases; it is false when the document is too large with them.
func (d *decoder) follow(n *yaml.Node, path string) (*yaml.Node, bool) {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n, d.count(n, path, 1)
}

// count adds values to those of the document; it is false when there are too many of them.
func (d *decoder) count(n *yaml.Node, path string, values int) bool {
	before := d.nodes
	d.nodes += values
	if before <= maxNodes && d.nodes > maxNodes {
		d.fail(n, path, "the document has more than %d values with its aliases expanded", maxNodes)
	}
	return d.nodes <= maxNodes
}

// enter begins a mapping or a list, which leave ends; it is false where that has no end, or goes too deep.
func (d *decoder) enter(n *yaml.Node, path string) bool {
	if d.inside[n] {
		d.fail(n, path, "has itself: an alias in it refers to what it is part of; write the value out")
		return false
	}
	if len(d.inside) >= maxDepth {
		d.fail(n, path, "is more than %d levels deep", maxDepth)
		return false
	}
	if d.inside == nil {
		d.inside = map[*yaml.Node]bool{}
	}
	d.inside[n] = true
	return true
}

func (d *decoder) leave(n *yaml.Node) { delete(d.inside, n) }

type pair struct{ key, value *yaml.Node }

// pairs lists a mapping's entries with merge keys resolved; a key written twice is an error.
func (d *decoder) pairs(n *yaml.Node, path string) []pair {
	var out []pair
	at := map[string]int{}
	add := func(p pair, merged bool) {
		if i, taken := at[p.key.Value]; taken {
			if !merged {
				d.fail(p.key, join(path, p.key.Value), "is set twice, first in line %d", out[i].key.Line)
			}
			return
		}
		at[p.key.Value] = len(out)
		out = append(out, p)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if k := n.Content[i]; k.Tag != "!!merge" {
			add(pair{k, n.Content[i+1]}, false)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Tag != "!!merge" {
			continue
		}
		d.merged(n.Content[i+1], path, func(p pair) { add(p, true) })
	}
	return out
}

// merged adds what a merge key brings. All of it counts, also what the mapping has already: each alias may bring very much of that.
func (d *decoder) merged(n *yaml.Node, path string, add func(pair)) {
	n, ok := d.follow(n, path)
	if !ok || !d.enter(n, path) {
		return
	}
	defer d.leave(n)
	switch n.Kind {
	case yaml.MappingNode:
		found := d.pairs(n, path)
		if !d.count(n, path, len(found)) {
			return
		}
		for _, p := range found {
			add(p)
		}
	case yaml.SequenceNode:
		for _, item := range n.Content {
			d.merged(item, path, add)
		}
	default:
		d.fail(n, path, "<< takes a mapping or a list of mappings, not %s", describe(n))
	}
}

// message fills m from a mapping.
func (d *decoder) message(m protoreflect.Message, n *yaml.Node, path string) {
	n, ok := d.follow(n, path)
	if !ok {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "takes a mapping, not %s", describe(n))
		return
	}
	if !d.enter(n, path) {
		return
	}
	defer d.leave(n)
	fields := m.Descriptor().Fields()
	for _, p := range d.pairs(n, path) {
		at := join(path, p.key.Value)
		if d.skip != nil && d.skip(at) {
			continue
		}
		field := fields.ByJSONName(p.key.Value)
		if field == nil {
			d.unknown(p.key, path, fields)
			continue
		}
		d.field(m, field, p.value, at)
	}
}

func (d *decoder) unknown(key *yaml.Node, path string, fields protoreflect.FieldDescriptors) {
	names := make([]string, fields.Len())
	for i := range names {
		names[i] = fields.Get(i).JSONName()
	}
	if near := Nearest(key.Value, names); near != "" {
		d.fail(key, join(path, key.Value), "unknown field; did you mean %s?", near)
		return
	}
	d.fail(key, join(path, key.Value), "unknown field; known are %s", strings.Join(names, ", "))
}

func (d *decoder) field(m protoreflect.Message, field protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	n, ok := d.follow(n, path)
	if !ok || isNull(n) {
		return
	}
	switch {
	case field.IsMap():
		d.mapping(m.Mutable(field).Map(), field.MapValue(), n, path)
	case field.IsList():
		d.list(m.Mutable(field).List(), field, n, path)
	case field.Message() != nil && field.Message().FullName() == timestampName:
		if t, ok := d.timestamp(n, path); ok {
			m.Set(field, protoreflect.ValueOfMessage(t.ProtoReflect()))
		}
	case field.Message() != nil && field.Message().FullName() == structName:
		d.anyMap(m.Mutable(field).Message().Interface().(*structpb.Struct), n, path)
	case field.Message() != nil:
		d.message(m.Mutable(field).Message(), n, path)
	default:
		if v, ok := d.scalar(field, n, path); ok {
			m.Set(field, v)
		}
	}
}

const timestampName = protoreflect.FullName("google.protobuf.Timestamp")

func (d *decoder) timestamp(n *yaml.Node, path string) (*timestamppb.Timestamp, bool) {
	t, err := time.Parse(time.RFC3339, n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.fail(n, path, "takes a time such as 2026-07-03T12:00:00Z, not %s", quote(n))
		return nil, false
	}
	return timestamppb.New(t), true
}

func (d *decoder) mapping(m protoreflect.Map, value protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "takes a mapping, not %s", describe(n))
		return
	}
	for _, p := range d.pairs(n, path) {
		item, ok := d.follow(p.value, path)
		if !ok {
			return
		}
		at := fmt.Sprintf("%s[%q]", path, fleet.Clip(p.key.Value, maxKey))
		if isNull(item) {
			d.fail(item, at, "has no value; write \"\" for an empty text")
			continue
		}
		if v, ok := d.scalar(value, item, at); ok {
			m.Set(protoreflect.ValueOfString(p.key.Value).MapKey(), v)
		}
	}
}

func (d *decoder) list(list protoreflect.List, field protoreflect.FieldDescriptor, n *yaml.Node, path string) {
	if n.Kind != yaml.SequenceNode {
		d.fail(n, path, "takes a list, not %s", describe(n))
		return
	}
	for i, item := range n.Content {
		at := fmt.Sprintf("%s[%d]", path, i)
		item, ok := d.follow(item, at)
		if !ok {
			return
		}
		if isNull(item) {
			d.fail(item, at, "is empty; remove it or fill it in")
			continue
		}
		if field.Message() != nil {
			d.message(list.AppendMutable().Message(), item, at)
			continue
		}
		if v, ok := d.scalar(field, item, at); ok {
			list.Append(v)
		}
	}
}

func (d *decoder) scalar(field protoreflect.FieldDescriptor, n *yaml.Node, path string) (protoreflect.Value, bool) {
	none := protoreflect.Value{}
	if n.Kind != yaml.ScalarNode {
		d.fail(n, path, "takes %s, not %s", kindName(field.Kind()), describe(n))
		return none, false
	}
	wrong := func() (protoreflect.Value, bool) {
		d.fail(n, path, "takes %s, not %s", kindName(field.Kind()), quote(n))
		return none, false
	}
	switch field.Kind() {
	case protoreflect.StringKind:
		if n.Tag == "!!bool" {
			d.fail(n, path, "takes a text, not the boolean %s; put it in quotes", n.Value)
			return none, false
		}
		return protoreflect.ValueOfString(n.Value), true
	case protoreflect.BoolKind:
		if n.Tag != "!!bool" {
			return wrong()
		}
		return protoreflect.ValueOfBool(strings.EqualFold(n.Value, "true")), true
	case protoreflect.Int32Kind, protoreflect.Sint32Kind:
		v, err := strconv.ParseInt(n.Value, 0, 32)
		if err != nil {
			return wrong()
		}
		return protoreflect.ValueOfInt32(int32(v)), true
	case protoreflect.Int64Kind, protoreflect.Sint64Kind:
		v, err := strconv.ParseInt(n.Value, 0, 64)
		if err != nil {
			return wrong()
		}
		return protoreflect.ValueOfInt64(v), true
	case protoreflect.Uint64Kind:
		v, err := strconv.ParseUint(n.Value, 0, 64)
		if err != nil {
			return wrong()
		}
		return protoreflect.ValueOfUint64(v), true
	case protoreflect.BytesKind:
		v, err := base64.StdEncoding.DecodeString(n.Value)
		if err != nil {
			d.fail(n, path, "takes base64, not %s", describe(n))
			return none, false
		}
		return protoreflect.ValueOfBytes(v), true
	}
	return wrong()
}

func kindName(k protoreflect.Kind) string {
	switch k {
	case protoreflect.StringKind:
		return "a text"
	case protoreflect.BoolKind:
		return "true or false"
	case protoreflect.BytesKind:
		return "base64"
	}
	return "a whole number"
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// describe says what a node is, for errors. It shows no value: where a mapping or a list is meant, a text may be all that was to be in
// it, such as a chart's values.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	case n.Tag == "!!bool":
		return "true or false"
	case n.Tag == "!!int", n.Tag == "!!float":
		return "a number"
	}
	return "a text"
}

// quote shows a scalar that should be a number, a time or true or false; nobody keeps a secret in such a field.
func quote(n *yaml.Node) string {
	switch {
	case n.Kind != yaml.ScalarNode || isNull(n):
		return describe(n)
	case len(n.Value) > 40:
		return fmt.Sprintf("the text %.37q…", n.Value)
	case n.Tag == "!!str":
		return fmt.Sprintf("the text %q", n.Value)
	}
	return n.Value
}

// join is the path of a field or key. It stays short: a chart's values may have one long key inside another.
func join(path, name string) string {
	switch name = fleet.Clip(name, maxKey); {
	case path == "":
		return name
	case len(path) > maxPath:
		return path
	}
	return path + "." + name
}

// decode fills a new message of m's type.
func decode(source, object string, m proto.Message, n *yaml.Node, skip func(string) bool) []error {
	d := &decoder{source: source, object: object, skip: skip}
	d.message(m.ProtoReflect(), n, "")
	return d.errs
}
