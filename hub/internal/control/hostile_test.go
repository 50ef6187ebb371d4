package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/record"
	"towline.dev/towline/hub/internal/rollouts"
	"towline.dev/towline/hub/internal/source"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/backend"
	"towline.dev/towline/hub/internal/store/memory"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/rollout"
	"towline.dev/towline/pkg/wire"
)

// However long the list is that one cluster waits with, the waits of the others reach a person.
func TestLongListOfOneClusterHidesNoOtherWait(t *testing.T) {
	l := newLeader(t)
	waits := func(n int, name string) *storev1.ObservedRecord {
		st := fleet.SyncStatus{Module: shop, Generation: 1, Bundle: l.bundle, Phase: fleet.PhaseApplied,
			States: []fleet.ObjectState{{Sync: fleet.SyncSynced, Health: fleet.HealthHealthy}}}
		for i := range n {
			st.Extras = append(st.Extras, fleet.ExtraObject{Version: "v1", Held: true, Reason: "AwaitingConfirm",
				ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: fmt.Sprintf("%s-%05d", name, i)}})
		}
		return &storev1.ObservedRecord{Status: wire.SyncStatusToProto(st)}
	}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		for _, c := range []fleet.ClusterName{"a", "b"} {
			w.Put(store.ClusterKey(c), clusterRecord(string(c)))
			w.Put(store.DesiredKey(c, shop), &storev1.DesiredRecord{Sync: l.sync(1)})
		}
		w.Put(store.ObservedKey("a", shop), waits(15_000, strings.Repeat("long-", 20)))
		w.Put(store.ObservedKey("b", shop), waits(12, "few"))
	})
	l.must(l.reconcileAssigned(t.Context(), shop, nil, true, nil))
	held := map[string]*towlinev1.Hold{}
	l.read(func(r store.Reader) {
		store.Scan(r, store.HoldPrefix, func(h *storev1.HoldRecord, _ store.Entry) bool {
			held[h.GetHold().GetCluster()] = h.GetHold()
			return true
		})
	})
	if len(held["a"].GetItems()) == 0 || len(held["b"].GetItems()) != 12 {
		t.Fatalf("%d waits, with %d and %d items", len(held), len(held["a"].GetItems()), len(held["b"].GetItems()))
	}
	if last := held["a"].GetItems()[len(held["a"].GetItems())-1]; !strings.HasSuffix(last, " more") {
		t.Errorf("a list that is cut ends with %q", last)
	}
}

// hanging is a server that takes a request and never answers; inline sources need none.
type hanging struct{ oneFile }

func (h hanging) Fetch(ctx context.Context, project string, s *towlinev1.Source) (source.Artifact, error) {
	if s.GetHttp() == nil {
		return h.oneFile.Fetch(ctx, project, s)
	}
	<-ctx.Done()
	return source.Artifact{}, ctx.Err()
}

// However many modules wait for servers that do not answer, one that needs none has its revision at once.
func TestServersThatHangHoldNoOtherModule(t *testing.T) {
	l := newLeader(t)
	l.o.Source = hanging{}
	const hang = 40
	ref := func(i int) fleet.ModuleRef { return fleet.ModuleRef{Project: "default", Name: fmt.Sprintf("m%d", i)} }
	l.put(func(w store.Writer) {
		for i := range hang + 1 {
			m := moduleRecord()
			m.Module.Metadata.Name = ref(i).Name
			if i < hang {
				m.Module.Spec.Source = &towlinev1.Source{Http: &towlinev1.HttpSource{Url: fmt.Sprintf("http://host%d.example/a.yaml", i%3)}}
			}
			w.Put(store.ModuleKey(ref(i)), m)
			ro := rolloutRecord(1, "Pending")
			ro.Rollout.Module, ro.Rollout.Revision = ref(i).Name, 0
			w.Put(rolloutKey(ref(i), ro), ro)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	lead := make(chan store.Leadership, 1)
	lead <- l.lead
	l.o.Campaign = func(ctx context.Context) (store.Leadership, error) {
		select {
		case x := <-lead:
			return x, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	sub := l.o.Store.Subscribe(nil, store.RevisionPrefix)
	defer sub.Stop()
	late := time.After(time.Minute)
	for cut := false; !cut; {
		l.read(func(r store.Reader) { _, cut = r.Get(store.RevisionKey(ref(hang), 1)) })
		if cut {
			break
		}
		select {
		case <-sub.C():
			sub.Take()
		case <-late:
			t.Fatal("the module without a server waits for those of the others")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// damage flips a bit of a stored record.
func (l *leader) damage(b backend.Backend, key string) {
	l.t.Helper()
	l.rev.Store(storetest.Damage(l.t, b, key))
}

// A freeze that cannot be read any more is not ended by that, and can be ended by a person.
func TestFreezeThatCannotBeReadStands(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	freeze := func(id string, h *towlinev1.Hold) (key string) {
		h.Id, h.Kind = record.FreezeID+id, record.HoldFreeze
		key = store.HoldPrefix + h.Id
		l.put(func(w store.Writer) { w.Put(key, &storev1.HoldRecord{Hold: h}) })
		return key
	}
	l.put(func(w store.Writer) {
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		for _, c := range []fleet.ClusterName{"a", "b"} {
			w.Put(store.ClusterKey(c), clusterRecord(string(c)))
			w.Put(store.DesiredKey(c, shop), &storev1.DesiredRecord{Sync: l.sync(1)})
		}
	})
	ofCluster := freeze("1", &towlinev1.Hold{Cluster: "a"})
	ofModule := freeze("2", &towlinev1.Hold{Project: shop.Project, Module: shop.Name, Cluster: "b"})
	look := func() (cluster, module bool) {
		l.t.Helper()
		l.must(l.reconcileCluster(t.Context(), "a"))
		l.must(l.reconcileAssigned(t.Context(), shop, nil, true, nil))
		l.read(func(r store.Reader) { cluster = held(r, "a") })
		return cluster, l.desired("b").GetSync().GetHold()
	}
	if c, m := look(); !c || !m {
		t.Fatalf("before: cluster held %t, module held %t", c, m)
	}
	l.damage(b, ofCluster)
	l.damage(b, ofModule)
	if c, m := look(); !c || !m {
		t.Errorf("with freezes that cannot be read: cluster held %t, module held %t", c, m)
	}
	l.put(func(w store.Writer) {
		w.Delete(ofCluster)
		w.Delete(ofModule)
	})
	if c, m := look(); c || m {
		t.Errorf("after they were ended: cluster held %t, module held %t", c, m)
	}
}

// What one cluster should run may be damaged: the others of the module are looked after, the damage is said, and the next
// step that names the cluster mends it.
func TestDamagedAssignmentStopsNothingElse(t *testing.T) {
	b := memory.New()
	l := newLeaderOn(t, b)
	l.put(func(w store.Writer) {
		w.Put(store.GenerationKey, &storev1.Counter{Value: 9})
		w.Put(store.ModuleKey(shop), moduleRecord())
		w.Put(store.RevisionKey(shop, 1), l.revision(1))
		for _, c := range []fleet.ClusterName{"a", "b"} {
			w.Put(store.ClusterKey(c), clusterRecord(string(c)))
			w.Put(store.DesiredKey(c, shop), &storev1.DesiredRecord{Sync: l.sync(5)})
		}
		w.Put(store.ObservedKey("a", shop), &storev1.ObservedRecord{Epoch: 1})
		w.Put(store.HoldPrefix+record.FreezeID+"1", &storev1.HoldRecord{Hold: &towlinev1.Hold{Kind: record.HoldFreeze, Cluster: "b"}})
	})
	for _, key := range []string{store.DesiredKey("a", shop), store.ObservedKey("a", shop)} {
		l.damage(b, key)
	}
	l.must(l.reconcileAssigned(t.Context(), shop, nil, true, map[fleet.ClusterName]bool{"a": true}))
	if err := l.collect(t.Context()); err != nil {
		t.Errorf("garbage: %v", err)
	}
	if !l.desired("b").GetSync().GetHold() {
		t.Error("the other cluster is not looked after")
	}
	l.read(func(r store.Reader) {
		x, ok := record.Track(r, "a", shop, true)
		if !ok || !x.Tracker.Failed || !strings.Contains(x.Tracker.Message, "damaged") || !strings.Contains(x.Tracker.Message, "rollout retry shop --cluster a") {
			t.Errorf("tracker %+v", x.Tracker)
		}
	})
	l.put(func(w store.Writer) {
		w.Put(store.StepKey(shop, 1, 1), &storev1.StepRecord{Generation: 9, Revision: 1, Clusters: []string{"a"}})
	})
	l.finish(&rollouts.Run{Module: shop, Number: 1, Plan: &rollout.Plan{}})
	if d := l.desired("a"); d.GetSync().GetGeneration() != 9 || d.GetProblem() != "" {
		t.Errorf("assigned again: %v", d)
	}
	l.damage(b, store.DesiredKey("a", shop))
	l.put(func(w store.Writer) {
		m := moduleRecord()
		m.Deleting = fleet.DeleteDelete
		w.Put(store.ModuleKey(shop), m)
	})
	l.leaves("a", leaving{policy: fleet.DeleteDelete, deleted: true})
	if d := l.desired("a"); d.GetTombstone().GetGeneration() <= 9 {
		t.Errorf("of a deleted module: %v", d)
	}
}
