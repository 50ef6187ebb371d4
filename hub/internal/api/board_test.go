package api

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	storev1 "towline.dev/towline/gen/towline/store/v1"
	towlinev1 "towline.dev/towline/gen/towline/v1"
	"towline.dev/towline/hub/internal/store"
	"towline.dev/towline/hub/internal/store/storetest"
	"towline.dev/towline/pkg/fleet"
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
	case <-time.After(10 * time.Second):
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
	if a.clusterBoard.running != nil {
		t.Error("looks on although nobody watches")
	}
	again, leaveAgain := watch("env=prod")
	again.expect(t, eventAdded, "c3", "prod")
	again.expect(t, eventSynced, "", "")
	leaveAgain()
}
