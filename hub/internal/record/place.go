package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/tracker"
	"towline.dev/towline/pkg/wire"
)

// Place is a cluster under one view of the store: what is known of it as a whole, and what follows from that for each module
// there. A record is read when it is first asked for, so that the commit of an update depends on no more than it used. It
// serves one goroutine.
type Place struct {
	cluster   fleet.ClusterName
	connected bool
	r         store.Reader

	session   read[*storev1.SessionRecord]
	ack       read[*storev1.AckRecord]
	regressed read[bool]
	accepted  read[bool]
	leaves    read[bool]
	told      read[told]
	lastWord  read[time.Time]
}

// told is what follows from what the agent says of the cluster as a whole.
type told struct {
	blinding *fleet.Condition
	frozen   bool
}

// read is something that is read at most once.
type read[T any] struct {
	done  bool
	value T
}

func (x *read[T]) get(fn func() T) T {
	if !x.done {
		x.done, x.value = true, fn()
	}
	return x.value
}

// At is a cluster under a view. connected says that its agent has a live session.
func At(r store.Reader, c fleet.ClusterName, connected bool) *Place {
	return &Place{cluster: c, connected: connected, r: r}
}

// of is the place when the record of its cluster has been read already.
func (p *Place) of(rec *storev1.ClusterRecord) *Place {
	p.regressed = read[bool]{done: true, value: rec.GetRegressed() != ""}
	p.leaves = read[bool]{done: true, value: rec.GetRemoving() != ""}
	return p
}

func recordOf[T proto.Message](r store.Reader, key string) func() T {
	return func() T {
		rec, _, _ := store.Get[T](r, key)
		return rec
	}
}

func (p *Place) sessionRecord() *storev1.SessionRecord {
	return p.session.get(recordOf[*storev1.SessionRecord](p.r, store.SessionKey(p.cluster)))
}

func (p *Place) ackRecord() *storev1.AckRecord {
	return p.ack.get(recordOf[*storev1.AckRecord](p.r, store.AckKey(p.cluster)))
}

// isRegressed reports that the cluster's agent has seen a newer store of the hub than this one.
func (p *Place) isRegressed() bool {
	return p.regressed.get(func() bool {
		// A cluster whose record is damaged stops no other.
		rec, _, _ := store.Get[*storev1.ClusterRecord](store.Untracked(p.r), store.ClusterKey(p.cluster))
		return rec.GetRegressed() != ""
	})
}

// isAccepted reports that the cluster's agent has seen a newer store, and that a person has accepted that it goes on with this one.
func (p *Place) isAccepted() bool {
	return p.accepted.get(func() bool { return p.isRegressed() && AcceptedRestore(store.Untracked(p.r), p.cluster) })
}

// isLeaving reports that the cluster leaves the fleet.
func (p *Place) isLeaving() bool {
	return p.leaves.get(func() bool {
		rec, _, _ := store.Get[*storev1.ClusterRecord](store.Untracked(p.r), store.ClusterKey(p.cluster))
		return rec.GetRemoving() != ""
	})
}

// blinding is why the agent does not see the cluster, by its own word; nil: it does.
func (p *Place) blinding() *fleet.Condition {
	return p.word().blinding
}

// frozen reports that the cluster's own people let nothing be written there.
func (p *Place) frozen() bool { return p.word().frozen }

func (p *Place) word() told {
	return p.told.get(func() told {
		all := Conditions(p.r, p.cluster)
		return told{fleet.Blinding(all), fleet.Frozen(all)}
	})
}

// Keep reads what SameAs compares and lets go of the view, so that the place can be kept for a later comparison.
func (p *Place) Keep() *Place {
	p.sessionRecord()
	p.ackRecord()
	p.isRegressed()
	p.isAccepted()
	p.isLeaving()
	p.blinding()
	p.r = nil
	return p
}

// SameAs reports that each module stands in the place as it did in another view of it, if its own records are the same.
func (p *Place) SameAs(o *Place) bool {
	s, t := p.sessionRecord(), o.sessionRecord()
	a, b := p.ackRecord(), o.ackRecord()
	return p.connected == o.connected && p.isRegressed() == o.isRegressed() && p.isAccepted() == o.isAccepted() && p.isLeaving() == o.isLeaving() && proto.Equal(s, t) && WordFrom(s, a) == WordFrom(t, b) && Voided(s, a) == Voided(t, b) &&
		slices.EqualFunc(a.GetRefused(), b.GetRefused(), func(x, y *agentv1.Refusal) bool { return proto.Equal(x, y) }) &&
		sameCondition(p.blinding(), o.blinding()) && p.frozen() == o.frozen()
}

func sameCondition(a, b *fleet.Condition) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}

// Track reads a module in the place; false: nothing is assigned there. If the agent does not see its cluster, that counts as
// little as no session.
func (p *Place) Track(ref fleet.ModuleRef) (Tracked, bool) {
	d, _, ok := store.Get[*storev1.DesiredRecord](p.r, store.DesiredKey(p.cluster, ref))
	if !ok {
		return Tracked{}, false
	}
	t := Tracked{Cluster: p.cluster, Module: ref, Desired: d}
	t.Input = tracker.Input{Connected: p.connected, Problem: d.GetProblem(), ClusterLeaves: p.isLeaving()}
	if p.connected {
		t.Input.Blind = p.blinding()
		t.Input.Connected = t.Input.Blind == nil
	}
	p.observe(&t)
	t.Input.Desired, t.Input.Tombstone = wanted(d)
	if t.Input.Tombstone != nil && d.GetNextRevision() != 0 {
		t.Input.Desired, t.Input.Before, t.Input.Tombstone = next(p.r, p.cluster, ref, d), t.Input.Tombstone, nil
	}
	if d.GetSync() != nil && t.Input.Connected {
		t.Input.Unable = p.unable(d)
	}
	switch {
	case t.Input.Problem != "":
	case t.Input.Before != nil:
		t.Input.Refused = p.refused(ref, t.Input.Before.Generation)
	case t.Input.Desired != nil:
		t.Input.Refused = p.refused(ref, t.Input.Desired.Generation)
	case t.Input.Tombstone != nil:
		t.Input.Refused = p.refused(ref, t.Input.Tombstone.Generation)
	}
	t.Tracker = tracker.Fold(t.Input)
	return t, true
}

// unable says what of the sync the agent that is there cannot do; empty: it can do all.
func (p *Place) unable(d *storev1.DesiredRecord) string {
	if len(d.GetNeeds()) == 0 {
		return ""
	}
	s := p.sessionRecord()
	missing := wire.Missing(d.GetNeeds(), s.GetFeatures())
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("the agent (%s) does not know %s, which the module has; update it", cmp.Or(s.GetAgentVersion(), "of an unknown version"), strings.Join(missing, ", "))
}

// Void reports that a report does not count: it is of another cluster under the name, or of a time that the agent left behind.
func (p *Place) Void(o *storev1.ObservedRecord) bool {
	return o.GetEpoch() < p.sessionRecord().GetVoidBefore()
}

// observe reads the newest report and what it is worth: whether it is of this cluster at all, and whether the agent that
// is there now stands by it.
func (p *Place) observe(t *Tracked) {
	o, _, _ := store.Get[*storev1.ObservedRecord](p.r, store.ObservedKey(p.cluster, t.Module))
	s := p.sessionRecord()
	t.Input.Regressed, t.Input.Accepted = p.isRegressed(), p.isAccepted() // also of one that has said nothing that counts: it is told nothing
	if o == nil || p.Void(o) {
		t.Input.Unheard = t.Input.Regressed
		t.Void = o != nil || s.GetVoidBefore() > 0
		t.Input.LastHeard = p.lastHeard(t)
		return
	}
	t.Observed = o
	t.Input.Since = time.UnixMilli(o.GetSince())
	if st, err := wire.SyncSummaryFromProto(o.GetStatus()); err == nil {
		t.Input.Observed = &st
	}
	if o.GetEpoch() != s.GetEpoch() {
		t.Input.Unheard = o.GetEpoch() < WordFrom(s, p.ackRecord())
	}
	t.Input.Unheard = t.Input.Unheard || t.Input.Regressed
	t.Input.LastHeard = p.lastHeard(t)
}

// lastHeard is up to when what was reported is known to have held, as far as the store knows; zero: the cluster is seen,
// or nothing was ever heard.
func (p *Place) lastHeard(t *Tracked) time.Time {
	if t.Input.Seen() {
		return time.Time{}
	}
	s := p.sessionRecord()
	if s.GetEnded() == nil {
		if blind := p.blinding(); blind != nil {
			return blind.Since
		}
	}
	return p.lastWord.get(func() time.Time { return LastWord(p.r, p.cluster, s) })
}

// refused is the agent's answer to a generation of a module that it could not take. That of another cluster of the name is none.
func (p *Place) refused(ref fleet.ModuleRef, generation uint64) string {
	if Voided(p.sessionRecord(), p.ackRecord()) {
		return ""
	}
	for _, x := range p.ackRecord().GetRefused() {
		if x.GetModule() == ref.String() && x.GetGeneration() == generation {
			return x.GetCode() + ": " + x.GetMessage()
		}
	}
	return ""
}
