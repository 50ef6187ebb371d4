package session

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
)

// ackPatience is how long the next index waits for the agent's answer to the last one. An agent that is still fetching gets
// one index for all that changes meanwhile; one that cannot take the last gets the next all the same.
const ackPatience = time.Second

// phase is where a session stands with the cluster's desired set.
type phase int

const (
	// syncing: the session has sent no index. The next one is complete.
	syncing phase = iota
	// awaitingAck: an index is on its way. A newer one waits for the answer, or until ackPatience is over.
	awaitingAck
	// settled: the agent holds all of the index that was sent last. The next one is a delta of it.
	settled
	// refused: the agent did not take all of the index that was sent last. The next one is complete.
	refused
	// regressed: the agent has seen a newer store than this one. It is told nothing but to leave.
	regressed
	// leaving: the agent was told to leave the fleet. It takes no index any more.
	leaving
)

func (p phase) String() string {
	return [...]string{"Syncing", "AwaitingAck", "Settled", "Refused", "Regressed", "Leaving"}[p]
}

// target is the desired set of a cluster at one revision of the store.
type target struct {
	assemblage assemble.Listed
	// syncs and tombstones are those of the assemblage as they go over the wire. What did not change from one target to
	// the next is the same message.
	syncs      []*agentv1.Sync
	tombstones []*agentv1.Tombstone
}

// answer is what the agent says of the index that results in digest.
type answer struct {
	digest fleet.Digest
	// whole says that all of it was taken, refused that nothing was.
	whole, refused bool
}

// machine decides what an agent is told of its desired set, and when. It is a value and knows no stream, store or clock:
// times are ages of the session. Each method returns the frame that is due, or nil.
//
//	Syncing ──offer──► AwaitingAck ──all taken──► Settled ──offer──► AwaitingAck
//	                     │      └──not all taken──► Refused ──offer──► AwaitingAck
//	                     └──no answer for ackPatience, and an offer waits──► AwaitingAck
//	any but Leaving ──leave──► Leaving
type machine struct {
	phase phase
	// fresh says that the agent holds nothing from before this session.
	fresh bool
	// sent is the target of the last index, and sentAt when it went; delta says that it was one.
	sent   target
	sentAt time.Duration
	delta  bool
	// next waits for the answer to the last index; nil: nothing does.
	next *target
	// leave is what the agent was told last of leaving.
	leave *agentv1.Leave
}

// frame is one thing to tell the agent: an index, or to leave.
type frame struct {
	index *agentv1.Index
	// base is what the agent holds, of which the index is a delta; nothing if it is complete.
	base target
	// target is what the index results in, and ahead what it may not have of that, in the order of the syncs.
	target target
	ahead  []content
	leave  *agentv1.Leave
}

// content is the bundle of a sync, and the one that the agent was sent of the same module before: zero if none was.
type content struct {
	before, bundle, policies fleet.Digest
}

// begin is the machine of a session that has just been welcomed. The agent holds the digest held, at generation, from
// earlier sessions of this hub; generation 0 means nothing.
func begin(generation uint64, held fleet.Digest, now target) machine {
	if held == now.assemblage.Digest && generation == now.assemblage.Generation {
		return machine{phase: settled, sent: now}
	}
	return machine{phase: syncing, fresh: generation == 0}
}

// offer takes what the cluster should have now.
func (m *machine) offer(t target, now time.Duration) *frame {
	m.next = nil
	switch m.phase {
	case regressed, leaving:
		return nil
	case syncing:
		return m.send(t, now)
	}
	if t.assemblage.Digest == m.sent.assemblage.Digest {
		return nil
	}
	if m.phase == awaitingAck && now < m.sentAt+ackPatience {
		m.next = &t
		return nil
	}
	return m.send(t, now)
}

// answered takes what the agent says of an index. An answer to another than the last is late and says nothing.
func (m *machine) answered(a answer, now time.Duration) *frame {
	switch m.phase {
	case syncing, regressed, leaving:
		return nil
	}
	if a.digest != m.sent.assemblage.Digest {
		return nil
	}
	m.phase = refused
	if a.whole {
		m.phase = settled
	}
	switch {
	case m.next != nil:
		return m.send(*m.next, now)
	case a.refused && m.delta:
		// A delta rests on what the agent has; the complete index does not. That one is not sent twice.
		return m.send(m.sent, now)
	}
	return nil
}

// awaits reports that it is the answer that the machine waits for.
func (m *machine) awaits(a answer) bool {
	return m.phase == awaitingAck && a.digest == m.sent.assemblage.Digest
}

// tick is due at the time that wake says.
func (m *machine) tick(now time.Duration) *frame {
	if due, waits := m.wake(); !waits || now < due {
		return nil
	}
	return m.send(*m.next, now)
}

// wake is when the machine wants a tick; false: it waits for nothing.
func (m *machine) wake() (due time.Duration, waits bool) {
	if m.phase != awaitingAck || m.next == nil {
		return 0, false
	}
	return m.sentAt + ackPatience, true
}

// takes reports that the agent takes what it is told.
func (m *machine) takes() bool { return m.phase != regressed && m.phase != leaving }

// told is the newest generation that the agent may have, which held another one at its hello.
func (m *machine) told(held uint64) uint64 { return max(held, m.sent.assemblage.Generation) }

// depart takes the order to leave; how much of it is held up may change.
func (m *machine) depart(l *agentv1.Leave) *frame {
	if m.phase == leaving && proto.Equal(m.leave, l) {
		return nil
	}
	m.phase, m.next, m.leave = leaving, nil, l
	return &frame{leave: l}
}

func (m *machine) send(t target, now time.Duration) *frame {
	ix := m.index(t)
	f := &frame{index: ix, target: t, ahead: m.ahead(t)}
	if !ix.GetComplete() {
		f.base = m.sent
	}
	m.phase, m.sent, m.sentAt, m.delta, m.next = awaitingAck, t, now, !ix.GetComplete(), nil
	return f
}

// index is a delta of what the agent holds, or else complete.
func (m *machine) index(t target) *agentv1.Index {
	ix := &agentv1.Index{Complete: true, ResultsIn: t.assemblage.Digest.Bytes(), Generation: t.assemblage.Generation,
		Syncs: t.syncs, Tombstones: t.tombstones, Hold: t.assemblage.Hold}
	if m.phase != settled {
		return ix
	}
	syncs, gone := changedBy(m.sent.syncs, t.syncs, (*agentv1.Sync).GetModule)
	tombstones, forgotten := changedBy(m.sent.tombstones, t.tombstones, (*agentv1.Tombstone).GetModule)
	replaced := map[string]bool{}
	for _, t := range tombstones {
		replaced[t.GetModule()] = true
	}
	if slices.ContainsFunc(gone, func(m string) bool { return !replaced[m] }) {
		return ix // a delta cannot drop a sync that leaves no tombstone
	}
	ix.Complete, ix.AppliesTo, ix.Syncs, ix.Tombstones, ix.Forgotten = false, m.sent.assemblage.Digest.Bytes(), syncs, tombstones, forgotten
	return ix
}

// ahead are the contents that the agent may not have, where it is known what it has: what this session has sent, or
// nothing at all.
func (m *machine) ahead(t target) []content {
	if m.phase == syncing && !m.fresh {
		return nil
	}
	last, next := apart(m.sent.assemblage.Syncs, t.assemblage.Syncs)
	if len(next) == 0 {
		return nil
	}
	before := make(map[fleet.ModuleRef]fleet.Digest, len(last))
	has := map[fleet.Digest]bool{{}: true}
	for _, s := range last {
		before[s.Module] = s.Bundle
		has[s.Bundle], has[s.Policies] = true, true
	}
	var out []content
	for _, s := range next {
		c := content{before: before[s.Module]}
		if !has[s.Bundle] {
			has[s.Bundle], c.bundle = true, s.Bundle
		}
		// Modules share policies, and no bundle: that of another one lists other objects.
		if !has[s.Policies] && !slices.ContainsFunc(m.sent.assemblage.Syncs, func(o *fleet.Sync) bool { return o.Policies == s.Policies }) {
			c.policies = s.Policies
		}
		has[s.Policies] = true
		if !c.bundle.IsZero() || !c.policies.IsZero() {
			out = append(out, c)
		}
	}
	return out
}

// apart is what is between the beginning and the end that two lists have in common: as few as a change has touched.
func apart[T comparable](last, next []T) ([]T, []T) {
	for len(last) > 0 && len(next) > 0 && last[0] == next[0] {
		last, next = last[1:], next[1:]
	}
	for len(last) > 0 && len(next) > 0 && last[len(last)-1] == next[len(next)-1] {
		last, next = last[:len(last)-1], next[:len(next)-1]
	}
	return last, next
}

// changedBy lists what is in next and not the same in last, and the modules that are in last only.
func changedBy[T interface {
	comparable
	proto.Message
}](last, next []T, module func(T) string) (changed []T, gone []string) {
	last, next = apart(last, next)
	before := make(map[string]T, len(last))
	for _, x := range last {
		before[module(x)] = x
	}
	for _, x := range next {
		if old, ok := before[module(x)]; !ok || old != x {
			changed = append(changed, x)
		}
		delete(before, module(x))
	}
	return changed, slices.Sorted(maps.Keys(before))
}
