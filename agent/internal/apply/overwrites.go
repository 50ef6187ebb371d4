package apply

import (
	"fmt"
	"reflect"

	"towline.dev/towline/pkg/fleet"
)

// Overwrites is the first value of a live object that an apply would change whose answer is given, the marks aside; nil: none.
// Only the answer tells: what the API server takes as a whole, such as a selector, loses what the apply does not list.
func Overwrites(live, answer map[string]any) (*Differs, error) {
	ours, err := NewInterner().build(ownFields(answer), nil)
	if err != nil {
		return nil, fmt.Errorf("fields of our manager: %w", err)
	}
	return ours.changed(unmarked(live), unmarked(answer), "", false), nil
}

// unmarked is an object without our marks.
func unmarked(obj map[string]any) map[string]any {
	obj = shallow(obj)
	meta, _ := obj["metadata"].(map[string]any)
	meta = shallow(meta)
	for field, mark := range map[string]string{"labels": fleet.HubLabel, "annotations": fleet.OwnerAnnotation} {
		of, _ := meta[field].(map[string]any)
		of = shallow(of)
		delete(of, mark)
		meta[field] = of
	}
	obj["metadata"] = meta
	return obj
}

// changed is the first leaf of the set that has another value in next.
func (p *PathSet) changed(live, next any, pointer string, secret bool) *Differs {
	for _, e := range p.edges {
		is, index, _ := e.elem.locate(live)
		will, at, _ := e.elem.locate(next)
		here := pointer + "/" + e.elem.token(max(index, at))
		hides := hidden(secret, e.elem.field, live, next)
		if e.kid != nil {
			if d := e.kid.changed(is, will, here, hides); d != nil {
				return d
			}
		} else if e.leaf && !reflect.DeepEqual(is, will) {
			return &Differs{Pointer: here, Want: show(will, hides), Live: show(is, hides)}
		}
	}
	return nil
}
