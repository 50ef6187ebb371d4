package rollout

import (
	"cmp"
	"slices"

	"towline.dev/towline/pkg/fleet"
)

// ChunkSize is how many records are stored together.
const ChunkSize = 256

// maxMessage is how long a stored message may be.
const maxMessage = 256

// State is where a rollout stands: a head and one record for each member, in chunks. Decide never changes a State that
// it was given; it shares the chunks that did not change.
type State struct {
	Head
	// Chunks hold the records of members n*ChunkSize and on.
	Chunks [][]Record
}

// Record is where a member stands; only what cannot be derived.
type Record struct {
	State ClusterState
	flags recordFlag
	Stage int16  // as planned, or where its labels put it after the end
	Step  uint32 // the step that assigned it last; 0: this rollout has not moved it
	// Revision is what this rollout assigned last; 0: nothing yet.
	Revision int64
	// Previous is what was assigned before this rollout moved it.
	Previous int64
	// Generation of the assignment; 0 until the step is stamped.
	Generation uint64
	// Taken is of the cluster that is to lose the module: what a person said of that is of this one, and of no other that takes its name. See
	// Observed.Taken.
	Taken      uint64
	Since      Instant // the state
	Started    Instant // the assignment, or the return of the cluster: the deadline counts from here
	ReadySince Instant
	// Reason says why it failed or is deferred, Message that in the words of its agent.
	Reason, Message string
}

type recordFlag uint16

const (
	flagLate      recordFlag = 1 << iota // it came, or came back, or was relabelled: it catches up by itself
	flagLeave                            // its move is to lose the module
	flagConfirmed                        // a person confirmed that it may leave
	flagBaseline                         // it is given the last succeeded revision until its stage begins
	flagBack                             // it is to be moved back, or is on its way
	flagPinned                           // it keeps its revision
	flagRetry                            // assign again, though nothing else changed
	flagAway                             // it was away when last seen
	flagLast                             // when it has lost the module, its cluster has nothing any more
	flagLetBy                            // a person said that no stage is to wait for it, while it is held
	flagUnseen                           // it has timed out, and nobody has seen the revision there
	flagAnew                             // it has failed, and is to begin anew, which it has not yet
	flagMayHave                          // it may have the revision by a rollout before, though another one is assigned
	flagAccepted                         // it has failed, and a person went on in spite of that
)

func (r *Record) has(f recordFlag) bool { return r.flags&f != 0 }

// Leaving reports that its move is to lose the module.
func (r *Record) Leaving() bool { return r.has(flagLeave) }

// Confirmed reports that a person confirmed that it may lose the module.
func (r *Record) Confirmed() bool { return r.has(flagConfirmed) }

// Pinned reports that it keeps its revision.
func (r *Record) Pinned() bool { return r.has(flagPinned) }

// InFlight reports that it was moved and is not done: it takes a slot of maxConcurrency.
func (r *Record) InFlight() bool { return r.State == ClusterProgressing || r.State == ClusterSoaking }

// Moved reports that this rollout assigned it something.
func (r *Record) Moved() bool { return r.Step != 0 }

// Head is the rollout's own part of the state.
type Head struct {
	State    RunState     `json:"state"`
	Reason   string       `json:"reason,omitempty"`
	Facts    *Facts       `json:"facts,omitempty"` // of Reason
	Since    Instant      `json:"since,omitempty"`
	Started  Instant      `json:"started,omitempty"`
	Ended    Instant      `json:"ended,omitempty"`
	Step     uint32       `json:"step,omitempty"`  // steps taken
	Stage    int          `json:"stage,omitempty"` // the present one; len(Stages) when all are done
	Stages   []StageHead  `json:"stages,omitempty"`
	Gates    []GateHead   `json:"gates,omitempty"`
	Pause    *Pause       `json:"pause,omitempty"`
	Back     *Back        `json:"back,omitempty"`
	Accepted int          `json:"accepted,omitempty"` // failures of now that a person accepted by resume
	Joined   []Member     `json:"-"`                  // members after those of the plan; stored with their chunk
	Pins     []Pin        `json:"pins,omitempty"`
	Verbs    []VerbRecord `json:"verbs,omitempty"`
	// HoldSince is since when leavers wait for a confirm, or did until the rollout began to go back, ended, or a person left them out.
	HoldSince Instant `json:"holdSince,omitempty"`
	// Awaits are the modules in other clusters for which clusters wait that would be moved; nil: none does.
	Awaits *Awaits `json:"awaits,omitempty"`
	// OverridesPromoted: a person promoted it in spite of overrides that match nothing.
	OverridesPromoted bool `json:"overridesPromoted,omitempty"`
	// SupersededBy is the number of the rollout that took over.
	SupersededBy int64 `json:"supersededBy,omitempty"`
}

// StageHead is where a stage stands.
type StageHead struct {
	Started Instant `json:"started,omitempty"` // its first cluster could move
	Quiet   Instant `json:"quiet,omitempty"`   // no cluster of it is moving: the soak counts from here
	Soaked  bool    `json:"soaked,omitempty"`  // the soak is over, by time or by promote
	Ended   Instant `json:"ended,omitempty"`
	// Total is frozen: the plan's, or that of the moment when a stage began that was empty before.
	Total int `json:"total,omitempty"`
	// Promoted: a person let it go on though it is empty or all of it is deferred. Marked: those that were held then are marked in their
	// records; a hub of before did not.
	Promoted bool `json:"promoted,omitempty"`
	Marked   bool `json:"marked,omitempty"`
	// Accepted are failures of now in it that a person accepted by resume.
	Accepted int `json:"accepted,omitempty"`
}

// GateHead is where a gate stands.
type GateHead struct {
	Stage     int       `json:"stage"`
	Position  Position  `json:"position"`
	Name      string    `json:"name"`
	State     GateState `json:"state"`
	Reason    string    `json:"reason,omitempty"`
	Message   string    `json:"message,omitempty"` // of the program that was asked
	By        string    `json:"by,omitempty"`      // who overrode or rejected it
	Since     Instant   `json:"since,omitempty"`
	NextLook  Instant   `json:"nextLook,omitempty"`
	Approvals []Given   `json:"approvals,omitempty"`
	// Number of the check that is open, or would be next.
	Number       int    `json:"number,omitempty"`
	Failures     int    `json:"failures,omitempty"`
	Inconclusive int    `json:"inconclusive,omitempty"`
	Errors       int    `json:"errors,omitempty"` // in a row
	Measured     int    `json:"measured,omitempty"`
	Override     *Given `json:"override,omitempty"`
	// Measurements are the last few answers, for people.
	Measurements []Measurement `json:"measurements,omitempty"`
}

// Measurement is one answer of a check.
type Measurement struct {
	At      Instant   `json:"at"`
	Outcome GateState `json:"outcome"`
	Value   string    `json:"value,omitempty"`
	Message string    `json:"message,omitempty"`
}

// Given is an approval or an override.
type Given struct {
	By    string  `json:"by"`
	At    Instant `json:"at"`
	Why   string  `json:"why,omitempty"`
	Until Instant `json:"until,omitempty"` // an approval counts until then; 0: for ever
}

// Pause says who or what paused a rollout.
type Pause struct {
	Reason string  `json:"reason"`
	By     string  `json:"by,omitempty"`
	Why    string  `json:"why,omitempty"`
	At     Instant `json:"at"`
	// Left is how many that had failed are none of the rollout any more, or begin anew, without anybody's word on the failure: that is no
	// recovery, and the pause does not end by itself.
	Left int `json:"left,omitempty"`
}

// Back is a rollback.
type Back struct {
	To       int64   `json:"to"`
	Scope    string  `json:"scope"`
	Reason   string  `json:"reason"`
	By       string  `json:"by,omitempty"`
	Facts    *Facts  `json:"facts,omitempty"` // of Reason
	Started  Instant `json:"started"`
	Total    int     `json:"total"`              // clusters that this rollout moved: its budget is of these, whatever becomes of them
	Out      int     `json:"out,omitempty"`      // of Total those that stay out of it
	Brought  int     `json:"brought,omitempty"`  // of Total those that did not have To before, and that it does not place: they leave
	Asks     bool    `json:"asks,omitempty"`     // some of those had the module before the rollout: whoever leaves waits for a person
	Accepted int     `json:"accepted,omitempty"` // failures of now on the way back that a person accepted
	Gates    bool    `json:"gates,omitempty"`
	// Failed are the first of those that had failed when it began, with what each said: its record tells of the way back by then. Failures counts all.
	Failed   []Failure `json:"failed,omitempty"`
	Failures int       `json:"failures,omitempty"`
}

// Failure is why a cluster had failed.
type Failure struct {
	Cluster fleet.ClusterName `json:"cluster"`
	Reason  string            `json:"reason,omitempty"`
	Message string            `json:"message,omitempty"`
	Since   Instant           `json:"since"`
}

// returns is how many clusters are to move back.
func (b *Back) returns() int { return b.Total - b.Brought - b.Out }

// Pin keeps a cluster where it is, through any number of rollouts.
type Pin struct {
	Cluster fleet.ClusterName `json:"cluster"`
	By      string            `json:"by,omitempty"`
	Why     string            `json:"why,omitempty"`
	At      Instant           `json:"at"`
	Until   Instant           `json:"until,omitempty"` // 0: until unpin
}

func newState(p *Plan, pins []Pin) State {
	s := State{Head: Head{State: Pending, Pins: slices.Clone(pins), Stages: make([]StageHead, len(p.Stages))}}
	for i := range p.Stages {
		s.Stages[i].Total = p.Stages[i].Total
		s.Gates = append(s.Gates, gateHeads(i, Before, p.Stages[i].Before)...)
		s.Gates = append(s.Gates, gateHeads(i, After, p.Stages[i].After)...)
	}
	for i, m := range p.Members {
		if i%ChunkSize == 0 {
			s.Chunks = append(s.Chunks, make([]Record, 0, min(ChunkSize, len(p.Members)-i)))
		}
		r := Record{Stage: m.Stage}
		if m.Leave {
			r.flags |= flagLeave
		}
		last := len(s.Chunks) - 1
		s.Chunks[last] = append(s.Chunks[last], r)
	}
	for _, pin := range s.Pins {
		if i := s.IndexOf(p, pin.Cluster); i >= 0 {
			s.record(i).flags |= flagPinned
		}
	}
	return s
}

func gateHeads(stage int, pos Position, gates []Gate) []GateHead {
	out := make([]GateHead, len(gates))
	for i := range gates {
		out[i] = GateHead{Stage: stage, Position: pos, Name: gates[i].Name, State: GatePending}
	}
	return out
}

// Len is the number of members: those of the plan and those that joined.
func (s *State) Len(p *Plan) int { return len(p.Members) + len(s.Joined) }

// Member is the cluster at an index. Indices never change their meaning within a rollout; joiners are put at the end.
func (s *State) Member(p *Plan, i int) Member {
	if i < len(p.Members) {
		return p.Members[i]
	}
	return s.Joined[i-len(p.Members)]
}

// IndexOf finds a cluster; -1 if it is no member. It scans: keep an index where it is asked often.
func (s *State) IndexOf(p *Plan, name fleet.ClusterName) int {
	for i := range p.Members {
		if p.Members[i].Cluster == name {
			return i
		}
	}
	for i := range s.Joined {
		if s.Joined[i].Cluster == name {
			return len(p.Members) + i
		}
	}
	return -1
}

// Record is a copy of the record of a member.
func (s *State) Record(i int) Record { return *s.record(i) }

func (s *State) record(i int) *Record { return &s.Chunks[i/ChunkSize][i%ChunkSize] }

// Stamp writes the generation of a committed step into the records that it assigned. Call it on the State of the
// Decision that made the step, before it is stored or shared: it changes the chunks in place, which are that
// Decision's own.
func (s *State) Stamp(assign []Assign, generation uint64) {
	for _, a := range assign {
		s.record(int(a.Member)).Generation = generation
	}
}

// Unsent is the State of a Decision without what its step assigns, where was is the state that the Decision was made of: it may be
// stored before the step is, for whoever goes on with it assigns the same again.
func (s State) Unsent(was *State, assign []Assign) State {
	s.Chunks = slices.Clone(s.Chunks)
	own := make([]bool, len(s.Chunks))
	for _, a := range assign {
		i := int(a.Member)
		chunk := i / ChunkSize
		if !own[chunk] {
			s.Chunks[chunk], own[chunk] = slices.Clone(s.Chunks[chunk]), true
		}
		next := Record{Stage: s.record(i).Stage, Since: s.record(i).Since, flags: s.record(i).flags & (flagLate | flagBaseline)} // it has just joined
		if chunk < len(was.Chunks) && i%ChunkSize < len(was.Chunks[chunk]) {
			next = *was.record(i)
		}
		*s.record(i) = next
	}
	return s
}

// PlacedBy is the older revision whose placement says where the module is to be: the one to which the rollout goes back, or went.
// 0: its own revision says it.
func (h *Head) PlacedBy() int64 {
	if h.Back == nil || h.State == Aborted || h.State == Failed || h.State == Superseded {
		return 0
	}
	return h.Back.To
}

// MayNeed is the older revision whose placement the next decision may need: the one to which the rollout goes back, or went, or
// that a person asks for, or else the one that came before, to which a failure may lead, and which clusters get that join before
// their stage has begun. 0: it needs none. A decision that goes back to another one all the same takes the module from no cluster
// by the placement of that, and gives it to none.
func (s *State) MayNeed(p *Plan, verbs []Verb) int64 {
	switch {
	case s.State == Failed, s.State == Superseded:
		return 0
	case s.Back != nil:
		return s.Back.To
	}
	for i := range verbs {
		if v := &verbs[i]; v.Verb == VerbRollback && !s.folded(v) {
			return cmp.Or(v.Revision, p.From)
		}
	}
	if s.State == Succeeded {
		return 0 // all stages have begun
	}
	return p.From
}

// folded reports that a verb has been answered.
func (h *Head) folded(v *Verb) bool {
	return slices.ContainsFunc(h.Verbs, func(r VerbRecord) bool { return r.ID == v.ID })
}

// pinned reports that a cluster keeps what it has.
func (h *Head) pinned(name fleet.ClusterName) bool {
	return slices.ContainsFunc(h.Pins, func(p Pin) bool { return p.Cluster == name })
}

// clip makes a message fit for storing.
func clip(s string) string { return fleet.Clip(s, maxMessage) }

// asksNobody reports that nobody leaves now: it goes back, or has ended so that the next rollout takes the module from clusters, if any does.
func (h *Head) asksNobody() bool {
	return h.State == Failed || h.State == Superseded || h.Back != nil && !h.State.Ended()
}
