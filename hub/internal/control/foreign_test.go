package control

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// A rollout waits for a confirm, and a put hands the module over to another program.
func TestNobodyIsAskedForAModuleOfAnotherProgram(t *testing.T) {
	l := newLeader(t)
	l.narrowed(member("a", true, false), member("b", false, false), member("c", false, false))
	l.again()
	holds := func() (n int) {
		l.read(func(r store.Reader) {
			store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, _ store.Entry) bool { n++; return true })
		})
		return n
	}
	if holds() != 1 {
		t.Fatal("nobody is asked")
	}
	l.put(func(w store.Writer) {
		rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(shop))
		next := proto.CloneOf(rec)
		next.Module.Spec.Rollout = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		w.Put(store.ModuleKey(shop), next)
		ro := rolloutRecord(3, string(rollout.Succeeded))
		ro.Rollout.Strategy = next.Module.Spec.Rollout
		w.Put(rolloutKey(shop, ro), ro)
	})
	l.again()
	if n := holds(); n != 0 {
		t.Errorf("%d holds are listed that nobody follows", n)
	}
}

// A module comes nowhere that another program assigned and that is to be the hub's, when its source failed; nor one whose rollout
// failed before it moved anybody. It does not stand in for the last one that a cluster has.
func TestModuleThatMovesNobodyIsNotToCome(t *testing.T) {
	base := fleet.ModuleRef{Project: "default", Name: "base"}
	external := &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
	for what, list := range map[string][]*towlinev1.Rollout{
		"external before": {{Number: 1, Revision: 1, Strategy: external, Status: &towlinev1.RolloutStatus{State: string(rollout.Succeeded)}},
			{Number: 2, Status: &towlinev1.RolloutStatus{State: string(rollout.Failed)}}},
		"unmatched clusters": {{Number: 1, Revision: 1, Status: &towlinev1.RolloutStatus{State: string(rollout.Failed)}}},
	} {
		l := newLeader(t)
		l.narrowed(member("a", true, false), member("b", true, false), member("c", false, false))
		l.put(func(w store.Writer) {
			rec, _, _ := store.Get[*storev1.ModuleRecord](w, store.ModuleKey(base))
			next := proto.CloneOf(rec)
			w.Put(store.ModuleKey(base), next)
			w.Put(store.RevisionKey(base, 1), l.revision(1))
			for _, ro := range list {
				rec := &storev1.RolloutRecord{Rollout: ro}
				w.Put(rolloutKey(base, rec), rec)
			}
		})
		l.again()
		if l.rollout(2).State.Reason != rollout.ReasonConfirm {
			t.Errorf("%s: everything leaves c, and nobody is asked: %v", what, l.desired("c"))
		}
	}
}

// A revision was cut for another program, which never assigned it. The first rollout of the hub's does not go back to it.
func TestRevisionOfAnotherProgramIsNotGoneBackTo(t *testing.T) {
	l := newLeader(t)
	l.narrowed(member("a", true, false))
	next := rolloutRecord(4, string(rollout.Pending))
	l.put(func(w store.Writer) {
		ro := rolloutRecord(3, string(rollout.Succeeded))
		ro.Rollout.Strategy = &towlinev1.RolloutStrategy{External: &towlinev1.ExternalRollout{}}
		w.Put(rolloutKey(shop, ro), ro)
		w.Put(rolloutKey(shop, next), next)
		var err error
		next, err = rollouts.Begin(w, shop, next, 4, time.Now())
		l.must(err)
	})
	if n := next.GetRollout().GetFromRevision(); n != 0 {
		t.Errorf("it may go back to r%d, which no cluster ever had", n)
	}
}
