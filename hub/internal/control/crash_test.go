package control

import (
	"fmt"
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

// A leader was killed between the commit of a step that takes the module from clusters and its materialisation; the next
// one assigned a cluster again before it came to the old step.
func TestOldLeaveStepDoesNotTakeWhatWasAssignedAfterIt(t *testing.T) {
	l := newLeader(t)
	run := l.stepped()
	l.put(func(w store.Writer) { w.Put(store.DesiredKey("c00", shop), &storev1.DesiredRecord{Sync: l.sync(11)}) })
	l.finish(run)
	if d := l.desired("c00"); d.GetSync().GetGeneration() != 11 {
		t.Errorf("assigned again at 11, is now %v", d)
	}
	if d := l.desired("c01"); d.GetTombstone().GetGeneration() != 6 {
		t.Errorf("the step's own cluster: %v, want a tombstone of 6", d)
	}
}

// A leader was killed, or its store was away for a moment, between the commit of a step and its materialisation, and what a cluster of the step had was
// changed before that: by a label that it reads, say. The step is carried out in it all the same, by a newer generation, and once only.
func TestStepIsCarriedOutWhereSomethingWasChangedSince(t *testing.T) {
	l := newLeader(t)
	run := l.stepped()
	var stays fleet.ClusterName
	for i := range run.State.Len(run.Plan) {
		if m := run.State.Record(i); m.Generation != 0 && !m.Leaving() {
			stays = run.State.Member(run.Plan, i).Cluster
		}
	}
	clusters := []fleet.ClusterName{"c00", stays}
	for _, name := range clusters {
		l.must(l.refresh(t.Context(), shop, []refresh{{cluster: name, generation: 5, values: map[string]string{"OF": "the label"}}}))
	}
	for when := range 2 {
		changed := l.desired("c00").GetSync().GetGeneration()
		l.finish(run)
		if d := l.desired("c00"); when == 0 && d.GetTombstone().GetGeneration() <= changed {
			t.Errorf("%s is to leave, and has %v", clusters[0], d)
		}
		if d := l.desired(stays); d.GetSync().GetRevision() != 2 || d.GetSync().GetGeneration() <= 6 {
			t.Errorf("%s is to have r2, and has %v", stays, d)
		}
	}
}

// What is assigned again after the look at a confirmed tombstone does not end with it.
func TestForgettingLeavesWhatWasAssignedMeanwhile(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.DesiredKey("again", shop), &storev1.DesiredRecord{Sync: l.sync(6)})
		w.Put(store.DesiredKey("later", shop), &storev1.DesiredRecord{Tombstone: tomb(7)})
		w.Put(store.DesiredKey("done", shop), &storev1.DesiredRecord{Tombstone: tomb(5)})
	})
	l.must(l.forget(t.Context(), shop, []gone{{"again", 5}, {"later", 5}, {"done", 5}}))
	if l.desired("again") == nil || l.desired("later") == nil || l.desired("done") != nil {
		t.Errorf("again %v, later %v, done %v", l.desired("again"), l.desired("later"), l.desired("done"))
	}
}

func TestRefreshLeavesWhatWasAssignedMeanwhile(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Sync: l.sync(8)})
	})
	l.must(l.refresh(t.Context(), shop, []refresh{{cluster: "a", generation: 7, values: map[string]string{"OF": "the old revision"}}}))
	if s := l.desired("a").GetSync(); s.GetGeneration() != 8 || len(s.GetValues()) != 0 {
		t.Errorf("sync %v, want it as it was assigned at 8", s)
	}
}

// A module that comes back to a cluster before its removal was confirmed, and cannot be assigned there, still leaves.
func TestProblemKeepsTheTombstone(t *testing.T) {
	l := newLeader(t)
	rev := l.revision(2)
	rev.Revision.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("a"), clusterRecord("a"))
		w.Put(store.RevisionKey(shop, 2), rev)
		w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: tomb(5), Capabilities: []byte("can")})
		w.Put(store.StepKey(shop, 2, 1), &storev1.StepRecord{Generation: 9, Revision: 2, Clusters: []string{"a"}})
	})
	l.finish(&rollouts.Run{Module: shop, Number: 2, Plan: &rollout.Plan{}})
	d := l.desired("a")
	if dead := d.GetTombstone(); dead.GetGeneration() != 9 || !dead.GetHold() || !strings.Contains(d.GetProblem(), "REGION") || string(d.GetCapabilities()) != "can" {
		t.Fatalf("desired: %v", d)
	}
	l.read(func(r store.Reader) {
		if tr, _ := record.Track(r, "a", shop, true); !tr.Tracker.Failed || !tr.Tracker.Removing || !strings.Contains(tr.Tracker.Message, "REGION") {
			t.Errorf("tracker: %+v", tr.Tracker)
		}
	})
	looks := func(change func(w store.Writer)) *storev1.DesiredRecord {
		l.put(change)
		l.must(l.reconcileAssigned(t.Context(), shop, nil, true, nil))
		return l.desired("a")
	}
	removing := clusterRecord("a")
	removing.Removing = fleet.LeaveKeep
	if d := looks(func(w store.Writer) { w.Put(store.ClusterKey("a"), removing) }); d.GetTombstone().GetHold() || d.GetProblem() == "" {
		t.Errorf("the cluster is removed: %v", d)
	}
	if d := looks(func(w store.Writer) { w.Put(store.ClusterKey("a"), clusterRecord("a")) }); !d.GetTombstone().GetHold() || d.GetProblem() == "" {
		t.Errorf("it is to have the module: %v", d)
	}
	l.leaves("a", leaving{})
	if d := looks(func(store.Writer) {}); d.GetTombstone().GetHold() || d.GetTombstone() == nil || d.GetProblem() != "" {
		t.Errorf("it is to leave after all: %v", d)
	}
	if d := looks(func(w store.Writer) {
		again := proto.CloneOf(d)
		again.Tombstone.Hold = false // of a hub of before
		w.Put(store.DesiredKey("a", shop), again)
	}); !d.GetTombstone().GetHold() {
		t.Errorf("it goes on: %v", d)
	}
	labelled := clusterRecord("a")
	labelled.Cluster.Metadata.Labels = map[string]string{"region": "eu"}
	if d := looks(func(w store.Writer) { w.Put(store.ClusterKey("a"), labelled) }); d.GetTombstone() != nil || d.GetSync().GetValues()["REGION"] != "eu" {
		t.Errorf("it can have the module: %v", d)
	}
}

// The leader may forget a confirmed tombstone before the rollout has seen the confirmation.
func TestLeaverThatIsForgottenHasLeft(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) { w.Put(store.ClusterKey("a"), clusterRecord("a")) })
	run := &rollouts.Run{Module: shop, Number: 1, Plan: &rollout.Plan{Members: []rollout.Member{{Cluster: "a"}}},
		State: rollout.State{Chunks: [][]rollout.Record{{{}}}}}
	l.read(func(r store.Reader) {
		record.View{Connected: l.presence().Connected(r, time.Now())}.All(r, run)
		if run.Observed[0].Removed {
			t.Errorf("observed %+v of one that never had it", run.Observed[0])
		}
	})
	run.State.Chunks[0][0] = rollout.Record{Step: 1, Generation: 5, State: rollout.ClusterProgressing}
	l.read(func(r store.Reader) {
		record.View{Connected: l.presence().Connected(r, time.Now())}.All(r, run)
		if !run.Observed[0].Removed {
			t.Errorf("observed %+v, want removed", run.Observed[0])
		}
		w := &storev1.DesiredRecord{Sync: l.sync(1)}
		_ = w
	})
	l.put(func(w store.Writer) { w.Put(store.DesiredKey("a", shop), &storev1.DesiredRecord{Tombstone: tomb(5)}) })
	l.read(func(r store.Reader) {
		record.View{Connected: l.presence().Connected(r, time.Now())}.All(r, run)
		if run.Observed[0].Removed {
			t.Errorf("observed %+v before the agent confirmed", run.Observed[0])
		}
	})
}

// The answer to a retry and the rollout that it promises are one transaction.
func TestRetryAndItsRolloutAreOneCommit(t *testing.T) {
	l := newLeader(t)
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Failed)))
	})
	var run *rollouts.Run
	l.read(func(r store.Reader) {
		rec, _, _ := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(shop, 1))
		var err error
		run, err = loadRun(r, shop, rec, nil)
		l.must(err)
	})
	before := l.rev.Load()
	_, err := l.commit(t.Context(), run, rollout.Decision{State: run.State, HeadChanged: true, Start: &rollout.Start{Revision: 1, By: "ana"}})
	l.must(err)
	l.read(func(r store.Reader) {
		a, old, _ := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(shop, 1))
		b, new, ok := store.Get[*storev1.RolloutRecord](r, store.RolloutKey(shop, 2))
		if !ok || len(a.GetHead()) == 0 || b.GetRollout().GetStatus().GetStartedBy() != "ana" {
			t.Fatalf("rollout 2: %v", b)
		}
		if old.ModRevision != new.ModRevision || old.ModRevision <= before {
			t.Errorf("committed at %d and %d", old.ModRevision, new.ModRevision)
		}
	})
}

// Values may be longer than what one transaction takes for a whole step.
func TestStepWithLongValuesIsTakenInParts(t *testing.T) {
	l := newLeader(t)
	rev := l.revision(1)
	long := strings.Repeat("x", 60<<10)
	rev.Revision.Spec.Bindings = []*towlinev1.Binding{{Name: "CERT", Value: &long}}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Progressing)))
		w.Put(store.RevisionKey(shop, 1), rev)
		for n := range 40 {
			w.Put(store.ClusterKey(clusterName(n)), clusterRecord(string(clusterName(n))))
		}
	})
	l.must(l.reconcileModule(t.Context(), shop))
	generations := map[uint64]int{}
	for n := range 40 {
		s := l.desired(clusterName(n)).GetSync()
		if s.GetValues()["CERT"] != long {
			t.Fatalf("%s has no value", clusterName(n))
		}
		generations[s.GetGeneration()]++
	}
	if len(generations) != 1 {
		t.Errorf("a step of %d generations: %v", len(generations), generations)
	}
}

func clusterName(n int) fleet.ClusterName { return fleet.ClusterName(fmt.Sprintf("c%02d", n)) }
