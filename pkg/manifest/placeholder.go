package manifest

import (
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// Expand puts values for ${NAME} in s, once: what a value holds is not looked at again. A name without a value is text.
func Expand(s string, values map[string]string) string {
	return ExpandFunc(s, func(name string) (string, bool) {
		v, ok := values[name]
		return v, ok
	})
}

// ExpandFunc is Expand with values from a function. Where that says no, the text stays.
func ExpandFunc(s string, value func(name string) (string, bool)) string {
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
	ExpandFunc(s, func(name string) (string, bool) { found(name); return "", false })
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

// Substitute puts values into the strings of an object, but not into its keys. They may make it larger by room bytes: a
// short value that is used often, or a long one, must not take the memory of whoever applies the object.
func Substitute(object map[string]any, values map[string]string, room int) error {
	s := substitution{values: values, room: room}
	s.apply(object)
	if s.room < 0 {
		return fleet.Errorf(fleet.ErrExhausted, "the values of its bindings make the object larger than %d bytes", MaxObjectBytes)
	}
	return nil
}

func noValue(missing map[string]bool) error {
	return fleet.Errorf(fleet.ErrPrecondition, "no value for ${%s}: give the binding a default, or what it reads from",
		strings.Join(slices.Sorted(maps.Keys(missing)), "}, ${"))
}

type substitution struct {
	values map[string]string
	room   int // bytes that values may still bring
}

func (s *substitution) value(name string) (string, bool) {
	v, ok := s.values[name]
	if !ok || s.room < 0 {
		return "", false
	}
	if s.room -= len(v) - len("${}") - len(name); s.room < 0 {
		return "", false
	}
	return v, true
}

// apply changes v in place where it can and returns it.
func (s *substitution) apply(v any) any {
	switch v := v.(type) {
	case string:
		if strings.Contains(v, "${") {
			return ExpandFunc(v, s.value)
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

// ExpandID puts values into an identity, whatever they make of it.
func ExpandID(id fleet.ObjectID, values map[string]string) fleet.ObjectID {
	id.Namespace, id.Name = Expand(id.Namespace, values), Expand(id.Name, values)
	return id
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
	out.Namespace, out.Name = ExpandFunc(id.Namespace, value), ExpandFunc(id.Name, value)
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
