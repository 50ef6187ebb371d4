package apply

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"towline.dev/towline/pkg/fleet"
)

// Algorithm numbers how baseline hashes are made. A record of another algorithm is recomputed and is never drift.
const Algorithm = 2

// Hash is a hash of live values at a path set.
type Hash [16]byte

// PathSet is the set of fields that we own in an object: what the API server noted for our field manager, with list
// items by key. Sets are immutable and share equal subtrees; two equal sets of one Interner are the same pointer.
type PathSet struct {
	id    uint32
	edges []edge
}

type edge struct {
	elem *element
	leaf bool // the path that ends here is ours itself
	bare bool // ours as an empty map or list: others may put fields or items into it, as long as it stays ours
	kid  *PathSet
}

// element is one step of a path.
type element struct {
	id    uint32
	text  string // as in fieldsV1, such as f:spec or k:{"name":"web"}
	field string
	key   map[string]any
	value any
	index int
	kind  byte // f, k, v or i
}

// Interner makes path sets that share their parts.
type Interner struct {
	mu       sync.Mutex
	nodes    map[string]*PathSet
	elements map[string]*element
	nextID   uint32
}

// NewInterner is an empty Interner.
func NewInterner() *Interner {
	return &Interner{nodes: map[string]*PathSet{}, elements: map[string]*element{}}
}

// Parse reads fieldsV1. desired is the object that was applied, if known: what it holds as an empty map or list is ours
// only as a presence.
func (in *Interner) Parse(fieldsV1 []byte, desired map[string]any) (*PathSet, error) {
	var raw map[string]any
	if err := utiljson.Unmarshal(fieldsV1, &raw); err != nil {
		return nil, fmt.Errorf("fields of our manager: %w", err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.build(raw, desired)
}

func (in *Interner) build(raw map[string]any, desired any) (*PathSet, error) {
	keys := make([]string, 0, len(raw))
	for k := range raw {
		if k != "." {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	edges := make([]edge, 0, len(keys))
	for _, k := range keys {
		e, err := in.element(k)
		if err != nil {
			return nil, err
		}
		sub, _ := raw[k].(map[string]any)
		_, self := sub["."]
		below, found := e.find(desired)
		out := edge{elem: e, leaf: self || len(sub) == 0}
		out.bare = found && empty(below)
		if len(sub) > 1 || len(sub) == 1 && !self {
			if out.kid, err = in.build(sub, below); err != nil {
				return nil, err
			}
		}
		edges = append(edges, out)
	}
	return in.node(edges), nil
}

func (in *Interner) node(edges []edge) *PathSet {
	key := make([]byte, 0, 9*len(edges))
	for _, e := range edges {
		key = binary.LittleEndian.AppendUint32(key, e.elem.id)
		var kid uint32
		if e.kid != nil {
			kid = e.kid.id
		}
		key = binary.LittleEndian.AppendUint32(key, kid)
		key = append(key, flags(e))
	}
	if n := in.nodes[string(key)]; n != nil {
		return n
	}
	in.nextID++
	n := &PathSet{id: in.nextID, edges: slices.Clip(edges)}
	in.nodes[string(key)] = n
	return n
}

func flags(e edge) byte {
	var b byte
	if e.leaf {
		b |= 1
	}
	if e.bare {
		b |= 2
	}
	return b
}

func (in *Interner) element(text string) (*element, error) {
	if e := in.elements[text]; e != nil {
		return e, nil
	}
	if len(text) < 2 || text[1] != ':' {
		return nil, fmt.Errorf("path element %q is not understood", text)
	}
	text = strings.Clone(text)
	in.nextID++
	e := &element{id: in.nextID, text: text, kind: text[0]}
	var err error
	switch e.kind {
	case 'f':
		e.field = text[2:]
	case 'k':
		err = utiljson.Unmarshal([]byte(text[2:]), &e.key)
	case 'v':
		var wrapped []any
		if err = utiljson.Unmarshal([]byte("["+text[2:]+"]"), &wrapped); err == nil && len(wrapped) == 1 {
			e.value = wrapped[0]
		}
	case 'i':
		e.index, err = strconv.Atoi(text[2:])
	default:
		err = fmt.Errorf("path element %q is not understood", text)
	}
	if err != nil {
		return nil, err
	}
	in.elements[text] = e
	return e, nil
}

// find is the value one step below v.
func (e *element) find(v any) (any, bool) {
	out, _, ok := e.locate(v)
	return out, ok
}

// locate is find with the index in a list, or -1.
func (e *element) locate(v any) (any, int, bool) {
	if e.kind == 'f' {
		m, _ := v.(map[string]any)
		out, ok := m[e.field]
		return out, -1, ok
	}
	list, _ := v.([]any)
	if e.kind == 'i' {
		if e.index < 0 || e.index >= len(list) {
			return nil, -1, false
		}
		return list[e.index], e.index, true
	}
	for i, item := range list {
		if e.kind == 'v' && same(item, e.value) || e.kind == 'k' && e.matches(item) {
			return item, i, true
		}
	}
	return nil, -1, false
}

func (e *element) matches(item any) bool {
	m, ok := item.(map[string]any)
	if !ok {
		return false
	}
	for k, want := range e.key {
		if !same(m[k], want) {
			return false
		}
	}
	return true
}

// same compares scalars.
func same(a, b any) bool {
	switch a.(type) {
	case string, bool, int64, float64, nil:
		return a == b
	}
	return false
}

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
	sum := sha256.Sum256(w.out)
	copy(out.Hash[:], sum[:])
	return out
}

// hasher goes through a path set, the live object, and the fields that are noted for our manager in it, side by side.
type hasher struct {
	out     []byte
	holding Holding
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
	for _, e := range f.path {
		v, _ = e.find(v)
	}
	return show(v)
}

// Missing lists the leaves of p that are not in now, in order: fields of ours that another manager has. now may be nil.
func (p *PathSet) Missing(now *PathSet, live map[string]any) []Field {
	var out []Field
	p.missing(now, live, nil, "", &out)
	return out
}

func (p *PathSet) missing(now *PathSet, live any, path []*element, pointer string, out *[]Field) {
	if p == now {
		return
	}
	for _, e := range p.edges {
		below, index, _ := e.elem.locate(live)
		at := pointer + "/" + e.elem.token(index)
		here := append(slices.Clip(path), e.elem)
		other := now.edge(e.elem)
		if e.leaf && e.kid == nil && (other == nil || !other.leaf) {
			*out = append(*out, Field{Pointer: at, Live: show(below), path: here})
		}
		if e.kid == nil {
			continue
		}
		var kid *PathSet
		if other != nil {
			kid = other.kid
		}
		e.kid.missing(kid, below, here, at, out)
	}
}

func (p *PathSet) edge(e *element) *edge {
	if p == nil {
		return nil
	}
	for i := range p.edges {
		if p.edges[i].elem == e || p.edges[i].elem.text == e.text {
			return &p.edges[i]
		}
	}
	return nil
}

// holds reports whether the path, or one above it, is in the set.
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

// token is the element as a step of a JSON pointer.
func (e *element) token(index int) string {
	text := e.text[2:]
	switch {
	case e.kind == 'f':
		text = e.field
	case index >= 0:
		return strconv.Itoa(index)
	}
	return pointerStep(text)
}

// pointerStep is a name as a step of a JSON pointer (RFC 6901).
func pointerStep(name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(name, "~", "~0"), "/", "~1")
}

// Paths lists the fields of the set in the notation of the API server's conflict messages, such as
// .spec.containers[name="web"].image.
func (p *PathSet) Paths() map[string]bool {
	out := map[string]bool{}
	p.list("", out)
	return out
}

func (p *PathSet) list(prefix string, out map[string]bool) {
	if p == nil {
		return
	}
	for _, e := range p.edges {
		at := prefix + e.elem.String()
		if e.leaf {
			out[at] = true
		}
		e.kid.list(at, out)
	}
}

// String is the element in the notation of conflict messages.
func (e *element) String() string {
	switch e.kind {
	case 'f':
		return "." + e.field
	case 'k':
		keys := make([]string, 0, len(e.key))
		for k := range e.key {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for i, k := range keys {
			value, _ := json.Marshal(e.key[k])
			keys[i] = k + "=" + string(value)
		}
		return "[" + strings.Join(keys, ",") + "]"
	case 'v':
		return "[=" + e.text[2:] + "]"
	default:
		return "[" + e.text[2:] + "]"
	}
}

// show is a value for people.
func show(v any) string {
	if v == nil {
		return ""
	}
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return fleet.Clip(string(text), 64)
}

// WantDigest names what is wanted of an object: the content, the values that may go into it, and the owner mark.
func WantDigest(content fleet.Digest, values fleet.Digest) fleet.Digest {
	var b [64]byte
	copy(b[:32], content[:])
	copy(b[32:], values[:])
	return fleet.DigestOf(b[:])
}
