package apply

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"unique"

	"github.com/klauspost/compress/zstd"

	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/plan"
	"towline.dev/towline/pkg/wire"
)

// segment is a part of the inventory as it is stored: "towline-inventory/1\n", the SHA-256 of the rest, and zstd of the
// JSON of a storedSegment.
type segment struct {
	// after is the segment before it, or firstSegment; empty: an older agent wrote it, which did not say.
	after   string
	records []*Record
	dropped []fleet.ObjectID
	losses  []loss
}

// firstSegment stands for the segment before the first.
const firstSegment = "none"

// loss is what a module loses, what its removal has left in the cluster, and the revision and listing that it has there; what is zero ends it.
type loss struct {
	module   fleet.ModuleRef
	change   plan.Change
	left     []string
	revision int64
	listing  Listing
}

const segmentHeader = "towline-inventory/1\n"

// maxSegment bounds a segment after decompression.
const maxSegment = 512 << 20

type storedSegment struct {
	After    string           `json:"after,omitempty"`
	Elements []string         `json:"elements,omitempty"`
	Nodes    [][]storedEdge   `json:"nodes,omitempty"`
	Records  []storedRecord   `json:"records,omitempty"`
	Dropped  []fleet.ObjectID `json:"dropped,omitempty"`
	Losses   []storedLoss     `json:"losses,omitempty"`
}

type storedLoss struct {
	Project   string `json:"project"`
	Module    string `json:"module"`
	Owned     int    `json:"owned,omitempty"`
	Gone      int    `json:"gone,omitempty"`
	Confirmed uint64 `json:"confirmed,omitempty"`
	// ConfirmedIn is the lineage that counted Confirmed; 0: an older agent wrote it, which did not say, so that it is asked again.
	ConfirmedIn uint64   `json:"confirmedIn,omitempty"`
	Left        []string `json:"left,omitempty"`
	Revision    int64    `json:"revision,omitempty"`
	// Listed, ListedIn and Bundle are the listing.
	Listed   int64  `json:"listed,omitempty"`
	ListedIn uint64 `json:"listedIn,omitempty"`
	Bundle   []byte `json:"bundle,omitempty"`
}

// storedEdge is element, flags, and the node below plus one.
type storedEdge [3]int

type storedRecord struct {
	ID         fleet.ObjectID   `json:"id"`
	Version    string           `json:"version"`
	Wave       int32            `json:"wave,omitempty"`
	Project    string           `json:"project"`
	Module     string           `json:"module"`
	From       string           `json:"from,omitempty"`
	State      plan.RecordState `json:"state"`
	UID        string           `json:"uid,omitempty"`
	RV         uint64           `json:"rv,omitempty"`
	Want       []byte           `json:"want,omitempty"`
	Content    []byte           `json:"content,omitempty"`
	Born       uint64           `json:"born,omitempty"`
	Generation uint64           `json:"generation,omitempty"`
	Lineage    uint64           `json:"lineage,omitempty"`
	Deleting   uint64           `json:"deleting,omitempty"`
	DeletingIn uint64           `json:"deletingIn,omitempty"` // 0: an older agent wrote it; it was Lineage, or a later one
	Taking     bool             `json:"taking,omitempty"`
	Unheard    bool             `json:"unheard,omitempty"`
	Prune      string           `json:"prune,omitempty"`
	Delete     string           `json:"delete,omitempty"`
	Named      bool             `json:"named,omitempty"`
	Legacy     bool             `json:"legacy,omitempty"`
	Shared     bool             `json:"shared,omitempty"`
	Revision   int64            `json:"revision,omitempty"`
	Found      bool             `json:"found,omitempty"`
	Asked      bool             `json:"asked,omitempty"`
	Outcome    plan.Outcome     `json:"outcome,omitempty"`
	Fleeting   bool             `json:"fleeting,omitempty"`
	Aggregated bool             `json:"aggregated,omitempty"`
	Keepers    string           `json:"keepers,omitempty"`
	Scaler     string           `json:"scaler,omitempty"`
	Unmet      *[]plan.Unmet    `json:"unmet,omitempty"`
	Paths      int              `json:"paths,omitempty"` // node plus one
	Hash       []byte           `json:"hash,omitempty"`
	Replicas   int64            `json:"replicas"`
	Holding    Holding          `json:"holding,omitempty"`
	Algorithm  int              `json:"algorithm,omitempty"`
	Made       *storedMade      `json:"made,omitempty"`
	Before     *storedMade      `json:"before,omitempty"`
	Givers     string           `json:"givers,omitempty"`
	Trying     []byte           `json:"trying,omitempty"`
	Since      int64            `json:"since,omitempty"`
	Exempt     *storedExempt    `json:"exempt,omitempty"`
	Hidden     []byte           `json:"hidden,omitempty"`
}

// storedMade has the node of its path set plus one.
type storedMade struct {
	At    string `json:"at,omitempty"`
	Paths int    `json:"paths"`
	Hash  []byte `json:"hash"`
}

func (e *encoder) made(m *Made) *storedMade {
	if m == nil {
		return nil
	}
	return &storedMade{m.At, e.node(m.Paths), m.Hash[:]}
}

func (x *storedMade) made(sets []*PathSet) (*Made, error) {
	if x == nil {
		return nil, nil
	}
	if x.Paths <= 0 || x.Paths >= len(sets) || len(x.Hash) != len(Hash{}) {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "what pods are made by is broken")
	}
	return &Made{At: Intern(x.At), Paths: sets[x.Paths], Hash: Hash(x.Hash)}, nil
}

// deleting is of the word that decided to delete the object.
func (x storedRecord) deleting() fleet.Age {
	if x.Deleting == 0 {
		return fleet.Age{}
	}
	return fleet.Age{Lineage: cmp.Or(x.DeletingIn, x.Lineage), Generation: x.Deleting}
}

// storedExempt has nodes plus one for its path sets.
type storedExempt struct {
	Text string `json:"text"`
	Body []byte `json:"body,omitempty"`
	Left int    `json:"left,omitempty"`
	Lent int    `json:"lent,omitempty"`
	Free int    `json:"free,omitempty"`
	// Kept is as it was stored when it was not encrypted yet; Sealed is encrypted.
	Kept     []byte   `json:"kept,omitempty"`
	Sealed   []byte   `json:"sealed,omitempty"`
	Managers []string `json:"managers,omitempty"`
}

// exempt is what is stored of an object. Values of it are encrypted, whatever it is: who looks into the state must not find what a Secret
// has, nor what a binding put elsewhere.
func (e *encoder) exempt(id fleet.ObjectID, x *Exempt) (*storedExempt, error) {
	if x == nil {
		return nil, nil
	}
	out := &storedExempt{Text: x.Text, Body: x.Body.Bytes(), Left: e.node(x.Left), Lent: e.node(x.Lent), Free: e.node(x.Free), Managers: x.Managers}
	if len(x.Kept) == 0 {
		return out, nil
	}
	var err error
	if out.Sealed, err = e.vault.Seal(keptFor(id), x.Kept); err != nil {
		return nil, fmt.Errorf("%s: what is kept of it is not encrypted: %w", id, err)
	}
	return out, nil
}

// keptFor is what values of an object are encrypted for.
func keptFor(id fleet.ObjectID) string { return "kept of " + id.String() }

// unseal gives records back what was kept of their objects, and reports that some of it was not encrypted. What cannot be opened is lost, as
// all is that the agent keeps encrypted.
func (s segment) unseal(vault Vault) (plain bool, lost int) {
	for _, r := range s.records {
		x := r.Exempt
		switch {
		case x == nil:
			continue
		case len(x.Kept) > 0:
			plain = true
		case len(x.sealed) > 0:
			var err error
			if x.Kept, err = vault.Open(keptFor(r.ID), x.sealed); err != nil {
				lost++
			}
		}
		x.sealed = nil
	}
	return plain, lost
}

func (x *storedExempt) exempt(sets []*PathSet) (*Exempt, error) {
	if x == nil {
		return nil, nil
	}
	body, err := fleet.DigestFromBytes(x.Body)
	if err != nil {
		return nil, err
	}
	if min(x.Left, x.Lent, x.Free) < 0 || max(x.Left, x.Lent, x.Free) >= len(sets) {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "what is exempt is broken")
	}
	return &Exempt{Text: Intern(x.Text), Body: body, Left: sets[x.Left], Lent: sets[x.Lent], Free: sets[x.Free], Kept: x.Kept, sealed: x.Sealed, Managers: x.Managers}, nil
}

type encoder struct {
	vault    Vault
	out      storedSegment // without its records
	elements map[*element]int
	nodes    map[*PathSet]int
}

func (s segment) encode(vault Vault) ([]byte, error) {
	e := encoder{vault: vault, elements: map[*element]int{}, nodes: map[*PathSet]int{}}
	e.out.After, e.out.Dropped = s.after, s.dropped
	for _, l := range s.losses {
		e.out.Losses = append(e.out.Losses, storedLoss{Project: l.module.Project, Module: l.module.Name,
			Owned: l.change.Owned, Gone: l.change.Gone, Confirmed: l.change.Confirmed.Generation, ConfirmedIn: l.change.Confirmed.Lineage, Left: l.left, Revision: l.revision,
			Listed: l.listing.Revision, ListedIn: l.listing.Lineage, Bundle: l.listing.Bundle.Bytes()})
	}
	plain, err := e.plain(s.records)
	if err != nil {
		return nil, err
	}
	packed := wire.Compress(plain)
	sum := sha256.Sum256(packed)
	return slices.Concat([]byte(segmentHeader), sum[:], packed), nil
}

// recordBytes is about what a stored record takes.
const recordBytes = 512

// plain is the JSON of the segment. It is written record by record: stored forms of all of a base at once would be the
// largest thing in the agent's memory.
func (e *encoder) plain(records []*Record) ([]byte, error) {
	var out bytes.Buffer
	out.Grow((len(records) + 1) * recordBytes)
	out.WriteString(`{"records":[`)
	list := json.NewEncoder(&out)
	for i, r := range records {
		if i > 0 {
			out.WriteByte(',')
		}
		stored, err := e.record(r)
		if err == nil {
			err = list.Encode(stored)
		}
		if err != nil {
			return nil, err
		}
	}
	rest, err := json.Marshal(e.out)
	if err != nil {
		return nil, err
	}
	out.WriteByte(']')
	if len(rest) > len("{}") {
		out.WriteByte(',')
	}
	out.Write(rest[1:])
	return out.Bytes(), nil
}

func (e *encoder) record(r *Record) (storedRecord, error) {
	exempt, err := e.exempt(r.ID, r.Exempt)
	if err != nil {
		return storedRecord{}, err
	}
	out := storedRecord{
		ID: r.ID, Version: r.Version, Wave: r.Wave, Project: r.Module.Project, Module: r.Module.Name, From: fromText(r.From), State: r.State,
		UID: r.UID, RV: r.ResourceVersion, Want: r.Want.Bytes(), Content: r.Content.Bytes(), Born: r.Born,
		Generation: r.Generation, Lineage: r.Lineage, Deleting: r.Deleting.Generation, DeletingIn: r.Deleting.Lineage, Taking: r.Taking, Unheard: r.Unheard, Prune: r.Prune, Delete: r.Delete, Named: r.Named, Legacy: r.Legacy, Shared: r.Shared, Revision: r.Revision, Found: r.Found, Asked: r.Asked,
		Outcome: r.Outcome, Fleeting: r.Fleeting, Aggregated: r.Aggregated, Keepers: r.Keepers, Scaler: r.Scaler, Unmet: r.Unmet, Paths: e.node(r.Paths), Hash: r.Base.Hash[:],
		Replicas: r.Base.Replicas, Holding: r.Base.Holding, Algorithm: r.Algorithm,
		Exempt: exempt, Hidden: r.Hidden, Givers: r.Givers,
		Made: e.made(r.Made), Before: e.made(r.Before),
	}
	if t := r.Trying; t != nil {
		out.Trying, out.Since = t.Content.Bytes(), t.Since
	}
	return out, nil
}

// node is the number of a path set plus one; 0 for none.
func (e *encoder) node(p *PathSet) int {
	if p == nil {
		return 0
	}
	if n, ok := e.nodes[p]; ok {
		return n
	}
	edges := make([]storedEdge, len(p.edges))
	for i, x := range p.edges {
		edges[i] = storedEdge{e.element(x.elem), int(flags(x)), e.node(x.kid)}
	}
	e.out.Nodes = append(e.out.Nodes, edges)
	e.nodes[p] = len(e.out.Nodes)
	return e.nodes[p]
}

func (e *encoder) element(x *element) int {
	n, ok := e.elements[x]
	if !ok {
		n = len(e.out.Elements)
		e.out.Elements = append(e.out.Elements, x.text)
		e.elements[x] = n
	}
	return n
}

func decodeSegment(data []byte, in *Interner) (segment, error) {
	rest, ok := bytes.CutPrefix(data, []byte(segmentHeader))
	if !ok || len(rest) < sha256.Size {
		return segment{}, fleet.Errorf(fleet.ErrCorrupt, "segment has no header of a version that this agent knows")
	}
	sum, packed := rest[:sha256.Size], rest[sha256.Size:]
	if got := sha256.Sum256(packed); !bytes.Equal(got[:], sum) {
		return segment{}, fleet.Errorf(fleet.ErrCorrupt, "segment does not match its checksum")
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxSegment))
	if err != nil {
		return segment{}, err
	}
	defer r.Close()
	plain, err := r.DecodeAll(packed, nil)
	if err != nil {
		return segment{}, fleet.Errorf(fleet.ErrCorrupt, "segment: %v", err)
	}
	var stored storedSegment
	if err := json.Unmarshal(plain, &stored); err != nil {
		return segment{}, fleet.Errorf(fleet.ErrCorrupt, "segment: %v", err)
	}
	sets, err := in.restore(stored)
	if err != nil {
		return segment{}, fleet.Errorf(fleet.ErrCorrupt, "segment: %v", err)
	}
	out := segment{after: stored.After, dropped: stored.Dropped}
	for _, x := range stored.Losses {
		bundle, err := fleet.DigestFromBytes(x.Bundle)
		if err != nil {
			return segment{}, fleet.Errorf(fleet.ErrCorrupt, "segment: listing of %s/%s: %v", x.Project, x.Module, err)
		}
		out.losses = append(out.losses, loss{fleet.ModuleRef{Project: Intern(x.Project), Name: Intern(x.Module)},
			plan.Change{Owned: x.Owned, Gone: x.Gone, Confirmed: fleet.Age{Lineage: x.ConfirmedIn, Generation: x.Confirmed}}, x.Left, x.Revision,
			Listing{Lineage: x.ListedIn, Revision: x.Listed, Bundle: bundle}})
	}
	for _, x := range stored.Records {
		rec, err := x.record(sets)
		if err != nil {
			return segment{}, fleet.Errorf(fleet.ErrCorrupt, "segment: %s: %v", x.ID, err)
		}
		out.records = append(out.records, rec)
	}
	return out, nil
}

// restore makes the path sets of a segment; the first is none.
func (in *Interner) restore(s storedSegment) ([]*PathSet, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	sets := []*PathSet{nil}
	for i, stored := range s.Nodes {
		edges := make([]edge, len(stored))
		for j, x := range stored {
			if x[0] < 0 || x[0] >= len(s.Elements) || x[2] < 0 || x[2] > i {
				return nil, fleet.Errorf(fleet.ErrCorrupt, "path set %d is broken", i)
			}
			elem, err := in.element(s.Elements[x[0]])
			if err != nil {
				return nil, err
			}
			edges[j] = edge{elem: elem, leaf: x[1]&1 != 0, bare: x[1]&2 != 0, kid: sets[x[2]]}
		}
		sets = append(sets, in.node(edges))
	}
	return sets, nil
}

func (x storedRecord) record(sets []*PathSet) (*Record, error) {
	want, err := fleet.DigestFromBytes(x.Want)
	if err != nil {
		return nil, err
	}
	content, err := fleet.DigestFromBytes(x.Content)
	if err != nil {
		return nil, err
	}
	trying, err := fleet.DigestFromBytes(x.Trying)
	if err != nil {
		return nil, err
	}
	if x.Paths < 0 || x.Paths >= len(sets) || len(x.Hash) > len(Hash{}) {
		return nil, fleet.Errorf(fleet.ErrCorrupt, "record is broken")
	}
	r := &Record{Content: content, Paths: sets[x.Paths], Algorithm: x.Algorithm, Unmet: x.Unmet, Hidden: x.Hidden, Base: Values{Replicas: x.Replicas, Holding: x.Holding}}
	if !trying.IsZero() {
		r.Trying = &Trying{trying, x.Since}
	}
	copy(r.Base.Hash[:], x.Hash)
	if r.Made, err = x.Made.made(sets); err != nil {
		return nil, err
	}
	if r.Before, err = x.Before.made(sets); err != nil {
		return nil, err
	}
	if r.Exempt, err = x.Exempt.exempt(sets); err != nil {
		return nil, err
	}
	id := fleet.ObjectID{Group: Intern(x.ID.Group), Kind: Intern(x.ID.Kind), Namespace: Intern(x.ID.Namespace), Name: x.ID.Name}
	r.Record = plan.Record{ID: id, Version: Intern(x.Version), Wave: x.Wave, State: plan.RecordState(Intern(string(x.State))),
		Module: fleet.ModuleRef{Project: Intern(x.Project), Name: Intern(x.Module)}, UID: x.UID, ResourceVersion: x.RV, Want: want,
		Born: x.Born, Generation: x.Generation, Lineage: x.Lineage, Deleting: x.deleting(), Taking: x.Taking, Unheard: x.Unheard, Prune: Intern(x.Prune), Delete: Intern(x.Delete), Named: x.Named, Legacy: x.Legacy, Shared: x.Shared, Revision: x.Revision, Found: x.Found, Asked: x.Asked,
		Outcome: x.Outcome, Fleeting: x.Fleeting, Aggregated: x.Aggregated, Keepers: Intern(x.Keepers), Scaler: Intern(x.Scaler), Givers: Intern(x.Givers)}
	if x.From != "" {
		if r.From, err = fleet.ParseModuleRef(x.From); err != nil {
			return nil, fleet.Errorf(fleet.ErrCorrupt, "record of %s: %v", id, err)
		}
	}
	if r.Written() && (r.Algorithm != Algorithm || r.Paths == nil) {
		r.Want = fleet.Digest{}
	}
	return r, nil
}

func fromText(m fleet.ModuleRef) string {
	if (m == fleet.ModuleRef{}) {
		return ""
	}
	return m.String()
}

// Intern is the same text, kept once for all who have it.
func Intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}

// sortedSegments orders names by number and drops what is no segment.
func sortedSegments(names []string) []string {
	out := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return len(n) < len(segmentPrefix)+20 || n[:len(segmentPrefix)] != segmentPrefix
	})
	slices.Sort(out)
	return out
}
