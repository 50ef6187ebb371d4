package manifest

import (
	"bytes"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"towline.dev/towline/pkg/fleet"
)

// document is one object as it was written: a value of a file, or an item of a List.
type document struct {
	value map[string]any
	at    place
}

// parsed is a document with the lines of its "items", so that an error in a List names the item.
type parsed struct {
	value any
	line  int
	items []int
}

// readFile reads the documents of a file. lastCounts: of a key that is given twice the last one counts; else that is an error.
func readFile(name string, data []byte, lastCounts bool) ([]document, error) {
	data = WithoutMarks(data)
	if err := checkText(name, data); err != nil {
		return nil, err
	}
	var values []parsed
	var err error
	if isJSON(name) {
		values, err = readJSON(name, data, 0)
	} else {
		values, err = readYAML(name, data, lastCounts)
	}
	if err != nil {
		return nil, err
	}
	var out []document
	for _, v := range values {
		docs, err := v.objects(name, lastCounts)
		if err != nil {
			return nil, err
		}
		out = append(out, docs...)
	}
	return out, nil
}

// byteOrderMark is a mark before the first line of a document, or between its separator and that, as cat leaves it of files that begin with one.
// No text of YAML can have a separator at the beginning of a line.
var byteOrderMark = regexp.MustCompile(`\A\x{FEFF}|\n\x{FEFF}---[ \t\r\n]|(?:\A|\n)---[ \t]*\r?\n\x{FEFF}`)

// WithoutMarks is YAML without the byte order marks that stand at the beginning of its documents; its lines keep their numbers. A parser takes one
// in the middle of a file for a part of the first key, or of the separator.
func WithoutMarks(data []byte) []byte {
	const mark = "\ufeff"
	if !bytes.Contains(data, []byte(mark)) {
		return data
	}
	for range 2 { // a mark before a separator hides one behind it
		data = byteOrderMark.ReplaceAllFunc(data, func(found []byte) []byte { return bytes.ReplaceAll(found, []byte(mark), nil) })
	}
	return data
}

func isJSON(name string) bool { return strings.EqualFold(path.Ext(name), ".json") }

// IsText reports that something is text in UTF-8, and not what is packed, encrypted or in another encoding.
func IsText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }

// lfsPointer is how a file begins that only says where its content is.
var lfsPointer = []byte("version https://git-lfs.github.com/spec/")

// IsPointer reports that a file is kept in Git LFS, and was not fetched: it only says where its content is.
func IsPointer(data []byte) bool { return bytes.HasPrefix(data, lfsPointer) }

func checkText(name string, data []byte) error {
	if IsText(data) {
		return nil
	}
	line := 1
	for rest := data; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		if r == 0 || r == utf8.RuneError && size == 1 {
			break
		}
		if r == '\n' {
			line++
		}
		rest = rest[size:]
	}
	return fleet.Invalid(place{name, line}.String(), "is not UTF-8 text: save it as UTF-8, and put binary content into binaryData as base64")
}

// objects are the objects of a document: none of an empty one, the items of a List. What a program prints that found nothing may be a List of null,
// which is no word that there are to be none; that of a chart is what its values say, and to Helm it is empty.
func (p parsed) objects(file string, ofChart bool) ([]document, error) {
	if p.value == nil {
		return nil, nil
	}
	at := place{file, p.line}
	m, ok := p.value.(map[string]any)
	if !ok {
		return nil, fleet.Invalidf(at.String(), "is %s, not an object: a document is one Kubernetes object with apiVersion, kind and metadata", typeName(p.value))
	}
	if len(m) == 0 {
		return nil, fleet.Invalid(at.String(), "is {}, which says nothing: write the object, or take the document away")
	}
	items, list, err := listItems(m, at)
	if err != nil {
		return nil, err
	}
	switch {
	case !list:
		return []document{{m, at}}, nil
	case m["items"] == nil && !ofChart:
		return nil, fleet.Invalidf(at.String(), "%s: items is null: write them, or items: [] where there are none", m["kind"])
	}
	out := make([]document, 0, len(items))
	for i, item := range items {
		where := at
		if i < len(p.items) {
			where.line = p.items[i]
		}
		d, err := listItem(m, item, where, i)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// listItems reports whether m is a List: its kind ends so and it has items. One that has a name is one, too, if it is of Kubernetes; of
// another's kind it may be an object. A List whose items are written under another key, as item, would hold nothing, so that all that it had
// would be dropped.
func listItems(m map[string]any, at place) (items []any, list bool, err error) {
	kind, _ := m["kind"].(string)
	version, _ := m["apiVersion"].(string)
	group, _ := fleet.SplitAPIVersion(version)
	of, ends := strings.CutSuffix(kind, "List")
	content, has := m["items"]
	if !ends || !has && kind != "List" {
		return nil, false, nil
	}
	_, ours := builtin[kindKey{group, of}]
	meta, _ := m["metadata"].(map[string]any)
	switch general := of == "" && group == ""; {
	case meta["name"] != nil && !ours && !general:
		return nil, false, nil
	case !has:
		return nil, false, fleet.Invalid(at.String(), "List: items is missing: write them, or items: [] where there are none")
	}
	if content == nil {
		return nil, true, nil
	}
	items, ok := content.([]any)
	if !ok {
		return nil, false, fleet.Invalidf(at.String(), "%s: items is %s, not a list", kind, typeName(content))
	}
	return items, true, nil
}

func listItem(list map[string]any, item any, at place, index int) (document, error) {
	m, ok := item.(map[string]any)
	if !ok {
		return document{}, fleet.Invalidf(at.String(), "items[%d] is %s, not an object", index, typeName(item))
	}
	if _, nested, _ := listItems(m, at); nested {
		return document{}, fleet.Invalidf(at.String(), "items[%d] is a List inside a List: write its items as documents", index)
	}
	kind, _ := list["kind"].(string)
	if _, has := m["kind"]; !has && kind != "List" {
		m["kind"] = strings.TrimSuffix(kind, "List")
	}
	if _, has := m["apiVersion"]; !has && kind != "List" {
		m["apiVersion"] = list["apiVersion"]
	}
	return document{m, at}, nil
}

func typeName(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case int64, float64:
		return "a number"
	case []any:
		return "a list"
	case map[string]any:
		return "a map"
	default:
		return "an unknown value"
	}
}
