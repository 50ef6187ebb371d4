package apply

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Exempt is what a record knows of the fields that a policy leaves as they are. Nil: there are none.
type Exempt struct {
	// Text names the policy.
	Text string
	// Body is the digest of what the module lists without the fields that the policy names.
	Body fleet.Digest
	// Left are fields that the module lists, and that are not ours by the policy: they are ours again without it.
	Left *PathSet
	// Lent are those of Left that Managers held at our last write. They are ours again when none of them holds them.
	Lent     *PathSet
	Managers []string
}

// Remainder is what is applied to an object that is there, and what of it is left.
type Remainder struct {
	// Desired is without the fields that are left.
	Desired *Desired
	// lent are the fields that are left because a manager of the policy holds them, in the form of fieldsV1.
	lent map[string]any
}

// Leave is what of the desired object is applied to the live one. A field is listed though it is exempt where it comes with
// an item of a list that is not there yet: the API server may not take the item without it.
func (d *Desired) Leave(live map[string]any, x *plan.Exempt) (Remainder, error) {
	if x == nil {
		return Remainder{Desired: d}, nil
	}
	desired, err := d.Object()
	if err != nil {
		return Remainder{}, err
	}
	noted := map[string]any{}
	for _, m := range Managers(live) {
		noted = both(noted, m.Fields)
	}
	var out any = desired
	if len(x.Paths) > 0 {
		out, _ = trim(desired, live, noted, paths(x.Paths), nil)
	}
	rest, _ := out.(map[string]any)
	r := Remainder{lent: within(heldBy(live, x.Managers), rest)}
	if len(r.lent) > 0 {
		out, _ = take(rest, r.lent, nil)
		rest, _ = out.(map[string]any)
	}
	text, err := json.Marshal(rest)
	if err != nil {
		return Remainder{}, fmt.Errorf("%s: %w", d.id, err)
	}
	r.Desired = &Desired{Content: d.Content, id: d.id, text: text}
	return r, nil
}

// Release is the JSON patch that has the API server note the fields of exempt paths for nobody, where it notes them for us: a field
// that our manager stops listing goes otherwise. It changes no value. Nil: there are none.
func (d *Desired) Release(live map[string]any, x *plan.Exempt) (patch []byte, released map[string]any, err error) {
	if x == nil || len(x.Paths) == 0 {
		return nil, nil, nil
	}
	desired, err := d.Object()
	if err != nil {
		return nil, nil, err
	}
	kept, released := split(ownFields(live), desired, paths(x.Paths), nil)
	if len(released) == 0 {
		return nil, nil, nil
	}
	entries := slices.Clone(entriesOf(live))
	for i, x := range entries {
		if entry, _ := x.(map[string]any); managerOf(entry).Ours() {
			entry = shallow(entry)
			entry["fieldsV1"] = kept
			entries[i] = entry
		}
	}
	meta, _ := live["metadata"].(map[string]any)
	patch, err = json.Marshal([]map[string]any{
		{"op": "replace", "path": "/metadata/managedFields", "value": entries},
		{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
	})
	return patch, released, err
}

// Same reports that nothing but exempt fields changed of what a module lists since the record was made under the same policy.
func (e *Exempt) Same(d *Desired, x *plan.Exempt) bool {
	if e == nil || e.Text != x.Name() {
		return e == nil && x == nil
	}
	body, err := d.bodyDigest(x)
	return err == nil && body == e.Body
}

// bodyDigest names the desired object without what exempt paths lead to.
func (d *Desired) bodyDigest(x *plan.Exempt) (fleet.Digest, error) {
	obj, err := d.Object()
	if err != nil {
		return fleet.Digest{}, err
	}
	text, err := json.Marshal(blank(obj, paths(x.Paths)))
	return fleet.DigestOf(text), err
}

// Exempt is what the answer to a write proves of the fields that are left. released are those that were just released, old is
// the record of before.
func (in *Interner) Exempt(answer map[string]any, d *Desired, r Remainder, x *plan.Exempt, released map[string]any, old *Record) (*Exempt, error) {
	if x == nil {
		return nil, nil
	}
	desired, err := d.Object()
	if err != nil {
		return nil, err
	}
	was := both(released, r.lent)
	if old != nil && old.Paths != nil {
		was = both(was, old.Paths.fields())
	}
	if old != nil && old.Exempt != nil && old.Exempt.Left != nil {
		was = both(was, old.Exempt.Left.fields())
	}
	rest, _ := without(within(was, desired), ownFields(answer), false)
	out := &Exempt{Text: Intern(x.Text), Managers: x.Managers}
	if out.Body, err = d.bodyDigest(x); err != nil {
		return nil, err
	}
	if out.Left, err = in.intern(rest, nil); err != nil {
		return nil, err
	}
	if len(r.lent) > 0 {
		out.Lent, err = in.intern(r.lent, nil)
	}
	return out, err
}

// Excuse takes from what differs in a live object what its managers of the policy hold: that is no drift. returned says that none of
// them holds any more what was lent to them.
func (r *Record) Excuse(v Values, live map[string]any) (out Values, returned bool) {
	if r.Exempt == nil || len(r.Exempt.Managers) == 0 {
		return v, false
	}
	scratch := NewInterner()
	theirs, err := scratch.build(heldBy(live, r.Exempt.Managers), nil)
	if err != nil {
		return v, false
	}
	mine, err := scratch.build(ownFields(live), nil)
	if err != nil {
		return v, false
	}
	if r.Exempt.Lent != nil {
		returned = slices.ContainsFunc(r.Exempt.Lent.Missing(nil, live), func(f Field) bool { return !theirs.holds(f.path) && !mine.holds(f.path) })
	}
	if v.Holding&holdsNone != 0 {
		return v, returned
	}
	excused := true
	for _, f := range r.Paths.Missing(mine, live) {
		switch held := theirs.holds(f.path); {
		case f.Pointer == ReplicasPointer && held:
			v.Replicas, v.Holding = r.Base.Replicas, v.Holding&^holdsLessReplicas
		case f.Pointer == ReplicasPointer:
		case !held:
			excused = false
		}
	}
	if excused {
		v.Hash, v.Holding = r.Base.Hash, v.Holding&^holdsLess
	}
	return v, returned
}

// Excused reports of a field that a manager of the policy holds it; nil: there are none.
func (r *Record) Excused(live map[string]any) func(Field) bool {
	if r.Exempt == nil || len(r.Exempt.Managers) == 0 {
		return nil
	}
	theirs, err := NewInterner().build(heldBy(live, r.Exempt.Managers), nil)
	return func(f Field) bool { return err == nil && theirs.holds(f.path) }
}

// heldBy are the fields that some managers hold in a live object, but of its status.
func heldBy(live map[string]any, managers []string) map[string]any {
	out := map[string]any{}
	if len(managers) == 0 {
		return out
	}
	for _, m := range Managers(live) {
		if m.Subresource != "status" && slices.Contains(managers, m.Manager) {
			out = both(out, m.Fields)
		}
	}
	return out
}

// path is what is left to go of a path.
type path = fleet.FieldPath

func paths(list []fleet.FieldPath) []path { return list }

// below are the paths that lead on through a step, and whether one ends there.
func below(list []path, through func(fleet.FieldStep) bool) (rest []path, ends bool) {
	for _, p := range list {
		switch {
		case !through(p[0]):
		case len(p) == 1:
			ends = true
		default:
			rest = append(rest, p[1:])
		}
	}
	return rest, ends
}

// toItem is the step to an item of a list.
func toItem(place int, item any) func(fleet.FieldStep) bool {
	m, _ := item.(map[string]any)
	return func(s fleet.FieldStep) bool {
		return s.Item(place, func(key, value string) bool { return m[key] != nil && fmt.Sprint(m[key]) == value })
	}
}

// tells reports that an element names an item of a manifest, which may lack keys that have a default.
func (e *element) tells(item any) bool {
	if e.kind == 'v' {
		return same(item, e.value)
	}
	m, ok := item.(map[string]any)
	if e.kind != 'k' || !ok {
		return false
	}
	any := false
	for k, want := range e.key {
		have, named := m[k]
		if named && !same(have, want) {
			return false
		}
		any = any || named
	}
	return any
}

// elementsOf are the elements of a set in the form of fieldsV1; what is not understood is left out.
func elementsOf(fields map[string]any) []*element {
	in, out := NewInterner(), make([]*element, 0, len(fields))
	for _, text := range slices.Sorted(maps.Keys(fields)) {
		if e, err := in.element(text); text != "." && err == nil {
			out = append(out, e)
		}
	}
	return out
}

// split takes the fields that paths lead to from a set in the form of fieldsV1. desired is what the module lists there, for places in
// lists. keys are those of the item of a list that is gone into, which stay. A list or a map that has one holder goes as a
// whole if a path leads into it.
func split(fields map[string]any, desired any, list []path, keys map[string]any) (kept, taken map[string]any) {
	kept, taken = maps.Clone(fields), map[string]any{}
	for _, e := range elementsOf(fields) {
		value, place := placeOf(e, desired)
		step := func(s fleet.FieldStep) bool { return s.Key(e.field) }
		if e.kind != 'f' {
			step = toItem(place, withKey(e, value))
		} else if _, isKey := keys[e.field]; isKey {
			continue
		}
		rest, ends := below(list, step)
		sub, _ := fields[e.text].(map[string]any)
		leaf := !hasBelow(sub)
		switch {
		case ends, leaf && slices.ContainsFunc(rest, func(p path) bool { return leads(value, p) }):
			delete(kept, e.text)
			taken[e.text] = fields[e.text]
		case len(rest) > 0 && !leaf:
			k, t := split(sub, value, rest, e.key)
			if len(t) == 0 {
				continue
			}
			if taken[e.text] = t; len(k) > 0 {
				kept[e.text] = k
			} else {
				delete(kept, e.text)
			}
		}
	}
	return kept, taken
}

func hasBelow(sub map[string]any) bool {
	_, self := sub["."]
	return len(sub) > 1 || len(sub) == 1 && !self
}

// placeOf is the value of an element in what a module lists, with its place in a list, or -1.
func placeOf(e *element, desired any) (value any, place int) {
	if e.kind == 'f' {
		m, _ := desired.(map[string]any)
		return m[e.field], -1
	}
	list, _ := desired.([]any)
	if e.kind == 'i' && e.index < len(list) {
		return list[e.index], e.index
	}
	for i, item := range list {
		if e.tells(item) {
			return item, i
		}
	}
	return nil, -1
}

// withKey is an item with the keys by which it is known, be it listed or not.
func withKey(e *element, item any) any {
	if e.kind != 'k' {
		return item
	}
	m, _ := item.(map[string]any)
	m = shallow(m)
	maps.Copy(m, e.key)
	return m
}

// leads reports that a path leads to something in a value.
func leads(v any, p path) bool {
	if len(p) == 0 {
		return true
	}
	switch x := v.(type) {
	case map[string]any:
		for k, item := range x {
			if p[0].Key(k) && leads(item, p[1:]) {
				return true
			}
		}
	case []any:
		for i, item := range x {
			if toItem(i, item)(p[0]) && leads(item, p[1:]) {
				return true
			}
		}
	}
	return false
}

// trim is what is listed without what paths lead to. It is not there at all if nothing is left of it. noted is what is noted for any
// manager in the live object: it tells how items of a list are known.
func trim(listed, live any, noted map[string]any, list []path, keys map[string]any) (out any, there bool) {
	switch x := listed.(type) {
	case map[string]any:
		return trimMap(x, live, noted, list, keys)
	case []any:
		return trimList(x, live, noted, list)
	}
	return listed, true
}

func trimMap(listed map[string]any, live any, noted map[string]any, list []path, keys map[string]any) (any, bool) {
	out := shallow(listed)
	now, _ := live.(map[string]any)
	for k, v := range listed {
		if _, isKey := keys[k]; isKey {
			continue
		}
		rest, ends := below(list, func(s fleet.FieldStep) bool { return s.Key(k) })
		if ends {
			delete(out, k)
			continue
		}
		if len(rest) == 0 {
			continue
		}
		sub, _ := noted["f:"+k].(map[string]any)
		if left, there := trim(v, now[k], sub, rest, nil); there {
			out[k] = left
		} else {
			delete(out, k)
		}
	}
	return out, len(out) > 0 || len(listed) == 0
}

func trimList(listed []any, live any, noted map[string]any, list []path) (any, bool) {
	now, _ := live.([]any)
	if len(now) == 0 || !slices.ContainsFunc(list, func(p path) bool { return leads(listed, p) }) {
		return listed, true
	}
	known := elementsOf(noted)
	if !slices.ContainsFunc(known, func(e *element) bool { return e.kind != 'f' }) {
		return nil, false // one holder has it as a whole
	}
	out := make([]any, 0, len(listed))
	for i, item := range listed {
		rest, ends := below(list, toItem(i, item))
		if ends {
			continue
		}
		at := slices.IndexFunc(known, func(e *element) bool { return e.tells(item) })
		if len(rest) == 0 || at < 0 {
			out = append(out, item)
			continue
		}
		there, found := known[at].find(live)
		if !found {
			out = append(out, item)
			continue
		}
		sub, _ := noted[known[at].text].(map[string]any)
		left, _ := trim(item, there, sub, rest, known[at].key)
		out = append(out, left)
	}
	return out, len(out) > 0
}

// blank is a value with nothing at the places that paths lead to.
func blank(v any, list []path) any {
	switch x := v.(type) {
	case map[string]any:
		out := shallow(x)
		for k, item := range x {
			rest, ends := below(list, func(s fleet.FieldStep) bool { return s.Key(k) })
			if ends {
				out[k] = nil
			} else if len(rest) > 0 {
				out[k] = blank(item, rest)
			}
		}
		return out
	case []any:
		out := slices.Clone(x)
		for i, item := range x {
			rest, ends := below(list, toItem(i, item))
			if ends {
				out[i] = nil
			} else if len(rest) > 0 {
				out[i] = blank(item, rest)
			}
		}
		return out
	}
	return v
}

// within are the fields of a set that a module lists, but for the keys of items. Items that it lists are in it for what is below.
func within(fields map[string]any, listed any) map[string]any { return inside(fields, listed, nil) }

func inside(fields map[string]any, listed any, keys map[string]any) map[string]any {
	out := map[string]any{}
	for _, e := range elementsOf(fields) {
		value, _ := placeOf(e, listed)
		_, isKey := keys[e.field]
		if value == nil || isKey && e.kind == 'f' || e.kind == 'v' {
			continue
		}
		sub, _ := fields[e.text].(map[string]any)
		if !hasBelow(sub) {
			if e.kind == 'f' {
				out[e.text] = map[string]any{}
			}
			continue
		}
		if some := inside(sub, value, e.key); len(some) > 0 {
			out[e.text] = some
		}
	}
	return out
}

// take is what is listed without the leaves of a set.
func take(listed any, fields map[string]any, keys map[string]any) (out any, there bool) {
	switch x := listed.(type) {
	case map[string]any:
		rest := shallow(x)
		for text, below := range fields {
			name, isField := strings.CutPrefix(text, "f:")
			if _, isKey := keys[name]; !isField || isKey || rest[name] == nil {
				continue
			}
			sub, _ := below.(map[string]any)
			if left, more := take(rest[name], sub, nil); hasBelow(sub) && more {
				rest[name] = left
			} else {
				delete(rest, name)
			}
		}
		return rest, len(rest) > 0
	case []any:
		rest := slices.Clone(x)
		for _, e := range elementsOf(fields) {
			if item, place := placeOf(e, x); place >= 0 {
				sub, _ := fields[e.text].(map[string]any)
				rest[place], _ = take(item, sub, e.key)
			}
		}
		return rest, true
	}
	return listed, true
}

// both is what is in one of two sets in the form of fieldsV1.
func both(a, b map[string]any) map[string]any {
	if len(a) == 0 {
		return b
	}
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(a)
	for k, x := range b {
		mine, _ := out[k].(map[string]any)
		theirs, _ := x.(map[string]any)
		switch _, has := out[k]; {
		case !has:
			out[k] = x
		case len(mine) == 0 && len(theirs) == 0:
		case len(mine) == 0:
			out[k] = both(map[string]any{".": map[string]any{}}, theirs)
		case len(theirs) == 0:
			out[k] = both(mine, map[string]any{".": map[string]any{}})
		default:
			out[k] = both(mine, theirs)
		}
	}
	return out
}
