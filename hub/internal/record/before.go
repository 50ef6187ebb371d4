package record

import (
	"bytes"
	"maps"
	"slices"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// What a cluster has of a module beside its newest assignment is known from the agent's answer to that. Until the answer is here
// it may be anything that the cluster was given since the last answer which said that nothing else was left: an agent that is
// away took some of that, or none, and need not have said so. The desired record remembers it, so that it is known who is to
// have what of it.

// maxBefore is how much of before a record remembers: more are assignments that nobody has answered.
const maxBefore = 8

// Remember notes in next, which follows old, what the cluster was given before it and may have something of. Nil stays nil.
func Remember(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef, old, next *storev1.DesiredRecord) {
	if next == nil {
		return
	}
	next.Before, next.BeforeUnknown = old.GetBefore(), old.GetBeforeUnknown()
	if extras, ok := answer(heard(r, c, ref), old); ok && len(extras) == 0 {
		next.Before, next.BeforeUnknown = nil, false
	}
	if s := old.GetSync(); s != nil {
		next.Before = append(slices.Clone(next.Before), &storev1.Given{Bundle: s.GetBundle(), Values: s.GetValues()})
		next.BeforeUnknown = next.BeforeUnknown || len(s.GetBundle()) == 0 // the record was damaged
	}
	now := &storev1.Given{Bundle: next.GetSync().GetBundle(), Values: next.GetSync().GetValues()}
	var kept []*storev1.Given
	for i, g := range next.Before {
		again := slices.ContainsFunc(next.Before[i+1:], func(later *storev1.Given) bool { return sameGiven(later, g) })
		if !again && len(g.GetBundle()) > 0 && !sameGiven(g, now) {
			kept = append(kept, g)
		}
	}
	if len(kept) > maxBefore {
		kept, next.BeforeUnknown = kept[len(kept)-maxBefore:], true
	}
	next.Before = kept
}

func sameGiven(a, b *storev1.Given) bool {
	return bytes.Equal(a.GetBundle(), b.GetBundle()) && maps.Equal(a.GetValues(), b.GetValues())
}

// ValuesGiven are the values with which a cluster was given a bundle last; nil: that is not known, or there were none.
func ValuesGiven(d *storev1.DesiredRecord, bundle fleet.Digest) map[string]string {
	if s := d.GetSync(); bytes.Equal(s.GetBundle(), bundle.Bytes()) {
		return s.GetValues()
	}
	for _, g := range slices.Backward(d.GetBefore()) {
		if bytes.Equal(g.GetBundle(), bundle.Bytes()) {
			return g.GetValues()
		}
	}
	return nil
}

// mayHave is all that a cluster with the record d may have something of, the extras aside that its agent names. unknown says
// that there may be more.
func mayHave(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef, d *storev1.DesiredRecord) (out []*storev1.Given, unknown bool) {
	if s := d.GetSync(); s != nil {
		out = append(out, &storev1.Given{Bundle: s.GetBundle(), Values: s.GetValues()})
		unknown = len(s.GetBundle()) == 0 // the record was damaged
	}
	o := heard(r, c, ref)
	if _, ok := answer(o, d); ok {
		return out, unknown
	}
	said := observed(r, c, ref)
	out, unknown = append(out, d.GetBefore()...), unknown || d.GetBeforeUnknown()
	// What does not count was said of another cluster, or of what this one was before it, or the hub, was put back.
	unknown = unknown || o == nil && (said != nil || unheard(r, c, d)) || finding(o, d) || ahead(o, d)
	b := said.GetStatus().GetBundle()
	if len(b) > 0 && !slices.ContainsFunc(out, func(g *storev1.Given) bool { return bytes.Equal(g.GetBundle(), b) }) {
		out, unknown = append(out, &storev1.Given{Bundle: b}), true // given by a hub that knew more
	}
	return out, unknown
}

// answer is what the agent has beside what the record says. False: it has not taken that yet, or did not name all.
func answer(o *storev1.ObservedRecord, d *storev1.DesiredRecord) (extras []fleet.ExtraObject, ok bool) {
	st, given := o.GetStatus(), GivenGeneration(d)
	if given == 0 || st.GetGeneration() != given || d.GetSync() != nil && !bytes.Equal(st.GetBundle(), d.GetSync().GetBundle()) {
		return nil, false
	}
	extras, err := wire.ExtrasFromProto(st)
	return extras, err == nil && len(extras) >= int(st.GetExtraCount()) && !st.GetMoreExtras()
}

// finding reports that a module is to leave a cluster whose agent searches for what it has of it, and that all that is found goes.
// What is found of a module that stays waits for a person's word, who is shown it before.
func finding(o *storev1.ObservedRecord, d *storev1.DesiredRecord) bool {
	return d.GetTombstone() != nil && o.GetStatus().GetMoreExtras()
}

// ahead reports that the agent speaks of an assignment that is newer than the record: a hub that knew more gave it.
func ahead(o *storev1.ObservedRecord, d *storev1.DesiredRecord) bool {
	return o.GetStatus().GetGeneration() > GivenGeneration(d)
}

// observed is what was reported last of the module in the cluster, whatever it is worth.
func observed(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef) *storev1.ObservedRecord {
	o, _, _ := store.Get[*storev1.ObservedRecord](store.Untracked(r), store.ObservedKey(c, ref))
	return o
}

// heard is what was reported last if that is of this cluster.
func heard(r store.Reader, c fleet.ClusterName, ref fleet.ModuleRef) *storev1.ObservedRecord {
	if o := observed(r, c, ref); o.GetEpoch() >= voidBefore(r, c) {
		return o
	}
	return nil
}

// unheard reports that a module of which there is no report may be in a cluster that has joined anew: the hub may have lost that
// it was ever said. What is assigned there for the first time after its agent has been heard is new.
func unheard(r store.Reader, c fleet.ClusterName, d *storev1.DesiredRecord) bool {
	ack, _, _ := store.Get[*storev1.AckRecord](store.Untracked(r), store.AckKey(c))
	void := voidBefore(r, c)
	return void > 0 && (d != nil || ack.GetEpoch() < void)
}

// voidBefore is the first session of the cluster whose reports count; 0: all do.
func voidBefore(r store.Reader, c fleet.ClusterName) uint64 {
	s, _, _ := store.Get[*storev1.SessionRecord](store.Untracked(r), store.SessionKey(c))
	return s.GetVoidBefore()
}

// unanswered reports that the cluster may have something of what it was given before, and that its agent has not said what.
func (t Tracked) unanswered() bool {
	known := len(t.Desired.GetBefore()) == 0 && !t.Desired.GetBeforeUnknown()
	if known && !t.Void && !finding(t.Observed, t.Desired) && !ahead(t.Observed, t.Desired) {
		return false
	}
	_, ok := answer(t.Observed, t.Desired)
	return !ok
}
