package importer

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// maxIndex bounds the index of a list in a parameter, as in Helm.
const maxIndex = 65536

// maxWhole is the largest whole number that a value keeps.
const maxWhole = 1 << 53

// step is a key of a map, or an index of a list.
type step struct {
	key   string
	index int
	list  bool
}

// setParameter does what helm --set NAME=VALUE does; quoted: --set-string.
func setParameter(into *structpb.Struct, name, value string, quoted bool) error {
	steps, err := stepsOf(name)
	if err != nil {
		return err
	}
	v, err := parameterValue(value, quoted)
	if err != nil {
		return fmt.Errorf("parameter %s: %w", name, err)
	}
	root := structpb.NewStructValue(into)
	if put(root, steps, v) == nil {
		return fmt.Errorf("parameter %s sets a field of what is no map or list", name)
	}
	return nil
}

// put sets a value below another one; nil: there is something else on the way.
func put(at *structpb.Value, steps []step, v *structpb.Value) *structpb.Value {
	if len(steps) == 0 {
		return v
	}
	s := steps[0]
	_, null := at.GetKind().(*structpb.Value_NullValue)
	if at == nil || null {
		at = structpb.NewStructValue(&structpb.Struct{})
		if s.list {
			at = structpb.NewListValue(&structpb.ListValue{})
		}
	}
	switch kind := at.GetKind().(type) {
	case *structpb.Value_ListValue:
		if !s.list {
			return nil
		}
		for len(kind.ListValue.Values) <= s.index {
			kind.ListValue.Values = append(kind.ListValue.Values, structpb.NewNullValue())
		}
		next := put(kind.ListValue.Values[s.index], steps[1:], v)
		if next == nil {
			return nil
		}
		kind.ListValue.Values[s.index] = next
	case *structpb.Value_StructValue:
		if s.list {
			return nil
		}
		next := put(kind.StructValue.Fields[s.key], steps[1:], v)
		if next == nil {
			return nil
		}
		if kind.StructValue.Fields == nil {
			kind.StructValue.Fields = map[string]*structpb.Value{}
		}
		kind.StructValue.Fields[s.key] = next
	default:
		return nil
	}
	return at
}

// stepsOf reads such as ingress.hosts[0].annotations.example\.com/name.
func stepsOf(name string) ([]step, error) {
	var out []step
	var key strings.Builder
	open := true // a key may follow
	flush := func() {
		if key.Len() > 0 {
			out = append(out, step{key: key.String()})
			key.Reset()
		}
	}
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '\\' && i+1 < len(name):
			i++
			key.WriteByte(name[i])
		case c == '.':
			if key.Len() == 0 && open {
				return nil, fmt.Errorf("parameter %q has an empty name", name)
			}
			flush()
			open = true
			continue
		case c == '[':
			flush()
			end := strings.IndexByte(name[i:], ']')
			index, err := strconv.Atoi(name[i+1 : i+max(end, 1)])
			if err != nil || index < 0 || index > maxIndex {
				return nil, fmt.Errorf("parameter %q has no index in its brackets", name)
			}
			out = append(out, step{index: index, list: true})
			i += end
		default:
			key.WriteByte(c)
		}
		open = false
	}
	flush()
	if len(out) == 0 || open || out[0].list {
		return nil, fmt.Errorf("parameter %q is no name of a value", name)
	}
	return out, nil
}

func parameterValue(text string, quoted bool) (*structpb.Value, error) {
	if strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") {
		list := &structpb.ListValue{}
		for _, item := range splitEscaped(text[1 : len(text)-1]) {
			v, err := typed(item, quoted)
			if err != nil {
				return nil, err
			}
			list.Values = append(list.Values, v)
		}
		return structpb.NewListValue(list), nil
	}
	return typed(unescape(text), quoted)
}

// typed reads a word as helm --set does: true, false, null and whole numbers are no texts.
func typed(text string, quoted bool) (*structpb.Value, error) {
	switch {
	case quoted:
	case text == "true", text == "false":
		return structpb.NewBoolValue(text == "true"), nil
	case text == "null":
		return structpb.NewNullValue(), nil
	case text == "0" || text != "" && text[0] != '0':
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			if n > maxWhole || n < -maxWhole {
				return nil, fmt.Errorf("%s has more digits than a value keeps of a number", text)
			}
			return structpb.NewNumberValue(float64(n)), nil
		}
	}
	return structpb.NewStringValue(text), nil
}

// splitEscaped splits at commas that no backslash stands before.
func splitEscaped(s string) (out []string) {
	if s == "" {
		return nil
	}
	start := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case ',':
			out = append(out, unescape(s[start:i]))
			start = i + 1
		}
	}
	return append(out, unescape(s[start:]))
}

func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+1 < len(s) {
			i++
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
