package rollout

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"towline.dev/towline/pkg/fleet"
)

// chunkVersion is the first byte of an encoded chunk.
const chunkVersion = 1

// headFile is the JSON of a head: what the plan fixed beside its members, and the state's head.
type headFile struct {
	Module           fleet.ModuleRef     `json:"module"`
	Number           int64               `json:"number"`
	Revision         int64               `json:"revision"`
	From             int64               `json:"from,omitempty"`
	ModuleGeneration int64               `json:"moduleGeneration,omitempty"`
	StartedBy        string              `json:"startedBy,omitempty"`
	Why              string              `json:"why,omitempty"`
	Totals           []int               `json:"totals"`
	Joined           int                 `json:"joined,omitempty"`
	Unmatched        []fleet.ClusterName `json:"unmatched,omitempty"`
	EmptyOverrides   []string            `json:"emptyOverrides,omitempty"`
	ConfirmLeave     bool                `json:"confirmLeave,omitempty"`
	Assigned         int                 `json:"assigned,omitempty"`
	Head             Head                `json:"head"`
}

// EncodeHead is everything of a plan and a state but the strategy, the members and their records.
func EncodeHead(p *Plan, s *State) ([]byte, error) {
	f := headFile{Module: p.ID.Module, Number: p.ID.Number, Revision: p.Revision, From: p.From,
		ModuleGeneration: p.ModuleGeneration, StartedBy: p.StartedBy, Why: p.Why, Joined: len(s.Joined),
		Unmatched: p.Unmatched, EmptyOverrides: p.EmptyOverrides, ConfirmLeave: p.ConfirmLeave, Assigned: p.Assigned, Head: s.Head}
	for i := range p.Stages {
		f.Totals = append(f.Totals, p.Stages[i].Total)
	}
	return json.Marshal(f)
}

// DecodeHead reads what EncodeHead wrote; strategy is the one that the rollout started with. DecodeChunk fills in the
// members: State.Chunks has a place for each chunk.
func DecodeHead(b []byte, strategy Strategy) (*Plan, State, error) {
	var f headFile
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, State{}, fleet.Errorf(fleet.ErrCorrupt, "rollout head: %v", err)
	}
	strategy, err := strategy.Prepare()
	if err != nil {
		return nil, State{}, err
	}
	p := &Plan{ID: fleet.RolloutID{Module: f.Module, Number: f.Number}, Revision: f.Revision, From: f.From,
		ModuleGeneration: f.ModuleGeneration, StartedBy: f.StartedBy, Why: f.Why, Strategy: strategy,
		Unmatched: f.Unmatched, EmptyOverrides: f.EmptyOverrides, ConfirmLeave: f.ConfirmLeave, Assigned: f.Assigned}
	members := 0
	for i, total := range f.Totals {
		members += total
		switch {
		case i < len(strategy.Stages):
			p.Stages = append(p.Stages, PlanStage{Stage: strategy.Stages[i], Total: total})
		case i == len(strategy.Stages):
			p.addUnmatched(len(strategy.Stages))
			p.Stages[i].Total = total
		default:
			return nil, State{}, fleet.Errorf(fleet.ErrCorrupt, "rollout %s: %d stages, the strategy has %d", p.ID, len(f.Totals), len(strategy.Stages))
		}
	}
	if len(f.Totals) < len(strategy.Stages) || len(f.Head.Stages) != len(p.Stages) {
		return nil, State{}, fleet.Errorf(fleet.ErrCorrupt, "rollout %s: %d stages, the strategy has %d", p.ID, len(f.Totals), len(strategy.Stages))
	}
	s := State{Head: f.Head}
	p.Members = make([]Member, members)
	s.Joined = make([]Member, f.Joined)
	for left := members + f.Joined; left > 0; left -= ChunkSize {
		s.Chunks = append(s.Chunks, make([]Record, min(left, ChunkSize)))
	}
	return p, s, nil
}

// outline is what can be read from an encoded head without its strategy. Of one that another version wrote nothing is known:
// the record's checksum was right.
type outline struct {
	State     RunState `json:"state"`
	Back      *Back    `json:"back"`
	Pins      []Pin    `json:"pins"`
	HoldSince Instant  `json:"holdSince"`
}

func outlineOf(b []byte) outline {
	var f struct {
		Head outline `json:"head"`
	}
	if json.Unmarshal(b, &f) != nil {
		return outline{}
	}
	return f.Head
}

// HeldAt reads from an encoded head the revision to which a rollout was rolled back with every cluster that it had moved;
// 0: it was not, or only those that failed went back.
func HeldAt(b []byte) int64 {
	to, failed := WentBack(b)
	if failed {
		return 0
	}
	return to
}

// WentBack reads from an encoded head the revision to which clusters went back when a rollout was rolled back, and whether only those that
// failed did, so that the others have the newer one; 0: it was not.
func WentBack(b []byte) (to int64, failed bool) {
	h := outlineOf(b)
	if h.State != RolledBack || h.Back == nil {
		return 0, false
	}
	return h.Back.To, h.Back.Scope == ScopeFailed
}

// PinsIn reads the pins from an encoded head. Most have none, and say so at a glance: lists of clusters ask of every module.
func PinsIn(b []byte) []Pin {
	if !bytes.Contains(b, []byte(`"pins":`)) {
		return nil
	}
	return outlineOf(b).Pins
}

// AskedSince reads from an encoded head since when clusters wait for a person's confirm to leave, or did before it ended or they were left out,
// and no person has confirmed that; zero: none does.
func AskedSince(b []byte) Instant { return outlineOf(b).HoldSince }

// EncodeChunk is one chunk: its members and their records. Texts that repeat are written once.
func EncodeChunk(p *Plan, s *State, chunk int) []byte {
	e := encoder{b: []byte{chunkVersion}, seen: map[string]uint64{}}
	records := s.Chunks[chunk]
	e.uint(uint64(len(records)))
	for k := range records {
		i := chunk*ChunkSize + k
		m, r := s.Member(p, i), &records[k]
		planned := uint64(m.Stage) << 1
		if m.Leave {
			planned |= 1
		}
		e.text(string(m.Cluster))
		e.uint(planned)
		e.uint(uint64(r.State))
		e.uint(uint64(r.flags))
		e.uint(uint64(r.Stage))
		e.uint(uint64(r.Step))
		e.int(r.Revision)
		e.int(r.Previous)
		e.uint(r.Generation)
		e.instant(r.Since)
		e.instant(r.Started)
		e.instant(r.ReadySince)
		e.text(r.Reason)
		e.text(r.Message)
	}
	e.taken(records)
	return e.b
}

// taken writes behind the records which of them are of a cluster that took the name of another one. A program that does not know of it reads
// the records without.
func (e *encoder) taken(records []Record) {
	for k := range records {
		if r := &records[k]; r.Taken != 0 {
			e.uint(uint64(k))
			e.uint(r.Taken)
		}
	}
}

func (d *decoder) taken(records []Record) {
	for d.err == nil && len(d.b) > 0 {
		k, taken := d.uint(), d.uint()
		if k >= uint64(len(records)) {
			d.err = fmt.Errorf("record %d of %d", k, len(records))
			return
		}
		records[k].Taken = taken
	}
}

// DecodeChunk reads what EncodeChunk wrote into a plan and a state of DecodeHead.
func DecodeChunk(p *Plan, s *State, chunk int, b []byte) error {
	if chunk < 0 || chunk >= len(s.Chunks) {
		return fleet.Errorf(fleet.ErrCorrupt, "rollout %s: chunk %d of %d", p.ID, chunk, len(s.Chunks))
	}
	d := decoder{b: b}
	if v := d.byte(); v != chunkVersion {
		return fleet.Errorf(fleet.ErrCorrupt, "rollout %s: chunk %d has version %d, this program reads %d", p.ID, chunk, v, chunkVersion)
	}
	records := make([]Record, len(s.Chunks[chunk]))
	if n := d.uint(); n != uint64(len(records)) {
		return fleet.Errorf(fleet.ErrCorrupt, "rollout %s: chunk %d has %d records, not %d", p.ID, chunk, n, len(records))
	}
	for k := range records {
		m := Member{Cluster: fleet.ClusterName(d.text())}
		planned := d.uint()
		m.Stage, m.Leave = int16(planned>>1), planned&1 == 1
		records[k] = Record{State: ClusterState(d.uint()), flags: recordFlag(d.uint()), Stage: int16(d.uint()),
			Step: uint32(d.uint()), Revision: d.int(), Previous: d.int(), Generation: d.uint(), Since: d.instant(),
			Started: d.instant(), ReadySince: d.instant(), Reason: d.text(), Message: d.text()}
		if d.err == nil && (int(m.Stage) >= len(p.Stages) || int(records[k].Stage) >= len(p.Stages) || m.Stage < 0 || records[k].Stage < 0) {
			d.err = fmt.Errorf("stage %d of %d", m.Stage, len(p.Stages))
		}
		if i := chunk*ChunkSize + k; i < len(p.Members) {
			p.Members[i] = m
		} else {
			s.Joined[i-len(p.Members)] = m
		}
	}
	d.taken(records)
	if d.err != nil {
		return fleet.Errorf(fleet.ErrCorrupt, "rollout %s: chunk %d: %v", p.ID, chunk, d.err)
	}
	s.Chunks[chunk] = records
	return nil
}

type encoder struct {
	b    []byte
	seen map[string]uint64
	last Instant
}

func (e *encoder) uint(v uint64) { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) int(v int64)   { e.b = binary.AppendVarint(e.b, v) }

// instant writes 0 for none, else the distance from the instant before.
func (e *encoder) instant(t Instant) {
	if t == 0 {
		e.b = append(e.b, 0)
		return
	}
	e.b = append(e.b, 1)
	e.int(int64(t - e.last))
	e.last = t
}

// text writes 0 and the string the first time, later its number.
func (e *encoder) text(s string) {
	if n, ok := e.seen[s]; ok {
		e.uint(n)
		return
	}
	e.seen[s] = uint64(len(e.seen) + 1)
	e.uint(0)
	e.uint(uint64(len(s)))
	e.b = append(e.b, s...)
}

type decoder struct {
	b    []byte
	seen []string
	last Instant
	err  error
}

var errShort = errors.New("it ends too early")

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.err = errShort
		return 0
	}
	v := d.b[0]
	d.b = d.b[1:]
	return v
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	return take(d, v, n)
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	return take(d, v, n)
}

func take[T any](d *decoder, v T, n int) T {
	if n <= 0 {
		d.err, d.b = errShort, nil
		var zero T
		return zero
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) instant() Instant {
	if d.byte() == 0 {
		return 0
	}
	d.last += Instant(d.int())
	return d.last
}

func (d *decoder) text() string {
	n := d.uint()
	if n > 0 {
		if n > uint64(len(d.seen)) {
			d.err = fmt.Errorf("text %d of %d", n, len(d.seen))
			return ""
		}
		return d.seen[n-1]
	}
	size := d.uint()
	if size > uint64(len(d.b)) {
		d.err = errShort
		return ""
	}
	s := string(d.b[:size])
	d.b = d.b[size:]
	d.seen = append(d.seen, s)
	return s
}
