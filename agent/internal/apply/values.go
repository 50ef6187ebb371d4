package apply

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
)

// scalePath is where autoscalers write; it is kept out of the hash and compared by itself.
var scalePath = []string{"f:spec", "f:replicas"}

// Values is what is live at a path set, and how much of the set is still ours.
type Values struct {
	Hash Hash
	// Replicas is /spec/replicas, or -1.
	Replicas int64
	Holding  Holding
}

// Holding says how what the API server notes for our field manager in a live object differs from a path set; 0: not.
type Holding uint8

const (
	// holdsLess: others took paths of the set, or took them away. holdsLessReplicas says so of /spec/replicas.
	holdsLess Holding = 1 << iota
	holdsLessReplicas
	// holdsReplicas: /spec/replicas is in the set, and ours.
	holdsReplicas
	// holdsMore: paths are ours that are not in the set. Only a write of ours can have made them so.
	holdsMore
	// holdsNone: nothing is noted for our manager at all.
	holdsNone
)

// Of reads the live values at the set.
func (p *PathSet) Of(live map[string]any) Values {
	w := hasher{out: make([]byte, 0, 1024)}
	fields := ownFields(live)
	w.walk(p, live, fields, scalePath)
	out := Values{Replicas: ReplicasOf(live), Holding: w.holding}
	if fields == nil {
		out.Holding = holdsNone
	}
	out.Hash = w.sum()
	return out
}

// Less are values of which others hold some.
func (v Values) Less() Values {
	v.Holding |= holdsLess
	return v
}

// hasher goes through a path set, the live object, and the fields that are noted for our manager in it, side by side.
type hasher struct {
	out     []byte
	holding Holding
}

// sum is the hash of what was gone through.
func (w *hasher) sum() (h Hash) {
	sum := sha256.Sum256(w.out)
	copy(h[:], sum[:])
	return h
}

// ReplicasOf is /spec/replicas of an object, or -1.
func ReplicasOf(obj map[string]any) int64 {
	spec, _ := obj["spec"].(map[string]any)
	if n, isInt := spec["replicas"].(int64); isInt {
		return n
	}
	return -1
}

func (w *hasher) walk(p *PathSet, v any, fields map[string]any, scale []string) {
	others := len(fields)
	if _, self := fields["."]; self {
		others--
	}
	for i := range p.edges {
		e := &p.edges[i]
		below, ok := e.elem.find(v)
		sub, held := heldAt(fields, e.elem.text, &others)
		onScale := len(scale) > 0 && e.elem.text == scale[0]
		atScale := onScale && len(scale) == 1 && e.leaf
		w.hold(e, held, atScale)
		if _, isInt := below.(int64); atScale && isInt {
			continue
		}
		w.leaf(e, below, ok, held)
		if e.kid == nil {
			continue
		}
		var rest []string
		if onScale {
			rest = scale[1:]
		}
		w.walk(e.kid, below, sub, rest)
		w.out = append(w.out, 2)
	}
	if others > 0 {
		w.holding |= holdsMore
	}
}

// heldAt looks up an element in the fields of a manager: what is below it, and whether the path itself is the manager's.
// It takes one from others if the element is there.
func heldAt(fields map[string]any, element string, others *int) (sub map[string]any, held bool) {
	at, found := fields[element]
	if !found {
		return nil, false
	}
	*others--
	sub, _ = at.(map[string]any)
	_, self := sub["."]
	return sub, self || len(sub) == 0
}

// hold compares the set's word on a path with whose it is now.
func (w *hasher) hold(e *edge, held, atScale bool) {
	switch {
	case e.leaf && held && atScale:
		w.holding |= holdsReplicas
	case e.leaf == held:
	case held:
		w.holding |= holdsMore
	case atScale:
		w.holding |= holdsLessReplicas
	default:
		w.holding |= holdsLess
	}
}

// leaf adds what is live at a path. What others put into a bare one counts only when it is not ours any more.
func (w *hasher) leaf(e *edge, below any, found, held bool) {
	w.out = append(w.out, e.elem.text...)
	if !found {
		w.out = append(w.out, 0)
		return
	}
	w.out = append(w.out, 1)
	if e.leaf && e.kid == nil && !(e.bare && (held || empty(below))) {
		w.value(below)
	}
}

// empty reports that v is a map or a list with nothing in it.
func empty(v any) bool {
	switch x := v.(type) {
	case map[string]any:
		return len(x) == 0
	case []any:
		return len(x) == 0
	}
	return false
}

func (w *hasher) value(v any) {
	switch x := v.(type) {
	case nil:
		w.out = append(w.out, 'n')
	case bool:
		if x {
			w.out = append(w.out, 't')
			return
		}
		w.out = append(w.out, 'f')
	case int64:
		w.out = binary.LittleEndian.AppendUint64(append(w.out, 'i'), uint64(x))
	case float64:
		w.out = binary.LittleEndian.AppendUint64(append(w.out, 'd'), math.Float64bits(x))
	case string:
		w.text('s', x)
	case []any:
		w.out = binary.LittleEndian.AppendUint32(append(w.out, 'l'), uint32(len(x)))
		for _, item := range x {
			w.value(item)
		}
	case map[string]any:
		w.out = binary.LittleEndian.AppendUint32(append(w.out, 'm'), uint32(len(x)))
		keys := make([]string, 0, len(x))
		for k := range x {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			w.text('k', k)
			w.value(x[k])
		}
	default:
		text, _ := json.Marshal(x)
		w.text('j', string(text))
	}
}

func (w *hasher) text(tag byte, s string) {
	w.out = binary.LittleEndian.AppendUint32(append(w.out, tag), uint32(len(s)))
	w.out = append(w.out, s...)
}
