package control

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentv1 "towline.dev/towline/gen/towline/agent/v1"
	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// What a rollout decided is not known when its record cannot be read: nothing is moved, back to what an older one gave least
// of all. Deleting the module takes the record along.
func TestDamagedRolloutMovesNothing(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a", "b")
	l.put(func(w store.Writer) { w.Put(store.RolloutKey(shop, 1), rolloutRecord(1, string(rollout.Succeeded))) })
	before := l.desired("a")
	if before.GetSync().GetRevision() != 2 {
		t.Fatalf("assigned: %v", before)
	}
	l.damage(b, store.RolloutKey(shop, 2))
	l.state(shop).reset()
	if err := l.reconcileModule(t.Context(), shop); !errors.Is(err, fleet.ErrCorrupt) {
		t.Errorf("it does not say so: %v", err)
	}
	if now := l.desired("a"); now.GetSync().GetRevision() != 2 || now.GetSync().GetGeneration() != before.GetSync().GetGeneration() {
		t.Errorf("moved: %v", now)
	}
	// A newer one goes on from what is there.
	next := rolloutRecord(3, string(rollout.Progressing))
	next.Rollout.FromRevision = 2
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Module: moduleRecord().GetModule()})
		w.Put(store.RevisionKey(shop, 3), l.revision(3))
		w.Put(rolloutKey(shop, next), next)
	})
	l.must(l.reconcileModule(t.Context(), shop))
	if now := l.desired("a"); now.GetSync().GetRevision() != 3 {
		t.Errorf("by the next: %v", now)
	}
	for _, c := range []fleet.ClusterName{"a", "b"} {
		l.put(func(w store.Writer) { w.Delete(store.DesiredKey(c, shop)) })
	}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Deleting: fleet.DeleteDelete, Module: moduleRecord().GetModule()})
	})
	l.must(l.reconcileModule(t.Context(), shop))
	l.read(func(r store.Reader) {
		if _, there := r.Get(store.ModuleKey(shop)); there || len(r.Damaged(store.RolloutPrefix)) > 0 {
			t.Errorf("left of the deleted module: %t, %v", there, r.Damaged(store.RolloutPrefix))
		}
	})
}

// A cluster whose record cannot be read stops no other, is given nothing and loses nothing; a module that is in it is not
// deleted before it is dealt with.
func TestDamagedClusterStopsNoOther(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a", "b")
	l.damage(b, store.ClusterKey("a"))
	l.put(func(w store.Writer) { w.Put(store.ClusterKey("c"), clusterRecord("c")) })
	for range 2 {
		l.state(shop).reset()
		l.must(l.reconcileModule(t.Context(), shop))
	}
	if c := l.desired("c"); c.GetSync().GetRevision() == 0 {
		t.Errorf("a cluster that came: %v", c)
	}
	if a := l.desired("a"); a.GetSync().GetRevision() != 2 {
		t.Errorf("what it has: %v", a)
	}
	// A step of before that takes the module from it: whoever else is to have something there is not known now.
	_, err := l.leave(t.Context(), shop, []fleet.ClusterName{"a"}, leaving{generation: 99, rollout: 2})
	l.must(err)
	if a := l.desired("a"); a.GetSync().GetRevision() != 2 {
		t.Errorf("it is taken away: %v", a)
	}

	l.put(func(w store.Writer) {
		for _, c := range []fleet.ClusterName{"b", "c"} {
			w.Delete(store.DesiredKey(c, shop))
		}
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Deleting: fleet.DeleteDelete, Module: moduleRecord().GetModule()})
	})
	module := func() (there bool) {
		l.must(l.reconcileModule(t.Context(), shop))
		l.read(func(r store.Reader) { _, there = r.Get(store.ModuleKey(shop)) })
		return there
	}
	if !module() {
		t.Error("deleted, with its objects in a cluster that was not told")
	}
	// What `towline cluster remove` puts in its place.
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("a"), &storev1.ClusterRecord{Removing: "keep", Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "a"}}})
	})
	l.must(l.reconcileCluster(t.Context(), "a"))
	if d := l.desired("a"); d != nil || module() {
		t.Errorf("the cluster is forgotten, and the module is there: %v", d)
	}
}

// Whatever record cannot be read, clusters that it does not speak of get what they should, and those that it speaks of keep
// what they have.
func TestDamageOfOneRecordStopsNoOtherCluster(t *testing.T) {
	for name, key := range map[string]string{
		"session":      store.SessionKey("a"),
		"generation":   store.GenerationKey,
		"revision":     store.RevisionKey(shop, 1),
		"verb":         store.VerbKey(shop, 2, 1),
		"assignment":   store.DesiredKey("a", shop),
		"report":       store.ObservedKey("a", shop),
		"acknowledged": store.AckKey("a"),
		"conditions":   store.ConditionKey("a"),
		"floor":        store.FloorKey("a"),
		"token":        store.TokenPrefix + "t",
		"guard":        store.GuardKey("uid"),
		"project":      store.ProjectPrefix + "other",
	} {
		t.Run(name, func(t *testing.T) {
			b := memory.New()
			l := newLeaderOn(t, b)
			l.fleetOf("a", "b")
			before := l.desired("a")
			l.put(func(w store.Writer) {
				w.Put(store.SessionKey("a"), &storev1.SessionRecord{Epoch: 7, InstanceId: "agent"})
				w.Put(store.VerbKey(shop, 2, 1), &storev1.VerbRecord{Verb: &towlinev1.VerbRecord{Verb: rollout.VerbResume}})
				w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Epoch: 7, Since: 1})
				w.Put(store.AckKey("a"), &storev1.AckRecord{Epoch: 7, Generation: 1})
				w.Put(store.ConditionKey("a"), &storev1.ConditionsRecord{Epoch: 7, Conditions: []*agentv1.Condition{{Type: "x"}}})
				w.Put(store.FloorKey("a"), &storev1.FloorRecord{Generation: 1})
				w.Put(store.TokenPrefix+"t", &storev1.TokenRecord{Token: &towlinev1.Token{Cluster: "a"}})
				w.Put(store.GuardKey("uid"), &storev1.Counter{Value: 7})
				w.Put(store.ProjectPrefix+"other", &storev1.ProjectRecord{Project: &towlinev1.Project{Kind: "Project"}})
			})
			l.damage(b, key)
			l.put(func(w store.Writer) { w.Put(store.ClusterKey("c"), clusterRecord("c")) })
			for range 2 {
				l.state(shop).reset()
				l.must(l.reconcileModule(t.Context(), shop))
			}
			if c := l.desired("c"); c.GetSync().GetRevision() != 2 || c.GetSync().GetGeneration() <= before.GetSync().GetGeneration() {
				t.Errorf("a cluster that came: %v", c)
			}
			if a := l.desired("a"); key != store.DesiredKey("a", shop) && a.GetSync().GetRevision() != 2 {
				t.Errorf("what it has: %v", a)
			}
		})
	}
}

// A revision that cannot be read is given to nobody else, and who has it keeps it and is frozen as ever. The next put has a
// number of its own, also when it says what an older one did.
func TestDamagedRevisionStopsNothingElse(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a")
	l.damage(b, store.RevisionKey(shop, 2))
	l.put(func(w store.Writer) {
		w.Put(store.ClusterKey("c"), clusterRecord("c"))
		w.Put(store.HoldPrefix+record.FreezeID+"1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Id: record.FreezeID + "1", Kind: record.HoldFreeze,
			Project: shop.Project, Module: shop.Name, Cluster: "a"}})
	})
	for range 2 {
		l.state(shop).reset()
		l.must(l.reconcileModule(t.Context(), shop))
	}
	if a := l.desired("a"); a.GetSync().GetRevision() != 2 || !a.GetSync().GetHold() || a.GetProblem() != "" {
		t.Errorf("who has it: %v", a)
	}
	c := l.desired("c")
	if why := c.GetProblem(); c.GetSync() != nil || !strings.Contains(why, "revision r2 is damaged") || !strings.Contains(why, "towline apply") {
		t.Errorf("a cluster that came: %v", c)
	}
	put, next := &storev1.ModuleRecord{Module: moduleRecord().GetModule()}, rolloutRecord(3, string(rollout.Pending))
	next.Rollout.Revision = 0
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), put)
		w.Put(rolloutKey(shop, next), next)
		old := l.revision(1)
		old.InputDigest = fleet.DigestOf(nil).Bytes()
		w.Put(store.RevisionKey(shop, 1), old)
	})
	epoch, err := l.all.Blobs().Epoch(t.Context())
	l.must(err)
	l.must(l.cutAnd(t.Context(), shop, &resolved{put: put, number: 3, rendered: rendered{variants: []storedVariant{{bundle: l.bundle}}, input: fleet.DigestOf(nil), epoch: epoch}}, false))
	l.state(shop).reset()
	l.must(l.reconcileModule(t.Context(), shop))
	if c := l.desired("c"); c.GetSync().GetRevision() != 3 || c.GetProblem() != "" {
		t.Errorf("after the next put: %v", c)
	}
}

// What a step moved and did not write yet is told by the rollout's own state, should the step be unreadable.
func TestDamagedStepIsCarriedOut(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a", "b")
	was := l.desired("a").GetSync().GetGeneration()
	key := store.StepKey(shop, 2, 1)
	l.put(func(w store.Writer) {
		w.Put(key, &storev1.StepRecord{Generation: was, Revision: 2, Clusters: []string{"a", "b"}})
		w.Delete(store.DesiredKey("a", shop))
	})
	l.damage(b, key)
	l.state(shop).reset()
	l.must(l.reconcileModule(t.Context(), shop))
	if s := l.desired("a").GetSync(); s.GetRevision() != 2 || s.GetGeneration() != was {
		t.Errorf("assigned: %v, want r2 at generation %d", s, was)
	}
	l.read(func(r store.Reader) {
		if d := r.Damaged(store.StepPrefix); len(d) > 0 {
			t.Errorf("still there: %v", d)
		}
	})
}

// A rollout whose list of clusters cannot be read is as damaged as one whose record cannot.
func TestDamagedChunkMovesNothing(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a", "b")
	l.damage(b, store.ChunkKey(shop, 2, 0))
	l.put(func(w store.Writer) { w.Put(store.ClusterKey("c"), clusterRecord("c")) })
	l.state(shop).reset()
	if err := l.reconcileModule(t.Context(), shop); !errors.Is(err, fleet.ErrCorrupt) || !strings.Contains(err.Error(), "towline apply") {
		t.Errorf("it does not say so: %v", err)
	}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), &storev1.ModuleRecord{Module: moduleRecord().GetModule()})
		w.Put(store.RevisionKey(shop, 3), l.revision(3))
		w.Put(store.RolloutKey(shop, 3), rolloutRecord(3, string(rollout.Progressing)))
	})
	l.must(l.reconcileModule(t.Context(), shop))
	for _, c := range []fleet.ClusterName{"a", "b", "c"} {
		if d := l.desired(c); d.GetSync().GetRevision() != 3 {
			t.Errorf("%s by the next: %v", c, d)
		}
	}
}

// What a cluster should run can be assigned again as the hub says, whether the rollout is under way or has ended.
func TestDamagedAssignmentIsRetried(t *testing.T) {
	for name, ended := range map[string]bool{"succeeded": true, "under way": false} {
		for _, clusters := range [][]string{{"a"}, nil} {
			b := memory.New()
			l := newLeaderOn(t, b)
			l.fleetOf("a")
			if ended {
				l.reportReady("a")
				l.must(l.reconcileModule(t.Context(), shop))
			}
			if got := l.rollout(2).State.State.Ended(); got != ended {
				t.Fatalf("%s: the rollout has ended: %t", name, got)
			}
			was := l.desired("a").GetSync().GetGeneration()
			l.damage(b, store.DesiredKey("a", shop))
			l.state(shop).reset()
			l.must(l.reconcileModule(t.Context(), shop))
			if d := l.desired("a"); !record.Damaged(d) {
				t.Errorf("%s: assigned unasked: %v", name, d)
			}
			l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbRetry, Clusters: clusters})
			if d := l.desired("a"); d.GetProblem() != "" || d.GetSync().GetRevision() != 2 || d.GetSync().GetGeneration() <= was {
				t.Errorf("%s, retry of %v: %v; answers %+v", name, clusters, d, l.rollout(2).State.Verbs)
			}
			l.reportReady("a")
			l.must(l.reconcileModule(t.Context(), shop))
			if s := l.rollout(2).State.State; s != rollout.Succeeded {
				t.Errorf("%s: at the end it is %s", name, s)
			}
		}
	}
}

// TestDamagedAssignmentStaysSo: the revision that is to come in the place of what cannot be read needs a label that the cluster does not have. What
// was in the record is not known by that, and is taken for no older generation; once the label is there, the cluster gets it.
func TestDamagedAssignmentStaysSo(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a")
	l.damage(b, store.DesiredKey("a", shop))
	l.put(func(w store.Writer) {
		rev := l.revision(2)
		rev.Revision.Spec.Bindings = []*towlinev1.Binding{{Name: "REGION", ClusterLabel: "region"}}
		w.Put(store.RevisionKey(shop, 2), rev)
	})
	l.state(shop).reset()
	l.verb(1, &towlinev1.VerbRecord{Verb: rollout.VerbRetry, Clusters: []string{"a"}})
	if d := l.desired("a"); !record.Damaged(d) || d.GetProblemRevision() != 2 || !strings.Contains(d.GetProblem(), "region") {
		t.Fatalf("what cannot be assigned: %v", d)
	}
	l.put(func(w store.Writer) {
		rec, _, _ := store.Get[*storev1.ClusterRecord](w, store.ClusterKey("a"))
		rec = proto.CloneOf(rec)
		rec.Cluster.Metadata.Labels = map[string]string{"region": "eu"}
		w.Put(store.ClusterKey("a"), rec)
	})
	l.state(shop).reset()
	l.verb(2, &towlinev1.VerbRecord{Verb: rollout.VerbRetry, Clusters: []string{"a"}})
	if d := l.desired("a"); d.GetProblem() != "" || d.GetSync().GetRevision() != 2 {
		t.Errorf("once it can be: %v", d)
	}
}

// reportReady has the cluster's agent say that all of what it was given is fine.
func (l *leader) reportReady(c fleet.ClusterName) {
	l.t.Helper()
	st := fleet.SyncStatus{Module: shop, Generation: l.desired(c).GetSync().GetGeneration(), Bundle: l.bundle, Phase: fleet.PhaseApplied, Ready: true,
		States: []fleet.ObjectState{{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy, Drift: fleet.DriftInSync}}}
	l.put(func(w store.Writer) {
		w.Put(store.ObservedKey(c, shop), &storev1.ObservedRecord{Epoch: 1, Status: wire.SyncStatusToProto(st)})
	})
	l.state(shop).mark(c)
}

// TestDamagedRestoreStopsNoFleet: of a store that was restored once, and settled, a damaged record of that stops nothing; one that is not settled stands
// still until every cluster follows it, or a person accepts it.
func TestDamagedRestoreStopsNoFleet(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.fleetOf("a")
	l.put(func(w store.Writer) {
		hub := &storev1.Hub{HubId: "h", Incarnation: "restored"}
		w.Put(store.HubKey, hub)
		joined, _, _ := store.Get[*storev1.ClusterRecord](w, store.ClusterKey("a"))
		joined = proto.CloneOf(joined)
		joined.Joined = timestamppb.Now()
		w.Put(store.ClusterKey("a"), joined)
		w.Put(store.RestoreKey, &storev1.Restore{At: timestamppb.Now(), Stands: true})
		w.Put(store.SettledKey, &storev1.Acceptance{Incarnation: hub.GetIncarnation(), At: timestamppb.Now()})
	})
	stands := func() (is bool, awaits []string) {
		l.read(func(r store.Reader) { is, awaits = record.Stands(r), record.ReadRestored(r).Awaits() })
		return is, awaits
	}
	l.damage(b, store.RestoreKey)
	if is, _ := stands(); is {
		t.Error("a settled store stands still by a damaged record")
	}
	l.damage(b, store.SettledKey)
	if is, awaits := stands(); !is || !slices.Equal(awaits, []string{"a"}) {
		t.Errorf("stands %t, for %v", is, awaits)
	}
	if over, err := l.settleRestore(t.Context()); over || err != nil {
		t.Errorf("over %t, %v", over, err)
	}
	l.put(func(w store.Writer) {
		hub, _, _ := store.Get[*storev1.Hub](w, store.HubKey)
		s, _, _ := store.Get[*storev1.SessionRecord](w, store.SessionKey("a"))
		next := proto.CloneOf(s)
		if next == nil {
			next = &storev1.SessionRecord{}
		}
		next.Follows = hub.GetIncarnation()
		w.Put(store.SessionKey("a"), next)
	})
	if over, err := l.settleRestore(t.Context()); !over || err != nil {
		t.Errorf("when the cluster follows it: over %t, %v", over, err)
	}
}
