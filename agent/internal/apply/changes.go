package apply

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
)

// Changes are the fields that have another value in next than in live, but for our marks, the status and what the API server keeps by
// itself. A value that is only in one of the two is one change, however much is in it. Items of a list that all have a name are
// compared by that, others by their place.
func Changes(live, next map[string]any) []Differs {
	var out []Differs
	changes("", ownWords(live), ownWords(next), false, &out)
	return out
}

// ownWords is what people and programs say in an object.
func ownWords(obj map[string]any) map[string]any {
	obj = unmarked(obj)
	delete(obj, "status")
	meta, _ := obj["metadata"].(map[string]any)
	for _, field := range serverFields {
		delete(meta, field)
	}
	for _, field := range []string{"labels", "annotations"} {
		if of, _ := meta[field].(map[string]any); len(of) == 0 {
			delete(meta, field)
		}
	}
	return obj
}

func changes(at string, live, next any, secret bool, out *[]Differs) {
	if reflect.DeepEqual(live, next) {
		return
	}
	switch is := live.(type) {
	case map[string]any:
		if will, isMap := next.(map[string]any); isMap {
			changesOfMap(at, is, will, secret, out)
			return
		}
	case []any:
		if will, isList := next.([]any); isList {
			changesOfList(at, is, will, secret, out)
			return
		}
	}
	*out = append(*out, Differs{Pointer: orRoot(at), Live: show(live, secret), Want: show(next, secret)})
}

func changesOfMap(at string, live, next map[string]any, secret bool, out *[]Differs) {
	fields := maps.Clone(live)
	maps.Copy(fields, next)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		changes(at+"/"+pointerStep(name), live[name], next[name], hidden(secret, name, live, next), out)
	}
}

func changesOfList(at string, live, next []any, secret bool, out *[]Differs) {
	is, named := byName(live)
	will, bothNamed := byName(next)
	if !named || !bothNamed {
		for i := range max(len(live), len(next)) {
			changes(fmt.Sprintf("%s/%d", at, i), item(live, i), item(next, i), secret, out)
		}
		return
	}
	for i, x := range live {
		if _, stays := will[nameIn(x)]; !stays {
			changes(fmt.Sprintf("%s/%d", at, i), x, nil, secret, out)
		}
	}
	for i, x := range next {
		changes(fmt.Sprintf("%s/%d", at, i), is[nameIn(x)], x, secret, out)
	}
}

// byName are the items of a list by their names; false: one has none, or two have the same.
func byName(list []any) (map[string]any, bool) {
	out := make(map[string]any, len(list))
	for _, x := range list {
		name := nameIn(x)
		if _, twice := out[name]; name == "" || twice {
			return nil, false
		}
		out[name] = x
	}
	return out, true
}

func nameIn(x any) string {
	m, _ := x.(map[string]any)
	name, _ := m["name"].(string)
	return name
}

func item(list []any, i int) any {
	if i >= len(list) {
		return nil
	}
	return list[i]
}

// WithoutExempt are the changes but for those that take away what is left to others.
func WithoutExempt(list []Differs, live map[string]any, x *plan.Exempt) []Differs {
	if x == nil {
		return list
	}
	return slices.DeleteFunc(list, func(d Differs) bool {
		return d.Want == "" && slices.ContainsFunc(x.Always, func(p fleet.FieldPath) bool { return leadsAt(p, live, d.Pointer) })
	})
}

// leadsAt reports that a path leads to the field of a pointer, or to one that holds it.
func leadsAt(p fleet.FieldPath, v any, pointer string) bool {
	tokens := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	if len(tokens) < len(p) {
		return false
	}
	for i, step := range p {
		token := strings.ReplaceAll(strings.ReplaceAll(tokens[i], "~1", "/"), "~0", "~")
		switch in := v.(type) {
		case map[string]any:
			if !step.Key(token) {
				return false
			}
			v = in[token]
		case []any:
			place, err := strconv.Atoi(token)
			if err != nil || place >= len(in) {
				return false
			}
			of, _ := in[place].(map[string]any)
			if !step.Item(place, func(key, value string) bool { return fmt.Sprint(of[key]) == value }) {
				return false
			}
			v = of
		default:
			return false
		}
	}
	return true
}
