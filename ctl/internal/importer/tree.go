package importer

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/pkg/resource"
)

// tree is a manifest of which every field is accounted for: read, passed over on purpose, or named in a note. A field that the conversion
// never asks for is no field of that tool's kind, and an error.
type tree struct {
	resource.Document
	notes  *[]Note
	prefix string // of the paths in notes; empty for the manifest that is converted itself
	asked  map[*yaml.Node][]string
	listed map[*yaml.Node]bool
	read   map[*yaml.Node]bool
	errs   []error
}

func newTree(doc resource.Document, notes *[]Note, prefix string) *tree {
	return &tree{Document: doc, notes: notes, prefix: prefix, asked: map[*yaml.Node][]string{}, listed: map[*yaml.Node]bool{}, read: map[*yaml.Node]bool{}}
}

func (t *tree) root() field { return field{t: t, n: t.Node} }

func (t *tree) fail(n *yaml.Node, path, format string, args ...any) {
	t.errs = append(t.errs, &resource.Error{Source: t.Source, Line: n.Line, Object: t.Object(), Path: path, Message: fmt.Sprintf(format, args...)})
}

// field is a place in a tree; n is nil where nothing is set.
type field struct {
	t    *tree
	n    *yaml.Node
	path string
}

func (f field) set() bool { return f.n != nil }

// at is a field below this one.
func (f field) at(names ...string) field {
	for _, name := range names {
		f = f.child(name)
	}
	return f
}

func (f field) child(name string) field {
	out := field{t: f.t, path: strings.TrimPrefix(f.path+"."+name, ".")}
	if f.n == nil {
		return out
	}
	if f.n.Kind != yaml.MappingNode {
		if !f.t.read[f.n] {
			f.t.read[f.n] = true
			f.t.fail(f.n, f.path, "takes a mapping")
		}
		return out
	}
	if !slices.Contains(f.t.asked[f.n], name) {
		f.t.asked[f.n] = append(f.t.asked[f.n], name)
	}
	for i := 0; i+1 < len(f.n.Content); i += 2 {
		if v := f.n.Content[i+1]; f.n.Content[i].Value == name && v.Tag != "!!null" {
			out.n = v
		}
	}
	return out
}

// text reads a scalar.
func (f field) text() string {
	if f.n == nil {
		return ""
	}
	f.t.read[f.n] = true
	if f.n.Kind != yaml.ScalarNode {
		f.t.fail(f.n, f.path, "takes a text")
		return ""
	}
	return f.n.Value
}

func (f field) flag() bool {
	text := f.text()
	if text == "" {
		return false
	}
	is, err := strconv.ParseBool(text)
	if err != nil {
		f.t.fail(f.n, f.path, "takes true or false, not %q", text)
	}
	return is
}

func (f field) number() int64 {
	text := f.text()
	if text == "" {
		return 0
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f.t.fail(f.n, f.path, "takes a whole number, not %q", text)
	}
	return n
}

func (f field) items() []field {
	if f.n == nil {
		return nil
	}
	f.t.listed[f.n] = true
	if f.n.Kind != yaml.SequenceNode {
		f.t.fail(f.n, f.path, "takes a list")
		return nil
	}
	out := make([]field, len(f.n.Content))
	for i, item := range f.n.Content {
		out[i] = field{t: f.t, n: item, path: fmt.Sprintf("%s[%d]", f.path, i)}
	}
	return out
}

func (f field) texts() []string {
	var out []string
	for _, item := range f.items() {
		out = append(out, item.text())
	}
	return out
}

// keys are the names in a mapping, sorted; each is read with at.
func (f field) keys() []string {
	if f.n == nil {
		return nil
	}
	if f.n.Kind != yaml.MappingNode {
		f.t.read[f.n] = true
		f.t.fail(f.n, f.path, "takes a mapping")
		return nil
	}
	var out []string
	for i := 0; i+1 < len(f.n.Content); i += 2 {
		out = append(out, f.n.Content[i].Value)
	}
	slices.Sort(out)
	return out
}

// table reads a mapping of texts.
func (f field) table() map[string]string {
	out := map[string]string{}
	for _, key := range f.keys() {
		out[key] = f.at(key).text()
	}
	return out
}

// values reads a mapping of anything as Helm reads its files.
func (f field) values() *structpb.Struct {
	if f.n == nil {
		return nil
	}
	f.t.read[f.n] = true
	out, errs := resource.AnyMap(f.t.Source, f.t.Object(), f.path, f.n)
	f.t.errs = append(f.t.errs, errs...)
	return out
}

// selector reads a label selector of Kubernetes.
func (f field) selector() *v1.LabelSelector {
	if f.n == nil {
		return nil
	}
	out := &v1.LabelSelector{}
	if labels := f.at("matchLabels"); labels.set() {
		out.MatchLabels = labels.table()
	}
	for _, e := range f.at("matchExpressions").items() {
		out.MatchExpressions = append(out.MatchExpressions, &v1.LabelSelectorRequirement{Key: e.at("key").text(), Operator: e.at("operator").text(), Values: e.at("values").texts()})
	}
	return out
}

// pass passes over a field that means nothing beside what always holds here, or that the other tool writes itself.
func (f field) pass() {
	if f.n != nil {
		f.t.read[f.n] = true
	}
}

// drop says that a field is not carried over, and what to do about it.
func (f field) drop(format string, args ...any) {
	if f.n != nil {
		f.t.read[f.n] = true
		f.note(Dropped, format, args...)
	}
}

// dropIf drops a field that is not at the value that changes nothing.
func (f field) dropIf(is bool, format string, args ...any) {
	if is {
		f.drop(format, args...)
	} else {
		f.pass()
	}
}

// check says what a person should look at, of a field that is carried over.
func (f field) check(format string, args ...any) { f.note(Check, format, args...) }

func (f field) note(kind NoteKind, format string, args ...any) {
	path := f.path
	if f.t.prefix != "" {
		path = f.t.prefix + ": " + path
	}
	*f.t.notes = append(*f.t.notes, Note{Kind: kind, Path: path, Text: fmt.Sprintf(format, args...)})
}

// finish names what nobody has read.
func (t *tree) finish() []error {
	t.rest(t.Node, "")
	return t.errs
}

func (t *tree) rest(n *yaml.Node, path string) {
	f := field{t: t, n: n, path: path}
	switch {
	case t.read[n] || n.Tag == "!!null":
	case n.Kind == yaml.MappingNode && (len(t.asked[n]) > 0 || len(n.Content) == 0):
		t.restOfMapping(n, path)
	case n.Kind == yaml.SequenceNode && (t.listed[n] || len(n.Content) == 0):
		for i, item := range n.Content {
			t.rest(item, fmt.Sprintf("%s[%d]", path, i))
		}
	default:
		f.note(Dropped, "is not carried over")
	}
}

func (t *tree) restOfMapping(n *yaml.Node, path string) {
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		if line, twice := lines[key.Value]; twice {
			t.fail(key, at, "is set twice, first in line %d", line)
			continue
		}
		lines[key.Value] = key.Line
		if slices.Contains(t.asked[n], key.Value) {
			t.rest(n.Content[i+1], at)
			continue
		}
		if near := resource.Nearest(key.Value, t.asked[n]); near != "" {
			t.fail(key, at, "unknown field; did you mean %s?", near)
			continue
		}
		t.fail(key, at, "unknown field: take it out, or look what it does there")
	}
}
