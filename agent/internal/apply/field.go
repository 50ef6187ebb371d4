package apply

import (
	"encoding/json"
	"slices"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/manifest"
)

// Field is one field of a live object.
type Field struct {
	// Pointer is the JSON pointer of the field in the live object.
	Pointer string
	// Live is its value, as text; empty if it is gone.
	Live string
	path []*element
}

// ReplicasPointer is where autoscalers write.
const ReplicasPointer = "/spec/replicas"

// ReplicasField is /spec/replicas of a live object.
func ReplicasField(live map[string]any) Field {
	out := Field{Pointer: ReplicasPointer}
	for _, step := range []string{"spec", "replicas"} {
		out.path = append(out.path, &element{text: "f:" + step, field: step, kind: 'f'})
	}
	out.Live = out.In(live)
	return out
}

// In is the value of the same field in another object, as text; empty if it has none.
func (f Field) In(obj map[string]any) string {
	var v any = obj
	secret := false
	for _, e := range f.path {
		secret = hidden(secret, e.field, v)
		v, _ = e.find(v)
	}
	return show(v, secret)
}

// Missing lists the leaves of p that are not in now, in order: fields of ours that another manager has. now may be nil.
func (p *PathSet) Missing(now *PathSet, live map[string]any) []Field {
	var out []Field
	p.missing(now, live, nil, "", false, &out)
	return out
}

func (p *PathSet) missing(now *PathSet, live any, path []*element, pointer string, secret bool, out *[]Field) {
	if p == now {
		return
	}
	for _, e := range p.edges {
		below, index, _ := e.elem.locate(live)
		at := pointer + "/" + e.elem.token(index)
		here := append(slices.Clip(path), e.elem)
		hides := hidden(secret, e.elem.field, live)
		other := now.edge(e.elem)
		if e.leaf && e.kid == nil && (other == nil || !other.leaf) {
			*out = append(*out, Field{Pointer: at, Live: show(below, hides), path: here})
		}
		if e.kid == nil {
			continue
		}
		var kid *PathSet
		if other != nil {
			kid = other.kid
		}
		e.kid.missing(kid, below, here, at, hides, out)
	}
}

// holds reports whether the path, or one above it, is in the set, or parts of what it leads to.
func (p *PathSet) holds(path []*element) bool {
	for i, step := range path {
		e := p.edge(step)
		if e == nil {
			return false
		}
		if i == len(path)-1 || e.leaf && e.kid == nil {
			return true
		}
		p = e.kid
	}
	return false
}

// Holds reports that a field is of the set, or is in a list or a map that is as a whole. One of which the set has parts only is not: a
// definition may have put them together since, and others have the rest.
func (p *PathSet) Holds(f Field) bool {
	for i, step := range f.path {
		e := p.edge(step)
		switch {
		case e == nil:
			return false
		case e.leaf && e.kid == nil:
			return true
		case i == len(f.path)-1:
			return e.leaf
		}
		p = e.kid
	}
	return false
}

// Undermined reports that another manager has something in a list or a map that the API server notes as ours as a whole: a
// definition of the kind has divided it since.
func (p *PathSet) Undermined(live map[string]any) bool {
	in := NewInterner()
	mine, err := in.build(ownFields(live), nil)
	if err != nil {
		return false
	}
	for _, m := range Managers(live) {
		theirs, err := in.build(m.Fields, nil)
		if err == nil && !m.Ours() && m.Subresource != "status" && p.above(mine, theirs) {
			return true
		}
	}
	return false
}

// above reports that a path of two sets that nothing is below of in them leads further in a third one.
func (p *PathSet) above(mine, theirs *PathSet) bool {
	for i := range p.edges {
		e := &p.edges[i]
		own, other := mine.edge(e.elem), theirs.edge(e.elem)
		switch {
		case own == nil || other == nil || other.kid == nil:
		case e.leaf && e.kid == nil:
			if own.leaf && own.kid == nil && !e.bare {
				return true
			}
		case e.kid != nil && own.kid != nil && e.kid.above(own.kid, other.kid):
			return true
		}
	}
	return false
}

// hidden reports that nobody may be shown what is below a field of what stands in the same place of one or more objects. secret: nor that itself.
func hidden(secret bool, field string, in ...any) bool {
	for _, v := range in {
		m, isMap := v.(map[string]any)
		secret = secret || isMap && manifest.Hides(m, field)
	}
	return secret
}

// show is a value for people. hidden: it is a part of a Secret.
func show(v any, hidden bool) string {
	if v == nil {
		return ""
	}
	if hidden {
		return fleet.Masked
	}
	text, err := json.Marshal(manifest.MaskValue(v))
	if err != nil {
		return ""
	}
	return fleet.Clip(string(text), 64)
}
