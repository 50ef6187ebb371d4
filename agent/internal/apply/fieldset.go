package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"towline.dev/towline/pkg/fleet"
)

// This file has what is computed of sets of fields in the form of fieldsV1, of manifests, and of paths into both.

// path is what is left to go of a path.
type path = fleet.FieldPath

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

// names reports that an item of a manifest names all by which an element is known.
func (e *element) names(item any) bool {
	m, _ := item.(map[string]any)
	for k := range e.key {
		if _, named := m[k]; !named {
			return false
		}
	}
	return e.tells(item)
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
		case ends, leaf && slices.ContainsFunc(rest, func(p path) bool { return isMap(value) || leads(value, p) }):
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

func isMap(v any) bool {
	m, is := v.(map[string]any)
	return is && len(m) > 0
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
	at := slices.IndexFunc(list, e.names)
	if at < 0 {
		at = slices.IndexFunc(list, e.tells)
	}
	if at < 0 {
		return nil, -1
	}
	return list[at], at
}

// knownAs is where among the elements of a list the one of a listed item is, or -1. One that another item names is that one's.
func knownAs(known []*element, listed []any, item any) int {
	if at := slices.IndexFunc(known, func(e *element) bool { return e.names(item) }); at >= 0 {
		return at
	}
	return slices.IndexFunc(known, func(e *element) bool { return e.tells(item) && !slices.ContainsFunc(listed, e.names) })
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
		left, there := trim(v, now[k], sub, rest, nil)
		if there {
			left, there = shared(left, now[k], sub, rest)
		}
		if there {
			out[k] = left
		} else {
			delete(out, k)
		}
	}
	return out, len(out) > 0 || len(listed) == 0
}

// shared is what is applied of a map of which paths leave something; not there: nothing is. sub is what is noted below it.
// A map that one holder has as a whole is left as a whole: what is left of it would take its place. Of a map in which nobody has
// anything it is not known whether it is such a one, so that it is applied with what is live where the paths lead.
func shared(left, live any, sub map[string]any, list []path) (out any, there bool) {
	listed, isMap := left.(map[string]any)
	now, _ := live.(map[string]any)
	switch {
	case !isMap || len(now) == 0 || hasBelow(sub):
		return left, true
	case sub != nil, Difference(left, live) == nil:
		return nil, false
	}
	return merged(listed, only(now, list)), true
}

// merged is a map with what another one has beside it.
func merged(a, b map[string]any) map[string]any {
	out := shallow(a)
	for k, v := range b {
		mine, isMap := out[k].(map[string]any)
		if theirs, is := v.(map[string]any); is && isMap {
			v = merged(mine, theirs)
		}
		out[k] = v
	}
	return out
}

// only is what a map has where paths lead, but for what is in lists.
func only(m map[string]any, list []path) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		rest, ends := below(list, func(s fleet.FieldStep) bool { return s.Key(k) })
		if ends {
			out[k] = v
			continue
		}
		if inner, isMap := v.(map[string]any); isMap && len(rest) > 0 {
			if some := only(inner, rest); len(some) > 0 {
				out[k] = some
			}
		}
	}
	return out
}

// anchor lists what is live where paths lead, if what is applied does not list anything any more of a map that holds it and in which
// we have something: what nobody has goes with the last field that we had beside it.
func anchor(out, listed, live any, own map[string]any, list []path) any {
	if items, isList := out.([]any); isList {
		return anchorItems(items, listed, live, own, list)
	}
	fields, isMap := out.(map[string]any)
	now, _ := live.(map[string]any)
	if !isMap {
		return out
	}
	fields = shallow(fields)
	wanted, _ := listed.(map[string]any)
	for k, v := range now {
		rest, ends := below(list, func(s fleet.FieldStep) bool { return s.Key(k) })
		sub, _ := own["f:"+k].(map[string]any)
		if ends || len(rest) == 0 || !hasBelow(sub) {
			continue
		}
		if at, is := fields[k]; is {
			fields[k] = anchor(at, wanted[k], v, sub, rest)
		} else if m, isMap := v.(map[string]any); isMap {
			if some := only(m, rest); len(some) > 0 {
				fields[k] = some
			}
		}
	}
	return fields
}

func anchorItems(items []any, listed, live any, own map[string]any, list []path) any {
	items = slices.Clone(items)
	for _, e := range elementsOf(own) {
		item, place := placeOf(e, listed)
		_, at := placeOf(e, items)
		there, found := e.find(live)
		sub, _ := own[e.text].(map[string]any)
		if e.kind != 'k' || at < 0 || !found {
			continue
		}
		if rest, ends := below(list, toItem(place, withKey(e, item))); !ends && len(rest) > 0 {
			items[at] = anchor(items[at], item, there, sub, rest)
		}
	}
	return items
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
		at := knownAs(known, listed, item)
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

// take is what is listed without the leaves of a set, and without the items of lists that are in it themselves.
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
			item, place := placeOf(e, x)
			if place < 0 {
				continue
			}
			sub, _ := fields[e.text].(map[string]any)
			if _, self := sub["."]; self || len(sub) == 0 {
				rest[place] = nil
				continue
			}
			rest[place], _ = take(item, sub, e.key)
		}
		rest = slices.DeleteFunc(rest, func(item any) bool { return item == nil })
		return rest, len(rest) > 0 || len(x) == 0
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

// restrict is what a live object has at the fields of a set, with the keys of items.
func restrict(live any, fields map[string]any) map[string]any {
	out, _ := restricted(live, fields).(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	return out
}

func restricted(live any, fields map[string]any) any {
	switch live.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, e := range elementsOf(fields) {
			value, found := e.find(live)
			sub, _ := fields[e.text].(map[string]any)
			switch {
			case !found:
			case hasBelow(sub):
				out[e.field] = restricted(value, sub)
			default:
				out[e.field] = value
			}
		}
		return out
	case []any:
		out := []any{}
		for _, e := range elementsOf(fields) {
			value, found := e.find(live)
			sub, _ := fields[e.text].(map[string]any)
			switch {
			case !found:
			case e.kind == 'k':
				out = append(out, withKey(e, restricted(value, sub)))
			default:
				out = append(out, value)
			}
		}
		return out
	}
	return live
}

// whole is the object of a source with what identifies the listed one.
func whole(listed, source map[string]any) map[string]any {
	out := shallow(source)
	for _, k := range []string{"apiVersion", "kind"} {
		out[k] = listed[k]
	}
	from, _ := listed["metadata"].(map[string]any)
	meta, _ := source["metadata"].(map[string]any)
	meta = shallow(meta)
	for _, k := range []string{"name", "namespace"} {
		if v, has := from[k]; has {
			meta[k] = v
		}
	}
	out["metadata"] = meta
	return out
}

// overlay is what is listed with what a source has where paths lead to, and without what it does not have there. An item that is not in
// the source stays as it is listed; noted tells how items are known.
func overlay(listed, source any, noted map[string]any, list []path) any {
	switch x := listed.(type) {
	case map[string]any:
		from, _ := source.(map[string]any)
		return overlayMap(x, from, noted, list)
	case []any:
		from, has := source.([]any)
		if !has || !slices.ContainsFunc(list, func(p path) bool { return leads(x, p) }) {
			return listed
		}
		return overlayList(x, from, noted, list)
	}
	return listed
}

func overlayMap(listed, source map[string]any, noted map[string]any, list []path) map[string]any {
	out := shallow(listed)
	for k := range both(listed, source) {
		rest, ends := below(list, func(s fleet.FieldStep) bool { return s.Key(k) })
		value, has := source[k]
		_, is := listed[k]
		sub, _ := noted["f:"+k].(map[string]any)
		switch {
		case ends && has:
			out[k] = value
		case ends:
			delete(out, k)
		case len(rest) > 0 && is:
			out[k] = overlay(listed[k], value, sub, rest)
		case len(rest) > 0 && has:
			if m, isMap := value.(map[string]any); isMap {
				if some := overlayMap(map[string]any{}, m, sub, rest); len(some) > 0 {
					out[k] = some
				}
			}
		}
	}
	return out
}

func overlayList(listed, source []any, noted map[string]any, list []path) any {
	known := elementsOf(noted)
	if !slices.ContainsFunc(known, func(e *element) bool { return e.kind != 'f' }) {
		return source // one holder has it as a whole
	}
	out := make([]any, 0, len(listed))
	for i, item := range listed {
		rest, ends := below(list, toItem(i, item))
		at := knownAs(known, listed, item)
		var value any
		if at >= 0 {
			value, _ = known[at].find(source)
		}
		switch {
		case ends && value != nil:
			out = append(out, value)
		case len(rest) > 0 && value != nil:
			sub, _ := noted[known[at].text].(map[string]any)
			out = append(out, overlay(item, value, sub, rest))
		default:
			out = append(out, item)
		}
	}
	return out
}
