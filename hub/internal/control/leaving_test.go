package control

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
)

// member is a cluster as r2 of a module finds it: it is in the placement of r2, or not, and may be cordoned.
func member(name string, in, cordoned bool) *storev1.ClusterRecord {
	c := clusterRecord(name)
	c.Cluster.Metadata.Labels = map[string]string{"in": fmt.Sprint(in)}
	c.Cluster.Spec = &towlinev1.ClusterSpec{Cordoned: new(cordoned)}
	return c
}

func (l *leader) members(all ...*storev1.ClusterRecord) {
	l.t.Helper()
	l.put(func(w store.Writer) {
		for _, c := range all {
			w.Put(store.ClusterKey(fleet.ClusterName(c.GetCluster().GetMetadata().GetName())), c)
		}
	})
}

// narrowed is a module that r1 has in all clusters, where it is, and r2 only where they are labelled so. The rollout of r2 begins.
// Another module stays everywhere, so that nobody is asked for a confirm.
func (l *leader) narrowed(all ...*storev1.ClusterRecord) {
	l.t.Helper()
	other, base := fleet.ModuleRef{Project: "default", Name: "base"}, moduleRecord()
	base.Module.Metadata.Name = other.Name
	runs := l.revision(1)
	runs.Revision.Spec = proto.CloneOf(base.Module.Spec)
	narrow := moduleRecord()
	narrow.Module.Spec.Placement = &towlinev1.Placement{Selector: &towlinev1.LabelSelector{MatchLabels: map[string]string{"in": "true"}}}
	r2 := l.revision(2)
	r2.Revision.Spec = proto.CloneOf(narrow.Module.Spec)
	ro := rolloutRecord(2, string(rollout.Progressing))
	ro.Rollout.FromRevision = 1
	l.members(all...)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(other), base)
		w.Put(store.RevisionKey(other, 1), runs)
		w.Put(store.RolloutKey(other, 1), rolloutRecord(1, string(rollout.Succeeded)))
		w.Put(store.ModuleKey(shop), narrow)
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		w.Put(store.RevisionKey(shop, 2), r2)
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Succeeded)))
		w.Put(store.RolloutKey(shop, 2), ro)
		w.Put(store.GenerationKey, &storev1.Counter{Value: 5})
	})
	l.put(func(w store.Writer) {
		for _, c := range all {
			w.Put(store.DesiredKey(fleet.ClusterName(c.GetCluster().GetMetadata().GetName()), shop), &storev1.DesiredRecord{Sync: l.sync(5), Rollout: 1})
		}
	})
}

// again has the module look at all clusters and decide.
func (l *leader) again() {
	l.t.Helper()
	l.state(shop).markAll()
	l.must(l.reconcileModule(l.t.Context(), shop))
}

func (l *leader) keeps(c fleet.ClusterName, when string) {
	l.t.Helper()
	if d := l.desired(c); d.GetTombstone() != nil || d.GetSync().GetGeneration() != 5 {
		l.t.Errorf("%s: %s has %v, want it as it was", when, c, d)
	}
}

// A rollback that has nothing to move back ends in the decision that begins it. A cluster that was to leave by the new placement
// stays by the older one.
func TestRollbackThatMovesNothingTakesNothingAway(t *testing.T) {
	l := newLeader(t)
	l.narrowed(member("a", true, true), member("c", false, true))
	l.again()
	l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbPause})
	l.members(member("c", false, false))
	l.again()
	l.verb(2, &towlinev1.VerbRecord{Verb: rollout.VerbRollback})
	if s := l.rollout(2).State; s.State != rollout.RolledBack || s.PlacedBy() != 1 {
		t.Fatalf("state: %+v", s.Head)
	}
	l.keeps("c", "after the rollback")
}

// A decision rests on a look, and the cluster may have changed since. The commit that would take the module from where it is
// placed now is refused as a whole, once said, and the next decision looks at all clusters again.
func TestRemovalOfWhatIsPlacedIsRefused(t *testing.T) {
	l := newLeader(t)
	var log bytes.Buffer
	l.o.Log = slog.New(slog.NewTextHandler(&log, nil))
	l.narrowed(member("a", true, false), member("c", false, true))
	l.again()
	l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbPause})
	l.members(member("c", false, false))
	l.again()
	l.members(member("c", true, false)) // and nobody tells the module
	l.put(func(w store.Writer) {
		w.Put(store.VerbKey(shop, 2, 2), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbResume, By: "ana"}})
	})
	before := l.rollout(2).State
	if again := l.runModule(t.Context(), store.ModuleKey(shop)); again < firstRetry {
		t.Errorf("tried again after %s, want a back-off", again)
	}
	l.keeps("c", "after a decision on an older look")
	if s := l.rollout(2).State; s.Step != before.Step || len(s.Verbs) != len(before.Verbs) {
		t.Errorf("committed: %+v", s.Head)
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "clusters=[c]") {
		t.Errorf("log: %s", log.String())
	}
	if again := l.runModule(t.Context(), store.ModuleKey(shop)); again != 0 {
		t.Errorf("tried again after %s", again)
	}
	if d := l.desired("c"); d.GetSync().GetRevision() != 2 {
		t.Errorf("c: %v, want r2", d)
	}
}

// stepped is a step of r2 that is too large for its transaction: it is committed, and no cluster is told yet.
func (l *leader) stepped() *rollouts.Run {
	l.t.Helper()
	var all []*storev1.ClusterRecord
	for n := range inlineDesired + 10 {
		all = append(all, member(string(clusterName(n)), n >= 10, false))
	}
	l.narrowed(all...)
	var run *rollouts.Run
	l.read(func(r store.Reader) {
		rec, _, _ := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(shop, 2))
		var err error
		run, err = loadRun(r, shop, rec, nil)
		l.must(err)
		view, err := l.presence().Over(r, time.Now(), run, nil)
		l.must(err)
		view.All(r, run)
	})
	_, err := l.commit(l.t.Context(), run, rollout.Decide(run.Input(time.Now())))
	l.must(err)
	l.keeps("c00", "before it is told")
	return run
}

// However many clusters leave with one step, its commit compares no more than it may.
func TestStepsOfAnySizeAreCommitted(t *testing.T) {
	for _, size := range []int{inlineDesired, inlineDesired + 1, comparedClusters, comparedClusters + 1} {
		l := newLeader(t)
		all := []*storev1.ClusterRecord{member("stays", true, false)}
		for n := range size - 1 {
			all = append(all, member(string(clusterName(n)), false, false))
		}
		l.narrowed(all...)
		l.again()
		for _, h := range l.asked() {
			l.put(func(w store.Writer) {
				w.Put(store.ConfirmPrefix+h.GetId(), &storev1.ConfirmRecord{Digest: h.GetDigest()})
			})
		}
		l.again()
		for n := range size - 1 {
			if d := l.desired(clusterName(n)); d.GetTombstone() == nil {
				t.Fatalf("%d move: %s has %v", size, clusterName(n), d)
			}
		}
	}
}

// A cluster is selected again between a step that takes the module from it and the transaction in which it is told: it is not
// told, and gets the rollout's revision.
func TestStepDoesNotTakeWhatIsPlacedAgain(t *testing.T) {
	l := newLeader(t)
	run := l.stepped()
	l.members(member("c00", true, false))
	l.finish(run)
	l.keeps("c00", "selected again")
	if d := l.desired("c01"); d.GetTombstone() == nil {
		t.Errorf("c01: %v, want it removed", d)
	}
	l.again()
	if d := l.desired("c00"); d.GetSync().GetRevision() != 2 {
		t.Errorf("c00: %v, want r2", d)
	}
}

// A cluster is selected for a moment only, in which it would have been told that the module leaves: it is told later.
func TestStepWaitsForWhatIsPlacedForAMoment(t *testing.T) {
	l := newLeader(t)
	run := l.stepped()
	l.members(member("c00", true, false))
	l.finish(run)
	l.keeps("c00", "selected again")
	l.members(member("c00", false, false))
	l.again()
	if d := l.desired("c00"); d.GetTombstone() == nil {
		t.Errorf("c00: %v, want it removed", d)
	}
}

// A step is over for a cluster that the rollout has seen selected again: when it is to leave once more, that is another move.
func TestStepIsOverForWhoStays(t *testing.T) {
	l := newLeader(t)
	run := l.stepped()
	l.members(member("c00", true, false))
	l.finish(run)
	l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbPause})
	l.again()
	l.members(member("c00", false, false))
	l.again()
	l.keeps("c00", "in a paused rollout")
	l.read(func(r store.Reader) {
		r.Scan(store.StepsOf(shop, 2), func(e store.Entry) bool {
			t.Errorf("%s is open", e.Key)
			return true
		})
	})
}

// What leaves a cluster already cannot be taken from it: that it is tainted, and would not come back there, holds no decision.
func TestExitIsOpenWhereNothingIsTaken(t *testing.T) {
	l := newLeader(t)
	c := member("c", true, false)
	c.Cluster.Spec.Taints = []*towlinev1.Taint{{Key: "new"}}
	l.narrowed(c)
	for state, d := range map[string]*storev1.DesiredRecord{"there": {Sync: l.sync(5)}, "leaving": {Tombstone: tomb(6)}} {
		l.put(func(w store.Writer) { w.Put(store.DesiredKey("c", shop), d) })
		l.read(func(r store.Reader) {
			if open := record.ExitOf(r, shop, 2).Open(r, "c"); open != (d.GetTombstone() != nil) {
				t.Errorf("%s: open %t", state, open)
			}
		})
	}
	l.put(func(w store.Writer) { w.Delete(store.DesiredKey("c", shop)) })
	l.read(func(r store.Reader) {
		if !record.ExitOf(r, shop, 2).Open(r, "c") {
			t.Error("nothing there: closed")
		}
	})
}

// A module that is to come back to a cluster after its removal, and cannot be assigned there now, leaves a cluster that the next revision
// does not select: it would come as soon as it can be assigned.
func TestWhatCannotComeYetLeaves(t *testing.T) {
	for name, final := range map[string]bool{"of a module that was deleted": true, "of a rollout": false} {
		l := newLeader(t)
		l.narrowed(member("a", true, false), member("b", true, false), member("c", false, false))
		l.put(func(w store.Writer) {
			w.Put(store.DesiredKey("c", shop), &storev1.DesiredRecord{Tombstone: tomb(4), Final: final, Rollout: 1, Problem: "no value for REGION", ProblemGeneration: 5, ProblemRevision: 1})
		})
		l.again()
		if d := l.desired("c"); d.GetTombstone().GetGeneration() != 4 || d.GetProblem() != "" || d.GetProblemRevision() != 0 {
			t.Errorf("after the removal %s: %v", name, d)
		}
	}
}

// Clusters in which a module could not be assigned do not have it: a person is asked before all that have it lose it, by the next
// revision or by their labels.
func TestWhoHasNothingIsNotCountedAmongThoseThatHaveIt(t *testing.T) {
	have, lack := []string{"a", "b", "c"}, []string{"d", "e", "f", "g"}
	for name, late := range map[string]bool{"by the next revision": false, "by their labels": true} {
		l := newLeader(t)
		var all []*storev1.ClusterRecord
		for _, c := range append(have, lack...) {
			all = append(all, member(c, late || c >= "d", c >= "d"))
		}
		l.narrowed(all...)
		lacking := func(w store.Writer) {
			for _, c := range lack {
				w.Put(store.DesiredKey(fleet.ClusterName(c), shop), &storev1.DesiredRecord{Rollout: 1, Problem: "no value for REGION", ProblemGeneration: 5, ProblemRevision: 1})
			}
		}
		l.put(lacking)
		l.again()
		if late {
			l.put(lacking) // there is one in truth, so that they were assigned it now
			l.members(member("a", false, false), member("b", false, false), member("c", false, false))
			l.again()
		}
		for _, c := range have {
			if d := l.desired(fleet.ClusterName(c)); d.GetTombstone() != nil {
				t.Errorf("%s: %s loses it, and nobody was asked", name, c)
			}
		}
	}
}

// A removal is ordered, and a hold stops it. Before that ends the cluster is placed again, and cannot be given the module at once, for it is cordoned:
// nothing goes there meanwhile, and when it can be given the module it is, whatever taint the cluster has got: the objects are there. Where it is not
// placed, the removal goes on as the hold ends.
func TestStoppedRemovalStandsStillWhereTheModuleIsPlacedAgain(t *testing.T) {
	for name, tc := range map[string]struct{ again, tainted bool }{"placed again": {again: true}, "placed again, and tainted": {true, true}, "not placed": {}} {
		t.Run(name, func(t *testing.T) {
			again := tc.again
			then := func(cordoned bool) *storev1.ClusterRecord {
				c := member("c", again, cordoned)
				if tc.tainted {
					c.Cluster.Spec.Taints = []*towlinev1.Taint{{Key: "new"}}
				}
				return c
			}
			l := newLeader(t)
			l.narrowed(member("a", true, false), member("c", false, false))
			l.again()
			l.put(func(w store.Writer) {
				record.PutFreeze(w, &towlinev1.Hold{Kind: record.HoldFreeze, Id: record.FreezeID + "1", Cluster: "c"})
			})
			l.again()
			if d := l.desired("c").GetTombstone(); !d.GetHold() {
				t.Fatalf("c has %v, want a removal that is stopped", l.desired("c"))
			}
			l.members(then(true))
			l.again()
			l.put(func(w store.Writer) { w.Delete(store.HoldPrefix + record.FreezeID + "1") })
			l.again()
			if d := l.desired("c").GetTombstone(); d == nil || d.GetHold() != again {
				t.Errorf("after the hold: c has %v", l.desired("c"))
			}
			l.members(then(false))
			l.again()
			if d := l.desired("c"); again && d.GetSync().GetRevision() != 2 {
				t.Errorf("when it may be given something: c has %v", d)
			}
		})
	}
}
