// Package report holds the newest status of each module until the hub has it. It owns what is sent, in which order and
// how soon, and knows what the hub holds; it must not know the connection, nor how a status comes about.
package report

import (
	"crypto/sha256"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/dirty"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

const (
	// coalesce is how long a change that is not urgent waits for others.
	coalesce = 100 * time.Millisecond
	// burst is how many reports of one module may go at once; refill is how soon one more may: at that pace they are no
	// more than those that wait for others.
	burst  = 4
	refill = coalesce
	// settle is how long a new session waits for the modules that were not looked at since the agent started.
	settle = 5 * time.Second
	// maxInFlight is how many frames may wait for an acknowledgement.
	maxInFlight = 64
	// frameOverhead is room for a frame's own fields.
	frameOverhead   = 256
	defaultMaxFrame = 1 << 20
)

// Reporter is safe for concurrent use; no method blocks.
type Reporter struct {
	mu       sync.Mutex
	wake     chan struct{}
	current  map[fleet.ModuleRef]*entry
	expected map[fleet.ModuleRef]bool
	leaving  bool

	// What the hub holds: acked for certain, sent when all in flight arrives. A nil acked is not known.
	acked       map[fleet.ModuleRef]fleet.Digest
	ackedDigest fleet.Digest
	sent        map[fleet.ModuleRef]fleet.Digest

	live     bool
	epoch    uint64
	sequence uint64
	maxFrame int
	inFlight []flight
	due      time.Time // when the dirty modules go; zero: none is dirty
	dirty    map[fleet.ModuleRef]bool
	full     fullState
}

// entry is the newest status of a module.
type entry struct {
	message *agentv1.SyncStatus
	digest  fleet.Digest
	class   string

	sentClass string
	sentAt    time.Time
	tokens    int
	filled    time.Time
}

// flight is a frame that the hub has not acknowledged: which digests it carried.
type flight struct {
	sequence uint64
	digest   fleet.Digest
	modules  map[fleet.ModuleRef]fleet.Digest
	full     bool // it began a full status
}

// fullState is where a full status stands.
type fullState struct {
	wanted   bool
	known    bool // the hub holds ackedDigest
	deadline time.Time
	begun    bool
	rest     []fleet.ModuleRef
}

// New makes a Reporter. acked is the digest of the status that a hub acknowledged to an earlier process; zero: none.
func New(acked fleet.Digest) *Reporter {
	return &Reporter{wake: make(chan struct{}, 1), current: map[fleet.ModuleRef]*entry{}, expected: map[fleet.ModuleRef]bool{},
		dirty: map[fleet.ModuleRef]bool{}, sent: map[fleet.ModuleRef]fleet.Digest{}, ackedDigest: acked}
}

// C carries a wake-up when Next may have something new to say.
func (r *Reporter) C() <-chan struct{} { return r.wake }

func (r *Reporter) signal() {
	dirty.Poke(r.wake)
}

// AckedDigest is the digest of the status that the hub acknowledged last, for the hello.
func (r *Reporter) AckedDigest() fleet.Digest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ackedDigest
}

// AckedSeen reports whether this process has itself seen what AckedDigest names, or only remembers it from one before.
func (r *Reporter) AckedSeen() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.acked != nil
}

// Expect says which modules a status is owed for; what is known of others is forgotten, but for strays.
func (r *Reporter) Expect(modules []fleet.ModuleRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.expected)
	for _, m := range modules {
		r.expected[m] = true
	}
	for m, e := range r.current {
		if !r.expected[m] && e.class != classStray {
			delete(r.current, m)
			delete(r.dirty, m)
			delete(r.sent, m)
		}
	}
	r.signal()
}

// Leave says that the cluster leaves the fleet, for good: from now on what becomes of every module is owed, of one that nobody expects, too.
func (r *Reporter) Leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving = true
}

// AllRemoved reports that the newest status of every module is that it is removed; of one that is owed there must be a status.
func (r *Reporter) AllRemoved() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for m := range r.expected {
		if r.current[m] == nil {
			return false
		}
	}
	for _, e := range r.current {
		if e.class != string(fleet.PhaseRemoved) {
			return false
		}
	}
	return true
}

// Report takes the newest status of a module. That of a module that nobody expects is dropped, unless it is a stray:
// objects of a module that the record of what is desired has lost must be seen.
func (r *Reporter) Report(s fleet.SyncStatus) {
	message := wire.SyncStatusToProto(s)
	digest, class := digestOf(message), classOf(s)
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.expected[s.Module] && class != classStray && !r.leaving {
		return
	}
	e := r.current[s.Module]
	if e == nil {
		e = &entry{tokens: burst, filled: now}
		r.current[s.Module] = e
	}
	if e.digest == digest {
		return
	}
	e.message, e.digest, e.class = message, digest, class
	r.mark(s.Module, e, now)
	r.signal()
}

// mark notes that the hub does not hold the newest status, and when it should.
func (r *Reporter) mark(m fleet.ModuleRef, e *entry, now time.Time) {
	if held, ok := r.sent[m]; ok && held == e.digest {
		delete(r.dirty, m)
		return
	}
	r.dirty[m] = true
	due := now.Add(coalesce)
	if (e.class != e.sentClass || now.Sub(e.sentAt) >= coalesce) && e.take(now) {
		due = now
	}
	if r.due.IsZero() || due.Before(r.due) {
		r.due = due
	}
}

// take takes a token.
func (e *entry) take(now time.Time) bool {
	if n := int(now.Sub(e.filled) / refill); n > 0 {
		e.tokens = min(burst, e.tokens+n)
		e.filled = e.filled.Add(time.Duration(n) * refill)
	}
	if e.tokens == 0 {
		return false
	}
	e.tokens--
	return true
}

const classStray = string(fleet.PhaseStray)

// classOf is what a person would be woken for; a change of it is urgent.
func classOf(s fleet.SyncStatus) string {
	switch {
	case s.Phase == fleet.PhaseFailed, s.Phase == fleet.PhaseRemoved, s.Phase == fleet.PhaseStray:
		return string(s.Phase)
	case s.Waiting() > 0:
		return "PruneHold"
	}
	for _, o := range s.States { // what is only watched has no drift
		if o.Drift == fleet.DriftDrifted || o.Drift == fleet.DriftConflict {
			return "Drifted"
		}
	}
	if s.Ready {
		return "Ready"
	}
	return ""
}

// digestOf leaves out when the status was seen.
func digestOf(m *agentv1.SyncStatus) fleet.Digest {
	observed := m.GetObservedMillis()
	m.ObservedMillis = 0
	defer func() { m.ObservedMillis = observed }()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return fleet.Digest{}
	}
	return fleet.DigestOf(b)
}

// root is the digest over all statuses that the hub holds. The hub only compares it with what this agent said before.
func root(held map[fleet.ModuleRef]fleet.Digest) fleet.Digest {
	h := sha256.New()
	for _, m := range slices.SortedFunc(maps.Keys(held), compareModules) {
		d := held[m]
		h.Write([]byte(m.String()))
		h.Write([]byte{0})
		h.Write(d[:])
	}
	var out fleet.Digest
	copy(out[:], h.Sum(nil))
	return out
}

func compareModules(a, b fleet.ModuleRef) int { return strings.Compare(a.String(), b.String()) }

// Begin opens a session. known says that the hub holds the status that AckedDigest named; otherwise, or when this process
// does not know what that was, all is sent, once every expected module was looked at or some seconds have passed.
func (r *Reporter) Begin(epoch uint64, known bool, maxFrame int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if maxFrame <= frameOverhead {
		maxFrame = defaultMaxFrame
	}
	r.live, r.epoch, r.sequence, r.maxFrame, r.inFlight = true, epoch, 0, maxFrame, nil
	r.due, r.full = time.Time{}, fullState{}
	clear(r.dirty)
	if known && r.acked != nil {
		r.sent = maps.Clone(r.acked)
		r.markAll(time.Now())
	} else {
		r.full = fullState{wanted: true, known: known, deadline: time.Now().Add(settle)}
	}
	r.signal()
}

// markAll marks what differs from what the hub holds, to go at once.
func (r *Reporter) markAll(now time.Time) {
	for m, e := range r.current {
		if r.sent[m] != e.digest {
			r.dirty[m] = true
			r.due = now
		}
	}
}

// End closes the session: nothing is sent until the next Begin.
func (r *Reporter) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.live = false
}

// Ack says that the hub has every frame up to the sequence. It returns the digest to remember for the next process.
func (r *Reporter) Ack(epoch, sequence uint64) fleet.Digest {
	r.mu.Lock()
	defer r.mu.Unlock()
	for epoch == r.epoch && len(r.inFlight) > 0 && r.inFlight[0].sequence <= sequence {
		f := r.inFlight[0]
		r.inFlight = r.inFlight[1:]
		if f.full {
			r.acked = map[fleet.ModuleRef]fleet.Digest{}
		}
		if r.acked != nil {
			maps.Copy(r.acked, f.modules)
		}
		r.ackedDigest = f.digest
	}
	r.signal()
	return r.ackedDigest
}

// Next returns the next frame, if one is due. Otherwise wait says when to ask again; 0: after C. The frame counts as
// sent: when it cannot be, the session ends, and the next one begins with what was acknowledged.
func (r *Reporter) Next(now time.Time) (frame *agentv1.Status, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.live || len(r.inFlight) >= maxInFlight:
		return nil, 0
	case r.full.wanted:
		return r.nextFull(now)
	case r.due.IsZero():
		return nil, 0
	case r.due.After(now):
		return nil, r.due.Sub(now)
	}
	modules := slices.SortedFunc(maps.Keys(r.dirty), compareModules)
	picked, _ := r.pick(modules)
	if len(picked) == 0 {
		r.due = time.Time{}
		return nil, 0
	}
	frame = r.frame(picked, now, false)
	if len(r.dirty) == 0 {
		r.due = time.Time{}
	}
	return frame, 0
}

// nextFull is the next frame of a full status. It waits until it has something to say of every module.
func (r *Reporter) nextFull(now time.Time) (*agentv1.Status, time.Duration) {
	if !r.full.begun {
		if !r.complete() && now.Before(r.full.deadline) {
			return nil, r.full.deadline.Sub(now)
		}
		if r.complete() && r.full.known && root(r.digests()) == r.ackedDigest {
			r.sent, r.acked = r.digests(), r.digests()
			r.full = fullState{}
			clear(r.dirty)
			r.due = time.Time{}
			return r.frame(nil, now, false), 0 // it holds still
		}
		r.sent = map[fleet.ModuleRef]fleet.Digest{}
		r.full.rest = slices.SortedFunc(maps.Keys(r.current), compareModules)
	}
	picked, rest := r.pick(r.full.rest)
	begin := !r.full.begun
	r.full.begun, r.full.rest = true, rest
	frame := r.frame(picked, now, begin)
	if frame.FullEnd = len(rest) == 0; frame.FullEnd {
		r.full, r.due = fullState{}, time.Time{}
		r.markAll(now)
		r.signal()
	}
	return frame, 0
}

func (r *Reporter) complete() bool {
	for m := range r.expected {
		if r.current[m] == nil {
			return false
		}
	}
	return true
}

func (r *Reporter) digests() map[fleet.ModuleRef]fleet.Digest {
	out := make(map[fleet.ModuleRef]fleet.Digest, len(r.current))
	for m, e := range r.current {
		out[m] = e.digest
	}
	return out
}

// pick takes modules from the front until a frame is full, at least one.
func (r *Reporter) pick(modules []fleet.ModuleRef) (picked, rest []fleet.ModuleRef) {
	size := frameOverhead
	for i, m := range modules {
		e := r.current[m]
		if e == nil {
			continue
		}
		n := proto.Size(e.message) + 8
		if len(picked) > 0 && size+n > r.maxFrame {
			return picked, modules[i:]
		}
		size += n
		picked = append(picked, m)
	}
	return picked, nil
}

// frame makes a frame of the modules and notes that they were sent.
func (r *Reporter) frame(modules []fleet.ModuleRef, now time.Time, begin bool) *agentv1.Status {
	r.sequence++
	f := flight{sequence: r.sequence, modules: make(map[fleet.ModuleRef]fleet.Digest, len(modules)), full: begin}
	out := &agentv1.Status{Epoch: r.epoch, Sequence: r.sequence, FullBegin: begin}
	for _, m := range modules {
		e := r.current[m]
		out.Syncs = append(out.Syncs, wire.FitSyncStatus(e.message, r.maxFrame-frameOverhead))
		e.sentAt, e.sentClass = now, e.class
		r.sent[m], f.modules[m] = e.digest, e.digest
		delete(r.dirty, m)
	}
	f.digest = root(r.sent)
	out.Digest = f.digest.Bytes()
	r.inFlight = append(r.inFlight, f)
	return out
}

// Pending reports whether the hub lacks something that it should get.
func (r *Reporter) Pending() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live && (len(r.dirty) > 0 || r.full.wanted || len(r.inFlight) > 0)
}
