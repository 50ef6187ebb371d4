package resource

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// A map whose fields nobody here knows, as values of a chart: it is read and written as the YAML that it stands for.
const structName = protoreflect.FullName("google.protobuf.Struct")

// AnyMap reads a mapping whose fields nobody here knows, at a path of a file's object.
func AnyMap(source, object, path string, n *yaml.Node) (*structpb.Struct, []error) {
	d := &decoder{source: source, object: object}
	out := &structpb.Struct{}
	d.anyMap(out, n, path)
	return out, d.errs
}

// anyMap fills a map of anything.
func (d *decoder) anyMap(into *structpb.Struct, n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		d.fail(n, path, "takes a mapping, not %s", describe(n))
		return
	}
	if !d.enter(n, path) {
		return
	}
	defer d.leave(n)
	into.Fields = map[string]*structpb.Value{}
	for _, p := range d.pairs(n, path) {
		at := join(path, p.key.Value)
		if p.key.Kind != yaml.ScalarNode {
			d.fail(p.key, path, "a key is %s; write a text", describe(p.key))
			continue
		}
		into.Fields[p.key.Value] = d.anyValue(p.value, at)
	}
}

func (d *decoder) anyValue(n *yaml.Node, path string) *structpb.Value {
	n, ok := d.follow(n, path)
	if !ok {
		return structpb.NewNullValue()
	}
	switch n.Kind {
	case yaml.MappingNode:
		m := &structpb.Struct{}
		d.anyMap(m, n, path)
		return structpb.NewStructValue(m)
	case yaml.SequenceNode:
		return structpb.NewListValue(d.anyList(n, path))
	}
	return d.anyScalar(n, path)
}

func (d *decoder) anyList(n *yaml.Node, path string) *structpb.ListValue {
	list := &structpb.ListValue{}
	if !d.enter(n, path) {
		return list
	}
	defer d.leave(n)
	for i, item := range n.Content {
		list.Values = append(list.Values, d.anyValue(item, path+"["+strconv.Itoa(i)+"]"))
	}
	return list
}

// oldBooleans are the words that YAML 1.1 has for true and false beside these.
var oldBooleans = map[string]bool{"y": true, "Y": true, "yes": true, "Yes": true, "YES": true, "on": true, "On": true, "ON": true,
	"n": false, "N": false, "no": false, "No": false, "NO": false, "off": false, "Off": false, "OFF": false}

// anyScalar reads a scalar as Helm reads its files (YAML 1.1), but refuses a whole number that it would not keep. No error has the value:
// it may be a password that was to be in quotes, and a catalog's problems are shown to whoever reads it.
func (d *decoder) anyScalar(n *yaml.Node, path string) *structpb.Value {
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0
	if quoted || n.Tag == "!!str" && n.Style&yaml.TaggedStyle != 0 {
		return structpb.NewStringValue(n.Value)
	}
	if is, ok := oldBooleans[n.Value]; ok {
		return structpb.NewBoolValue(is)
	}
	switch n.Tag {
	case "!!null":
		return structpb.NewNullValue()
	case "!!bool":
		return structpb.NewBoolValue(strings.EqualFold(n.Value, "true"))
	case "!!int":
		return d.wholeNumber(n, path)
	case "!!float":
		if !strings.ContainsAny(n.Value, ".eE") { // a whole number that is even larger
			return d.wholeNumber(n, path)
		}
		f, err := strconv.ParseFloat(strings.ReplaceAll(n.Value, "_", ""), 64)
		if err != nil {
			d.fail(n, path, "takes a number that JSON has; put it in quotes if it is a text")
		}
		return structpb.NewNumberValue(f)
	case "!!str", "!!timestamp":
		return structpb.NewStringValue(n.Value)
	}
	d.fail(n, path, "has a tag; write the value without it, and put text that begins with ! in quotes")
	return structpb.NewNullValue()
}

// maxWhole is the largest number up to which a float64 has all whole ones.
const maxWhole = 1 << 53

func (d *decoder) wholeNumber(n *yaml.Node, path string) *structpb.Value {
	i, err := strconv.ParseInt(strings.ReplaceAll(n.Value, "_", ""), 0, 64)
	if err != nil || i > maxWhole || i < -maxWhole {
		d.fail(n, path, "has more digits than Helm keeps of a number; put it in quotes")
	}
	return structpb.NewNumberValue(float64(i))
}

// anyNode is the YAML of a value.
func anyNode(v *structpb.Value) *yaml.Node {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		return anyMapNode(kind.StructValue)
	case *structpb.Value_ListValue:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range kind.ListValue.GetValues() {
			n.Content = append(n.Content, anyNode(item))
		}
		return n
	case *structpb.Value_StringValue:
		n := textNode(kind.StringValue)
		if _, reads := oldBooleans[kind.StringValue]; reads {
			n.Style = yaml.DoubleQuotedStyle
		}
		return n
	case *structpb.Value_BoolValue:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(kind.BoolValue)}
	case *structpb.Value_NumberValue:
		return numberNode(kind.NumberValue)
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}

func anyMapNode(m *structpb.Struct) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
	for _, key := range slices.Sorted(maps.Keys(m.GetFields())) {
		n.Content = append(n.Content, textNode(key), anyNode(m.GetFields()[key]))
	}
	return n
}

// numberNode writes whole numbers without exponent, as far as they are exact.
func numberNode(f float64) *yaml.Node {
	if f == float64(int64(f)) && f <= maxWhole && f >= -maxWhole {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.FormatInt(int64(f), 10)}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: strconv.FormatFloat(f, 'g', -1, 64)}
}
