package apply

import (
	"encoding/binary"
	"fmt"
	"slices"
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

// WantDigest names what is wanted of an object: the content, the values that may go into it, and what a policy leaves of it.
func WantDigest(content fleet.Digest, values fleet.Digest, exempt string) fleet.Digest {
	b := make([]byte, 0, len(content)+len(values)+len(exempt))
	b = append(append(append(b, content[:]...), values[:]...), exempt...)
	return fleet.DigestOf(b)
}
