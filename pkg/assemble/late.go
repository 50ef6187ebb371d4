package assemble

import (
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// lateNames are the bindings that only an agent can evaluate: those that read an object or a secret, and the literals that refer to them.
func lateNames(bindings []fleet.Binding) map[string]bool {
	late := map[string]bool{}
	for more := true; more; {
		more = false
		for _, b := range bindings {
			if !late[b.Name] && (b.Object != nil || b.Secret != nil || b.Value != nil && refersTo(*b.Value, late)) {
				late[b.Name], more = true, true
			}
		}
	}
	return late
}

func refersTo(text string, names map[string]bool) bool {
	return slices.ContainsFunc(manifest.Names(text), func(name string) bool { return names[name] })
}

// Late are the bindings that the agent evaluates, in the order of the list. One that refers to itself is an error, and so is one of the
// hub that refers to one of them.
func Late(bindings []fleet.Binding) ([]fleet.LateBinding, error) {
	late := lateNames(bindings)
	var out []fleet.LateBinding
	for _, b := range bindings {
		switch {
		case late[b.Name]:
			out = append(out, fleet.LateBinding{Name: b.Name, Value: b.Value, Object: b.Object, Secret: b.Secret, Default: b.Default, Optional: b.Optional, Type: b.Type})
		case b.Default != nil && refersTo(*b.Default, late):
			return nil, fleet.Invalidf("", "%s: its default refers to a binding that only the agent can evaluate, and it is evaluated by the hub", b.Name)
		}
	}
	return out, roundabout(out)
}

// roundabout is an error if one of the bindings refers to itself by way of others.
func roundabout(late []fleet.LateBinding) error {
	by := make(map[string]fleet.LateBinding, len(late))
	for _, b := range late {
		by[b.Name] = b
	}
	done := map[string]bool{}
	var visit func(name string, path []string) error
	visit = func(name string, path []string) error {
		if slices.Contains(path, name) {
			return fleet.Invalidf("", "%s refers to itself: %s", name, strings.Join(append(path, name), " → "))
		}
		b, is := by[name]
		if !is || done[name] {
			return nil
		}
		for _, text := range b.Texts() {
			for _, next := range manifest.Names(text) {
				if err := visit(next, append(slices.Clone(path), name)); err != nil {
					return err
				}
			}
		}
		done[name] = true
		return nil
	}
	for _, b := range late {
		if err := visit(b.Name, nil); err != nil {
			return err
		}
	}
	return nil
}

// Reader reads what bindings name.
type Reader interface {
	ReadField(name string, f fleet.ObjectField) Read
	ReadSecret(name string, k fleet.SecretKey) Read
}

// Read is what is known of a field, or of a secret.
type Read struct {
	Value string
	// Secret says that the value is one that nobody may be shown.
	Secret bool
	// Absent says why there is no such object or field, and what may be done about it; nil: there is one.
	Absent error
	// Failed says why that cannot be told now; nil: it can.
	Failed error
}

// LateValue is what a late binding comes to in a cluster, or why it comes to nothing. Of those the object says which one is asked.
type LateValue struct {
	Value string
	// Secret says that nobody may be shown the value; of an error, that what it names may be made of one.
	Secret bool
	Err    error
}

// LateValues evaluates all late bindings of a sync, with the values that the hub has evaluated. Of one that fails all that refer to it
// fail, too. The reader is asked once for each binding.
func LateValues(late []fleet.LateBinding, values map[string]string, read Reader) map[string]LateValue {
	e := lateEvaluator{byName: make(map[string]fleet.LateBinding, len(late)), values: values, read: read, done: make(map[string]LateValue, len(late))}
	for _, b := range late {
		e.byName[b.Name] = b
	}
	for _, b := range late {
		e.value(b.Name)
	}
	return e.done
}

type lateEvaluator struct {
	byName map[string]fleet.LateBinding
	values map[string]string
	read   Reader
	done   map[string]LateValue
	path   []string
}

func (e *lateEvaluator) value(name string) LateValue {
	if v, ok := e.done[name]; ok {
		return v
	}
	if slices.Contains(e.path, name) {
		return LateValue{Err: fleet.Invalidf("bindings", "%s refers to itself: %s", name, strings.Join(append(e.path, name), " → "))}
	}
	e.path = append(e.path, name)
	b := e.byName[name]
	v := e.evaluate(b)
	e.path = e.path[:len(e.path)-1]
	if v.Err == nil && !(b.Optional && v.Value == "") {
		if _, err := b.Type.Parse(v.Value); err != nil {
			v.Err = fleet.Invalidf("bindings", "the value of %s %v", name, err)
		}
	}
	if v.Err != nil {
		v.Value = ""
	}
	e.done[name] = v
	return v
}

func (e *lateEvaluator) evaluate(b fleet.LateBinding) LateValue {
	switch {
	case b.Secret != nil:
		return e.taken(b, e.read.ReadSecret(b.Name, *b.Secret), true)
	case b.Object == nil:
		return e.expand(b.Name, *b.Value)
	}
	field := *b.Object
	secret := false
	for _, part := range []*string{&field.Namespace, &field.Name, &field.Path} {
		v := e.expand(b.Name, *part)
		if v.Err != nil {
			return v
		}
		*part, secret = v.Value, secret || v.Secret
	}
	return e.taken(b, e.read.ReadField(b.Name, field), secret)
}

// taken is what a binding has of what was read.
func (e *lateEvaluator) taken(b fleet.LateBinding, got Read, secret bool) LateValue {
	switch {
	case got.Failed != nil:
		return LateValue{Err: got.Failed, Secret: secret}
	case got.Absent == nil:
		return LateValue{Value: got.Value, Secret: secret || got.Secret}
	case b.Default != nil:
		return e.expand(b.Name, *b.Default)
	case b.Optional:
		return LateValue{}
	}
	return LateValue{Err: got.Absent, Secret: secret}
}

// expand puts values into a text of a binding.
func (e *lateEvaluator) expand(of, s string) LateValue {
	var out LateValue
	room := MaxValueBytes
	declared := func(name string) bool {
		_, known := e.values[name]
		_, late := e.byName[name]
		return known || late
	}
	out.Value = manifest.ExpandDeclared(s, declared, func(name string) (string, bool) {
		v, known := e.values[name]
		if _, late := e.byName[name]; late {
			x := e.value(name)
			out.Secret = out.Secret || x.Secret
			if x.Err != nil {
				out.Err = x.Err
				return "", false
			}
			v, known = x.Value, true
		}
		if room -= len(v); !known || room < 0 {
			return "", false
		}
		return v, true
	})
	if out.Err == nil && (room < 0 || len(out.Value) > MaxValueBytes) {
		out.Err = fleet.Invalidf("bindings", "%s has more than %d bytes", of, MaxValueBytes)
	}
	return out
}

// Users say which late bindings each object of a module refers to.
type Users map[fleet.ObjectID][]string

// ObjectCircle finds objects that cannot be applied, because a binding that they refer to reads a field of an object that is applied after them,
// or of themselves: the names of objects and bindings by turns, the last one being the first one again. None: nil. The values are put into
// what the bindings say of objects as far as they are known.
func ObjectCircle(late []fleet.LateBinding, users Users, values map[string]string) []string {
	s := search{users: users, values: values, byName: make(map[string]fleet.LateBinding, len(late)), done: map[fleet.ObjectID]bool{}}
	for _, b := range late {
		s.byName[b.Name] = b
	}
	ids := make([]fleet.ObjectID, 0, len(users))
	for id := range users {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, fleet.ObjectID.Compare)
	for _, id := range ids {
		if found := s.object(id, nil); found != nil {
			return found
		}
	}
	return nil
}

type search struct {
	users  Users
	values map[string]string
	byName map[string]fleet.LateBinding
	done   map[fleet.ObjectID]bool
}

func (s *search) object(id fleet.ObjectID, path []string) []string {
	if at := slices.Index(path, id.Short()); at >= 0 {
		return append(slices.Clone(path[at:]), id.Short())
	}
	if s.done[id] {
		return nil
	}
	path = append(slices.Clone(path), id.Short())
	for _, name := range s.users[id] {
		if found := s.binding(name, path, map[string]bool{}); found != nil {
			return found
		}
	}
	s.done[id] = true
	return nil
}

func (s *search) binding(name string, path []string, seen map[string]bool) []string {
	b, late := s.byName[name]
	if !late || seen[name] {
		return nil
	}
	seen[name] = true
	path = append(slices.Clone(path), "${"+name+"}")
	for _, text := range b.Texts() {
		for _, next := range manifest.Names(text) {
			if found := s.binding(next, path, seen); found != nil {
				return found
			}
		}
	}
	if b.Object == nil {
		return nil
	}
	id := manifest.ExpandID(b.Object.ID(), s.values)
	if _, own := s.users[id]; !own {
		return nil
	}
	return s.object(id, path)
}
