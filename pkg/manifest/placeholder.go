package manifest

import (
	"bytes"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// expand puts values for ${NAME}, once: what a value holds is not looked at again. Where value says no, the text stays.
func expand(s string, value func(name string) (string, bool)) string {
	var out strings.Builder
	for {
		start := strings.Index(s, "${")
		if start < 0 {
			break
		}
		name, rest, found := cutName(s[start+2:])
		if !found {
			out.WriteString(s[:start+2])
			s = s[start+2:]
			continue
		}
		v, ok := value(name)
		if !ok {
			v = s[start : start+len(name)+3]
		}
		out.WriteString(s[:start])
		out.WriteString(v)
		s = rest
	}
	if out.Len() == 0 {
		return s
	}
	out.WriteString(s)
	return out.String()
}

// cutName takes NAME} from the front.
func cutName(s string) (name, rest string, found bool) {
	i := 0
	for i < len(s) && (s[i] >= 'A' && s[i] <= 'Z' || i > 0 && (s[i] >= '0' && s[i] <= '9' || s[i] == '_')) {
		i++
	}
	if i == 0 || i == len(s) || s[i] != '}' {
		return "", s, false
	}
	return s[:i], s[i+1:], true
}

// names calls found for every ${NAME} in s.
func names(s string, found func(name string)) {
	if !strings.Contains(s, "${") {
		return
	}
	expand(s, func(name string) (string, bool) { found(name); return "", false })
}

func (b *builder) namesIn(texts ...string) []string {
	set := map[string]bool{}
	for _, s := range texts {
		names(s, func(name string) {
			if b.declared[name] {
				set[name] = true
			}
		})
	}
	return slices.Sorted(maps.Keys(set))
}

func (b *builder) holdsPlaceholder(s string) bool { return len(b.namesIn(s)) > 0 }

// collect adds the declared names in the strings of v. It stops at a key that holds one.
func (b *builder) collect(v any, into map[string]bool) (key string, ok bool) {
	switch v := v.(type) {
	case string:
		names(v, func(name string) {
			if b.declared[name] {
				into[name] = true
			}
		})
	case []any:
		for _, c := range v {
			if key, ok := b.collect(c, into); !ok {
				return key, false
			}
		}
	case map[string]any:
		for k, c := range v {
			if strings.Contains(k, "${") && b.holdsPlaceholder(k) {
				return k, false
			}
			if key, ok := b.collect(c, into); !ok {
				return key, false
			}
		}
	}
	return "", true
}

// Placeholders are the declared names that strings of obj hold as ${NAME}, sorted.
func Placeholders(obj map[string]any, declared []string) []string {
	found := map[string]bool{}
	for _, v := range obj {
		newBuilder(Options{Declared: declared}).collect(v, found)
	}
	return slices.Sorted(maps.Keys(found))
}

// Substitute puts values for the declared names in the strings of a canonical object and returns its canonical bytes.
// A declared name that occurs and has no value is an error, never an empty string. Every other ${…} is text.
func Substitute(raw []byte, values map[string]string, declared []string) ([]byte, error) {
	if len(declared) == 0 || !bytes.Contains(raw, []byte("${")) {
		return raw, nil
	}
	obj, err := Decode(raw)
	if err != nil {
		return nil, err
	}
	s := &substitution{values: values, declared: map[string]bool{}, room: MaxObjectBytes}
	for _, name := range declared {
		s.declared[name] = true
	}
	out := s.apply(obj)
	if s.missing != nil {
		return nil, noValue(s.missing)
	}
	if s.room < 0 {
		return nil, fleet.Errorf(fleet.ErrExhausted, "the values of its bindings make the object larger than %d bytes", MaxObjectBytes)
	}
	text := Canonical(out.(map[string]any))
	if len(text) > MaxObjectBytes {
		return nil, fleet.Errorf(fleet.ErrExhausted, "the values of its bindings make the object larger than %d bytes", MaxObjectBytes)
	}
	return text, nil
}

func noValue(missing map[string]bool) error {
	return fleet.Errorf(fleet.ErrPrecondition, "no value for ${%s}: give the binding a default, or what it reads from",
		strings.Join(slices.Sorted(maps.Keys(missing)), "}, ${"))
}

type substitution struct {
	values   map[string]string
	declared map[string]bool
	missing  map[string]bool
	room     int // bytes that values may still bring
}

func (s *substitution) value(name string) (string, bool) {
	if !s.declared[name] {
		return "", false
	}
	v, ok := s.values[name]
	if !ok {
		if s.missing == nil {
			s.missing = map[string]bool{}
		}
		s.missing[name] = true
		return "", false
	}
	if s.room -= len(v); s.room < 0 {
		return "", false
	}
	return v, true
}

// apply changes v in place where it can and returns it.
func (s *substitution) apply(v any) any {
	switch v := v.(type) {
	case string:
		if strings.Contains(v, "${") {
			return expand(v, s.value)
		}
	case []any:
		for i := range v {
			v[i] = s.apply(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = s.apply(v[k])
		}
	}
	return v
}

// ResolveIDs checks what values make of the identities of a bundle: valid names, and no two alike.
func ResolveIDs(entries []fleet.BundleEntry, values map[string]string) error {
	var seen map[fleet.ObjectID]fleet.ObjectID
	for _, e := range entries {
		if !strings.Contains(e.ID.Namespace, "${") && !strings.Contains(e.ID.Name, "${") {
			continue
		}
		id, err := ResolveID(e.ID, values)
		if err != nil {
			return err
		}
		if seen == nil {
			seen = make(map[fleet.ObjectID]fleet.ObjectID, len(entries))
			for _, other := range entries {
				seen[other.ID] = other.ID
			}
		}
		if other, twice := seen[id]; twice && other != e.ID {
			return fleet.Invalidf(e.ID.Short(), "is %s here, as %s is, too", id.Short(), other.Short())
		}
		seen[id] = e.ID
	}
	return nil
}

// ResolveID puts hub-evaluated values into an identity. What a placeholder leaves must be a valid name outside the
// agent's namespace.
func ResolveID(id fleet.ObjectID, values map[string]string) (fleet.ObjectID, error) {
	missing := map[string]bool{}
	value := func(name string) (string, bool) {
		v, ok := values[name]
		if !ok {
			missing[name] = true
		}
		return v, ok
	}
	out := id
	out.Namespace, out.Name = expand(id.Namespace, value), expand(id.Name, value)
	if len(missing) > 0 {
		return fleet.ObjectID{}, fleet.Errorf(fleet.ErrPrecondition, "%s: %s", id.Short(), noValue(missing))
	}
	if id.Namespace != "" && out.Namespace == "" {
		return fleet.ObjectID{}, fleet.Invalidf(id.Short(), "the values of its bindings leave no namespace")
	}
	if msg := checkIdentity(out); msg != "" {
		return fleet.ObjectID{}, fleet.Invalid(id.Short(), msg)
	}
	return out, nil
}
