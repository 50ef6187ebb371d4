package apply

import (
	"encoding/json"
	"fmt"
	"slices"
)

// DropDivided is the JSON patch that takes away what nobody holds any more of the lists and maps that were ours as a whole, by the fields of our
// last write, and of which the API server notes parts in the answer to the next one: a definition of the kind has divided them in between, and
// server-side apply leaves there what that write does not list. Nil: there is nothing, or somebody is noted in the words of another version of the kind,
// in which the same may have another name, or other keys.
func (p *PathSet) DropDivided(answer map[string]any) ([]byte, error) {
	in := NewInterner()
	mine, err := in.build(ownFields(answer), nil)
	if p == nil || err != nil {
		return nil, err
	}
	sets := []*PathSet{mine}
	if len(p.divided(answer, "", sets)) == 0 || !inOneVersion(answer) { // as nearly always
		return nil, nil
	}
	for _, m := range Managers(answer) {
		set, err := in.build(m.Fields, nil)
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
	}
	drop := p.divided(answer, "", sets)
	if len(drop) == 0 {
		return nil, nil
	}
	meta, _ := answer["metadata"].(map[string]any)
	patch := []map[string]any{{"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]}}
	for _, pointer := range drop {
		patch = append(patch, map[string]any{"op": "remove", "path": pointer})
	}
	return json.Marshal(patch)
}

// inOneVersion reports that what is noted of who holds which fields, but of the status, is in the words of the version that an object is in.
func inOneVersion(obj map[string]any) bool {
	version, _ := obj["apiVersion"].(string)
	for _, x := range entriesOf(obj) {
		entry, _ := x.(map[string]any)
		if noted, _ := entry["apiVersion"].(string); noted != version && managerOf(entry).Subresource != "status" {
			return false
		}
	}
	return true
}

// divided are the pointers to what goes, in an order in which none moves another. sets are what managers hold there, ours first.
func (p *PathSet) divided(live any, pointer string, sets []*PathSet) (drop []string) {
	for i := range p.edges {
		e := &p.edges[i]
		mine := sets[0].edge(e.elem)
		below, index, found := e.elem.locate(live)
		if mine == nil || mine.kid == nil || !found || slices.ContainsFunc(sets, func(s *PathSet) bool { return s.whole(e.elem) }) {
			continue
		}
		at, theirs := pointer+"/"+e.elem.token(index), kids(sets, e.elem)
		switch {
		case e.kid != nil:
			drop = append(drop, e.kid.divided(below, at, theirs)...)
		case e.leaf && !e.bare:
			drop = append(drop, unheld(below, at, theirs)...)
		}
	}
	return drop
}

// whole reports that a set has what an element leads to as a whole.
func (p *PathSet) whole(e *element) bool {
	edge := p.edge(e)
	return edge != nil && edge.leaf && edge.kid == nil
}

// kids are what sets hold below an element.
func kids(sets []*PathSet, e *element) (out []*PathSet) {
	for _, s := range sets {
		if edge := s.edge(e); edge != nil && edge.kid != nil {
			out = append(out, edge.kid)
		} else if len(out) == 0 {
			out = append(out, nil)
		}
	}
	return out
}

// unheld are the pointers to the items of a list, or the keys of a map, that none of the sets has, the last ones first.
func unheld(v any, pointer string, sets []*PathSet) (out []string) {
	has := func(is func(e *element) bool) bool {
		return slices.ContainsFunc(sets, func(s *PathSet) bool {
			return s != nil && slices.ContainsFunc(s.edges, func(e edge) bool { return is(e.elem) })
		})
	}
	switch x := v.(type) {
	case map[string]any:
		for k := range x {
			if !has(func(e *element) bool { return e.kind == 'f' && e.field == k }) {
				out = append(out, pointer+"/"+pointerStep(k))
			}
		}
		slices.Sort(out)
	case []any:
		for i, item := range slices.Backward(x) {
			if !has(func(e *element) bool {
				return e.kind == 'k' && e.matches(item) || e.kind == 'v' && same(item, e.value) || e.kind == 'i' && e.index == i
			}) {
				out = append(out, fmt.Sprintf("%s/%d", pointer, i))
			}
		}
	}
	return out
}
