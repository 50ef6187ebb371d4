package apply

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// element is one step of a path.
type element struct {
	id    uint32
	text  string // as in fieldsV1, such as f:spec or k:{"name":"web"}
	field string
	key   map[string]any
	value any
	index int
	kind  byte // f, k, v or i
}

func (in *Interner) element(text string) (*element, error) {
	if e := in.elements[text]; e != nil {
		return e, nil
	}
	if len(text) < 2 || text[1] != ':' {
		return nil, fmt.Errorf("path element %q is not understood", text)
	}
	text = strings.Clone(text)
	in.nextID++
	e := &element{id: in.nextID, text: text, kind: text[0]}
	var err error
	switch e.kind {
	case 'f':
		e.field = text[2:]
	case 'k':
		err = utiljson.Unmarshal([]byte(text[2:]), &e.key)
	case 'v':
		var wrapped []any
		if err = utiljson.Unmarshal([]byte("["+text[2:]+"]"), &wrapped); err == nil && len(wrapped) == 1 {
			e.value = wrapped[0]
		}
	case 'i':
		e.index, err = strconv.Atoi(text[2:])
	default:
		err = fmt.Errorf("path element %q is not understood", text)
	}
	if err != nil {
		return nil, err
	}
	in.elements[text] = e
	return e, nil
}

// find is the value one step below v.
func (e *element) find(v any) (any, bool) {
	out, _, ok := e.locate(v)
	return out, ok
}

// locate is find with the index in a list, or -1.
func (e *element) locate(v any) (any, int, bool) {
	if e.kind == 'f' {
		m, _ := v.(map[string]any)
		out, ok := m[e.field]
		return out, -1, ok
	}
	list, _ := v.([]any)
	if e.kind == 'i' {
		if e.index < 0 || e.index >= len(list) {
			return nil, -1, false
		}
		return list[e.index], e.index, true
	}
	for i, item := range list {
		if e.kind == 'v' && same(item, e.value) || e.kind == 'k' && e.matches(item) {
			return item, i, true
		}
	}
	return nil, -1, false
}

func (e *element) matches(item any) bool {
	m, ok := item.(map[string]any)
	if !ok {
		return false
	}
	for k, want := range e.key {
		if !same(m[k], want) {
			return false
		}
	}
	return true
}

// same compares scalars.
func same(a, b any) bool {
	switch a.(type) {
	case string, bool, int64, float64, nil:
		return a == b
	}
	return false
}

// token is the element as a step of a JSON pointer.
func (e *element) token(index int) string {
	text := e.text[2:]
	switch {
	case e.kind == 'f':
		text = e.field
	case index >= 0:
		return strconv.Itoa(index)
	}
	return pointerStep(text)
}

// pointerStep is a name as a step of a JSON pointer (RFC 6901).
func pointerStep(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

// String is the element in the notation of conflict messages.
func (e *element) String() string {
	switch e.kind {
	case 'f':
		return "." + e.field
	case 'k':
		keys := make([]string, 0, len(e.key))
		for k := range e.key {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			value, _ := json.Marshal(e.key[k])
			keys[i] = k + "=" + string(value)
		}
		return "[" + strings.Join(keys, ",") + "]"
	case 'v':
		return "[=" + e.text[2:] + "]"
	default:
		return "[" + e.text[2:] + "]"
	}
}
