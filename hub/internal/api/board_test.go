package api

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/assemble"
	"towline.dev/towline/pkg/fleet"
	"towline.dev/towline/pkg/wire"
)

// clusterEvents is a watch of clusters.
type clusterEvents struct {
	grpc.ServerStream
	ctx context.Context
	ch  chan *towlinev1.WatchClustersResponse
}

func (s *clusterEvents) Context() context.Context { return s.ctx }

func (s *clusterEvents) Send(m *towlinev1.WatchClustersResponse) error {
	s.ch <- m
	return nil
}

func (s *clusterEvents) expect(t *testing.T, kind, name, env string) {
	t.Helper()
	select {
	case m := <-s.ch:
		if got := m.GetCluster().GetMetadata(); m.GetType() != kind || got.GetName() != name || got.GetLabels()["env"] != env {
			t.Fatalf("%s %s with env %q, want %s %s with %q", m.GetType(), got.GetName(), got.GetLabels()["env"], kind, name, env)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no %s %s", kind, name)
	}
}

// Those who watch together see each what it asks for: a cluster that comes to match is new to it, and one that does not any
// more is gone for it. The last who leaves ends the looking, and who comes then sees everything anew.
func TestWatchesOfManyShareTheLooking(t *testing.T) {
	put := func(w store.Writer, name fleet.ClusterName, env string) {
		w.Put(store.ClusterKey(name), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: string(name), Labels: map[string]string{"env": env}}}})
	}
	a := newAPI(t, func(w store.Writer) {
		put(w, "c1", "prod")
		put(w, "c2", "test")
	})
	a.clusterBoards.linger = 0
	change := func(fn func(w store.Writer)) {
		t.Helper()
		if _, err := storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
			fn(w)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	watch := func(selector string) (*clusterEvents, func()) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &clusterEvents{ctx: ctx, ch: make(chan *towlinev1.WatchClustersResponse, 100)}
		done := make(chan error)
		go func() { done <- a.WatchClusters(&towlinev1.WatchClustersRequest{LabelSelector: selector}, s) }()
		return s, func() {
			cancel()
			<-done
		}
	}
	all, leave := watch("")
	all.expect(t, eventAdded, "c1", "prod")
	all.expect(t, eventAdded, "c2", "test")
	all.expect(t, eventSynced, "", "")
	prod, leaveProd := watch("env=prod")
	prod.expect(t, eventAdded, "c1", "prod")
	prod.expect(t, eventSynced, "", "")

	change(func(w store.Writer) { put(w, "c1", "test") })
	all.expect(t, eventModified, "c1", "test")
	prod.expect(t, eventDeleted, "c1", "prod")
	change(func(w store.Writer) { put(w, "c2", "prod") })
	all.expect(t, eventModified, "c2", "prod")
	prod.expect(t, eventAdded, "c2", "prod")
	change(func(w store.Writer) { w.Delete(store.ClusterKey("c2")) })
	all.expect(t, eventDeleted, "c2", "prod")
	prod.expect(t, eventDeleted, "c2", "prod")

	leave()
	change(func(w store.Writer) { put(w, "c3", "prod") })
	prod.expect(t, eventAdded, "c3", "prod")
	leaveProd()
	if len(a.clusterBoards.asked) != 0 {
		t.Error("looks on although nobody watches")
	}
	again, leaveAgain := watch("env=prod")
	again.expect(t, eventAdded, "c3", "prod")
	again.expect(t, eventSynced, "", "")
	leaveAgain()
}

// A watch that is so slow that the changes are not kept for it ends with what there is, and is not ended.
func TestASlowWatchCatchesUp(t *testing.T) {
	shown := func(name, env string) *towlinev1.Cluster {
		return &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: name, Labels: map[string]string{"env": env}}}
	}
	blocked, changed := make(chan struct{}), make(chan struct{})
	look := func(ctx context.Context, s *board[*towlinev1.Cluster]) error {
		s.take(eventAdded, shown("gone", "prod"), 1)
		s.take(eventAdded, shown("stays", "prod"), 1)
		s.take(eventSynced, nil, 1)
		<-blocked
		s.take(eventDeleted, shown("gone", "prod"), 2)
		for i := range 3 * boardLimits.Changes {
			s.take(eventModified, shown("stays", fmt.Sprint(i)), int64(3+i))
		}
		s.take(eventAdded, shown("comes", "prod"), 1<<20)
		close(changed)
		<-ctx.Done()
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	known, events := map[string]string{}, 0
	all := func(*towlinev1.Cluster) bool { return true }
	send := func(m told[*towlinev1.Cluster]) error {
		c := m.row
		switch events++; m.kind {
		case eventSynced:
			close(blocked)
			<-changed
		case eventDeleted:
			delete(known, c.GetMetadata().GetName())
		default:
			known[c.GetMetadata().GetName()] = c.GetMetadata().GetLabels()["env"]
		}
		if known["comes"] != "" {
			cancel()
		}
		return nil
	}
	err := newAPI(t, func(store.Writer) {}).clusterBoards.watch(ctx, watching[*towlinev1.Cluster]{look: look, match: all, from: &towlinev1.WatchClustersRequest{}, send: send})
	last := fmt.Sprint(3*boardLimits.Changes - 1)
	if len(known) != 2 || known["stays"] != last || events > 10 || !errors.Is(err, context.Canceled) {
		t.Errorf("it knows %v after %d events, and ended with %v; want stays %s", known, events, err, last)
	}
}

// objectEvents is a watch of objects.
type objectEvents struct {
	grpc.ServerStream
	ctx context.Context
	ch  chan *towlinev1.WatchObjectsResponse
}

func (s *objectEvents) Context() context.Context { return s.ctx }

func (s *objectEvents) Send(m *towlinev1.WatchObjectsResponse) error {
	s.ch <- m
	return nil
}

func (s *objectEvents) expect(t *testing.T, kind, name string) {
	t.Helper()
	select {
	case m := <-s.ch:
		if got := m.GetObject().GetObject().GetName(); m.GetType() != kind || got != name {
			t.Fatalf("%s %q, want %s %q", m.GetType(), got, kind, name)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no %s %q", kind, name)
	}
}

// Who asks the same of objects shares one look, who asks something else does not, and nothing is left when all have gone.
func TestWatchesOfTheSameObjectsShareTheLooking(t *testing.T) {
	ref := fleet.ModuleRef{Project: "default", Name: "shop"}
	entries := []fleet.BundleEntry{{ID: fleet.ObjectID{Kind: "ConfigMap", Namespace: "shop", Name: "a"}, Version: "v1", Digest: fleet.DigestOf([]byte("a"))}}
	digest, content := assemble.BundleDigest(entries)
	put := func(w store.Writer, drifts bool) {
		st := fleet.SyncStatus{Module: ref, Generation: 1, Bundle: digest, Phase: fleet.PhaseApplied, States: []fleet.ObjectState{fleet.UnpackState(packed(drifts))}}
		w.Put(store.ObservedKey("c1", ref), &storev1.ObservedRecord{Epoch: 1, Status: wire.SyncStatusToProto(st)})
	}
	a := newAPI(t, func(w store.Writer) {
		w.Put(store.ClusterKey("c1"), &storev1.ClusterRecord{Cluster: &towlinev1.Cluster{Metadata: &towlinev1.Metadata{Name: "c1"}}})
		w.Put(store.SessionKey("c1"), &storev1.SessionRecord{Epoch: 1})
		w.Put(store.DesiredKey("c1", ref), &storev1.DesiredRecord{Sync: wire.SyncToProto(fleet.Sync{Module: ref, Generation: 1, Revision: 1, Bundle: digest, Objects: 1})})
		put(w, false)
	})
	a.o.Sessions = everybody{}
	if _, err := a.o.Store.Blobs().Put(t.Context(), content); err != nil {
		t.Fatal(err)
	}
	watch := func(f *towlinev1.ObjectFilter) (*objectEvents, func()) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &objectEvents{ctx: ctx, ch: make(chan *towlinev1.WatchObjectsResponse, 100)}
		done := make(chan error)
		go func() { done <- a.WatchObjects(&towlinev1.WatchObjectsRequest{Filter: f}, s) }()
		return s, func() {
			cancel()
			<-done
		}
	}
	one, leaveOne := watch(nil)
	two, leaveTwo := watch(&towlinev1.ObjectFilter{})
	drifting, leaveDrifting := watch(&towlinev1.ObjectFilter{Drift: "*"})
	meeting, leaveMeeting := watch(&towlinev1.ObjectFilter{Expression: `drift == "Drifted" && cluster == "c1"`})
	for _, s := range []*objectEvents{one, two} {
		s.expect(t, eventAdded, "a")
		s.expect(t, eventSynced, "")
	}
	drifting.expect(t, eventSynced, "")
	meeting.expect(t, eventSynced, "")
	a.objectBoards.linger = 0
	if n := len(a.objectBoards.asked); n != 3 {
		t.Errorf("%d looks for three questions", n)
	}
	if _, err := storetest.All(a.o.Store).Update(t.Context(), func(w store.Writer) error {
		put(w, true)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	one.expect(t, eventModified, "a")
	two.expect(t, eventModified, "a")
	drifting.expect(t, eventAdded, "a")
	meeting.expect(t, eventAdded, "a")
	leaveOne()
	leaveTwo()
	leaveDrifting()
	leaveMeeting()
	if len(a.objectBoards.asked) != 0 {
		t.Error("looks stay although nobody watches")
	}
}
