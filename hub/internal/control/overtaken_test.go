package control

import (
	"testing"
	"time"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// underWay is a leader that has taken a large step to r2, and has written it for no cluster yet: a, b and c. a had something before, or nothing.
func underWay(t *testing.T, had *storev1.DesiredRecord) (*leader, *rollouts.Run) {
	l := newLeaderOn(t, memory.New())
	l.room = room{inline: 1, compared: 2, batch: 1}
	run := l.undecided("a", "b", "c")
	l.put(func(w store.Writer) {
		rev := l.revision(2)
		rev.Revision.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "true"}}}
		w.Put(store.RevisionKey(shop, 2), rev)
		if had != nil {
			had.Tombstone.Generation = record.NextGeneration(w)
			w.Put(store.DesiredKey("a", shop), had)
		}
	})
	_, err := l.commit(t.Context(), run, rollout.Decide(run.Input(time.Now())))
	l.must(err)
	if l.steps() == 0 || l.desired("b") != nil {
		t.Fatalf("%d steps are open, b has %v", l.steps(), l.desired("b"))
	}
	return l, run
}

// done has b have what the step gives, and a nothing.
func (l *leader) done() {
	l.t.Helper()
	if d := l.desired("b"); d.GetSync().GetRevision() != 2 || l.steps() != 0 {
		l.t.Errorf("b has %v, want r2; %d steps are open", d, l.steps())
	}
	if d := l.desired("a"); d.GetSync() != nil || d.GetNextRevision() != 0 {
		l.t.Errorf("a is not selected any more, and has %v", d)
	}
}

// A leader ends when it has taken a large step, before what that gives is written for each cluster, and somebody takes one of the clusters out of the
// placement. The next leader decides that first and finishes the step after it: the older word does not bring the module to the cluster, where it would
// stay.
func TestStepDoesNotOvertakeALaterOne(t *testing.T) {
	for name, had := range map[string]*storev1.DesiredRecord{
		"it had nothing":                          nil,
		"a removal stands still there":            {Tombstone: &agentv1.Tombstone{Module: shop.String(), Policy: fleet.DeleteDelete, Hold: true}},
		"what had the name before is going there": {Tombstone: &agentv1.Tombstone{Module: shop.String(), Policy: fleet.DeleteDelete}, Final: true},
	} {
		t.Run(name, func(t *testing.T) {
			l, _ := underWay(t, had)
			l.members(member("a", false, false))
			l.states = map[fleet.ModuleRef]*moduleState{} // another one leads
			for range 3 {
				l.again()
			}
			l.done()
		})
	}
}

// The label goes before the step is finished, and that is all: nobody has decided anything about it yet. It may come back.
func TestStepBringsTheModuleToNoClusterThatWasRelabelledSince(t *testing.T) {
	l, run := underWay(t, nil)
	l.members(member("a", false, false))
	l.finish(run)
	l.done()
	l.again()
	l.done()
	l.members(member("a", true, false))
	for range 3 {
		l.again()
	}
	if d := l.desired("a"); d.GetSync().GetRevision() != 2 {
		t.Errorf("a is selected again, and has %v", d)
	}
}
